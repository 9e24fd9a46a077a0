using System.Net;
using System.Net.Sockets;

namespace Pyroscope.Tests;

/// <summary>What Configure takes, and what it says of the rest.</summary>
public sealed class ConfigurationTests : IDisposable
{
    public static TheoryData<ProfilerConfiguration, string, string, string> Refused() => new()
    {
        { new() { ApplicationName = " " }, "ApplicationName", "\"\"", "the name of the service" },
        { Named(c => c.ServerAddress = "ftp://x"), "ServerAddress", "ftp://x", "http" },
        { Named(c => c.SampleRate = 0), "SampleRate", "0", "1 to 1000" },
        { Named(c => c.SampleRate = 1001), "SampleRate", "1001", "1 to 1000" },
        { Named(c => c.SampleRate = -5), "SampleRate", "-5", "1 to 1000" },
        { Named(c => c.UploadInterval = TimeSpan.FromMilliseconds(999)), "UploadInterval", "0.999 s", "1 s to 10 min" },
        { Named(c => c.UploadInterval = TimeSpan.FromHours(1)), "UploadInterval", "3600 s", "1 s to 10 min" },
        { Named(c => c.UploadInterval = TimeSpan.FromSeconds(-1)), "UploadInterval", "-1 s", "1 s to 10 min" },
        { Named(c => c.BasicAuthUser = "a:b"), "BasicAuthUser", "a:(secret)", "without a colon" },
        { Named(c => c.TenantId = "a\nb"), "TenantId", "(not shown)", "visible ASCII" },
        { Named(c => c.Tags["span_id"] = "x"), "Tags", "span_id", "reserved" },
        { Named(c => c.Tags["two words"] = "x"), "Tags", "two words", "[A-Za-z_]" },
        { Named(c => c.Tags["region"] = null!), "Tags", "null for region", "text" },
        { Named(c => c.HttpHeaders["no header"] = "x"), "HttpHeaders", "no ", "X-Name" },
        { Named(c => c.HttpHeaders["Content-Type"] = "x"), "HttpHeaders", "Content-Type", "body" },
    };

    [Theory]
    [MemberData(nameof(Refused))]
    public void A_wrong_value_is_refused_with_property_value_and_what_is_allowed(
        ProfilerConfiguration configuration, string property, string value, string allowed)
    {
        var error = Assert.Throws<ArgumentException>(() => Profiler.Instance.Configure(configuration));
        Assert.StartsWith($"{property}: ", error.Message);
        Assert.Contains(value, error.Message);
        Assert.Contains("is not allowed; allowed: ", error.Message);
        Assert.Contains(allowed, error.Message);
        Assert.Equal(property, error.ParamName);
        Assert.False(Profiler.Instance.Status.IsRunning);
    }

    [Fact]
    public void A_value_that_was_refused_is_why_nothing_runs()
    {
        Assert.Throws<ArgumentException>(() => Profiler.Instance.Configure(Named(c => c.UploadInterval = TimeSpan.Zero)));
        Assert.StartsWith("UploadInterval: 0 s is not allowed", Profiler.Instance.Status.Reason);
    }

    [Fact]
    public void A_message_names_the_properties_to_check_and_leaves_what_the_server_said()
    {
        const string Told = "A profile was dropped. http://x: HTTP 401: no tenant_id. Check basic_auth_username, basic_auth_password, tenant_id and http_headers.";
        const string Read = "A profile was dropped. http://x: HTTP 401: no tenant_id. Check BasicAuthUser, BasicAuthPassword, TenantId and HttpHeaders.";
        Assert.Equal(Read, ProfilerConfiguration.ByProperties(Told));
        Assert.Equal("HTTP 500: server_address.", ProfilerConfiguration.ByProperties("HTTP 500: server_address."));
    }

    [Fact]
    public void A_stop_without_a_profiler_says_that_none_ran() => Assert.False(Profiler.Instance.Stop(TimeSpan.FromSeconds(5)));

    [Fact]
    public void A_wrong_variable_is_refused_by_its_own_name()
    {
        Environment.SetEnvironmentVariable("PYROSCOPE_SAMPLE_RATE", "fast");
        try
        {
            var error = Assert.Throws<ArgumentException>(() => Profiler.Instance.Configure(Named(_ => { })));
            Assert.StartsWith("PYROSCOPE_SAMPLE_RATE: fast is not allowed", error.Message);
        }
        finally
        {
            Environment.SetEnvironmentVariable("PYROSCOPE_SAMPLE_RATE", null);
        }
    }

    [Fact]
    public void A_password_is_in_no_message()
    {
        var error = Assert.Throws<ArgumentException>(() => Profiler.Instance.Configure(Named(c =>
        {
            (c.BasicAuthUser, c.BasicAuthPassword) = ("a:hunter2", "hunter2");
        })));
        Assert.DoesNotContain("hunter2", error.ToString());
    }

    [Fact]
    public void Configure_may_be_called_again_and_after_Dispose_and_a_wrong_value_keeps_what_runs()
    {
        Assert.True(Profiler.Instance.Configure(Named(_ => { })));
        Assert.True(Profiler.Instance.Configure(Named(c => c.SampleRate = 50)));
        Assert.Throws<ArgumentException>(() => Profiler.Instance.Configure(Named(c => c.SampleRate = 0)));
        Assert.True(Profiler.Instance.Status.IsRunning);
        Profiler.Instance.Dispose();
        Profiler.Instance.Dispose();
        Assert.Equal((false, "the profiler was stopped"), (Profiler.Instance.Status.IsRunning, Profiler.Instance.Status.Reason));
        Assert.StartsWith("not running (the profiler was stopped); cpu: off (no profiler runs); ", Profiler.Instance.Status.ToString());
        Assert.False(Profiler.Instance.Flush());
        Assert.True(Profiler.Instance.Configure(Named(_ => { })));
    }

    [Fact]
    public void A_configuration_that_switches_profiling_off_starts_nothing_and_status_says_so()
    {
        Assert.False(Profiler.Instance.Configure(Named(c => c.ProfilingEnabled = false)));
        Assert.False(Profiler.Instance.Status.IsRunning);
        Assert.Contains("switched off", Profiler.Instance.Status.Reason);
    }

    [Fact]
    public void A_configuration_that_switches_profiling_off_ends_what_runs()
    {
        Assert.True(Profiler.Instance.Configure(Named(_ => { })));
        Assert.False(Profiler.Instance.Configure(Named(c => c.ProfilingEnabled = false)));
        Assert.Equal("no profiler runs", Profiler.Instance.Status["cpu"].Reason);
        Assert.Contains("switched off", Profiler.Instance.Status.Reason);
    }

    [Fact]
    public void A_part_that_the_configuration_left_out_can_be_switched_on_and_off()
    {
        Assert.True(Profiler.Instance.Configure(Named(c => (c.CpuProfilingEnabled, c.WallTimeProfilingEnabled) = (false, true))));
        (string Part, Action<bool> Switch)[] parts =
        [
            ("cpu", Profiler.Instance.SetCPUTrackingEnabled),
            ("allocations", Profiler.Instance.SetAllocationTrackingEnabled),
            ("locks", Profiler.Instance.SetContentionTrackingEnabled),
            ("exceptions", Profiler.Instance.SetExceptionTrackingEnabled),
        ];
        Assert.All(parts, part =>
        {
            Assert.Equal((false, "switched off"), (Profiler.Instance.Status[part.Part].IsOn, Profiler.Instance.Status[part.Part].Reason));
            Assert.Contains($"; {part.Part}: off (switched off)", Profiler.Instance.Status.ToString());
            part.Switch(true);
            Assert.True(Profiler.Instance.Status[part.Part].IsOn, Profiler.Instance.Status[part.Part].Reason);
            Assert.Matches($"^running; .*{part.Part}: on", Profiler.Instance.Status.ToString());
            part.Switch(false);
            Assert.False(Profiler.Instance.Status[part.Part].IsOn);
        });
    }

    [Fact]
    public void Statistics_are_a_line_of_text()
    {
        var numbers = new Dictionary<string, ulong> { ["taken_samples"] = 3, ["refused_samples"] = 0, ["threads"] = 2 };
        Assert.Equal("taken_samples 3, threads 2", new ProfilerStats(numbers, "").ToString());
        Assert.Equal("taken_samples 3, threads 2; refused", new ProfilerStats(numbers, "refused").ToString());
    }

    [Fact]
    public void Null_is_no_configuration() =>
        Assert.Throws<ArgumentNullException>(() => Profiler.Instance.Configure(null!));

    [Fact]
    public void A_configuration_is_copied()
    {
        var configuration = Named(_ => { });
        Profiler.Instance.Configure(configuration);
        configuration.SampleRate = 0;
        Profiler.Instance.SetBasicAuth("user", "password");
        Assert.True(Profiler.Instance.Status.IsRunning);
        Assert.Throws<ArgumentException>(() => Profiler.Instance.SetBasicAuth("a:b", "password"));
        Profiler.Instance.SetBasicAuth("", "");
    }

    [Fact]
    public void While_a_stop_waits_for_the_server_status_and_name_do_not_wait_for_it()
    {
        // It takes connections and says nothing.
        using var server = new TcpListener(IPAddress.Loopback, 0);
        server.Start();
        Assert.True(Profiler.Instance.Configure(Named(c => c.ServerAddress = $"http://{server.LocalEndpoint}")));
        while (Profiler.Instance.Stats.Taken.Samples == 0)
        {
            ThreadTime.Burn(20);
        }

        var stopping = new Thread(Profiler.Instance.Dispose);
        stopping.Start();
        while (Profiler.Instance.Status.IsRunning)
        {
            Thread.Yield();
        }

        Assert.Equal("tests", Profiler.Instance.GivenName());
        Assert.True(stopping.IsAlive);
        server.Stop();
        stopping.Join();
    }

    [Fact]
    public void Many_threads_may_configure_flush_and_dispose_at_once()
    {
        Parallel.For(0, 16, number =>
        {
            switch (number % 4)
            {
                case 0:
                    Profiler.Instance.Configure(Named(_ => { }));
                    break;
                case 1:
                    Profiler.Instance.Flush();
                    break;
                case 2:
                    _ = (Profiler.Instance.Stats, Profiler.Instance.Status);
                    break;
                default:
                    Profiler.Instance.Dispose();
                    break;
            }
        });
        Assert.True(Profiler.Instance.Configure(Named(_ => { })));
    }

    public void Dispose() => Profiler.Instance.Dispose();

    private static ProfilerConfiguration Named(Action<ProfilerConfiguration> change)
    {
        var configuration = new ProfilerConfiguration { ApplicationName = "tests", ServerAddress = "http://127.0.0.1:9" };
        change(configuration);
        return configuration;
    }
}
