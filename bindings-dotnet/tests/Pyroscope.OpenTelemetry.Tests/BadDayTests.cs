using System.Diagnostics;
using System.Text.Json;
using System.Text.Json.Nodes;
using System.Text.RegularExpressions;

namespace Pyroscope.Tests;

/// <summary>Whatever is in the profiler's way, spans go on, the program ends as it should, and one warning says what is wrong.</summary>
public sealed partial class BadDayTests : IDisposable
{
    private static readonly string WorkerFolder = AppContext.BaseDirectory.Replace(
        $"{Path.DirectorySeparatorChar}Pyroscope.OpenTelemetry.Tests{Path.DirectorySeparatorChar}", $"{Path.DirectorySeparatorChar}Worker{Path.DirectorySeparatorChar}", StringComparison.Ordinal);

    private readonly string folder = Directory.CreateTempSubdirectory("pyroscope-worker-").FullName;

    [Fact]
    public async Task On_a_good_day_everything_that_was_asked_for_is_on_and_the_last_samples_are_written_at_exit()
    {
        var worker = await Run(new()
        {
            ["PYROSCOPE_PROFILING_ALLOCATION_ENABLED"] = "true",
            ["PYROSCOPE_PROFILING_LOCK_ENABLED"] = "true",
            ["PYROSCOPE_PROFILING_EXCEPTION_ENABLED"] = "true",
            ["PYROSCOPE_PROFILING_WALLTIME_ENABLED"] = "true",
        });
        Assert.True(worker.Running, worker.Reason);
        Assert.Equal((40, 80), (worker.Spans, worker.Caught));
        // The first span starts the profiler, which others that begin meanwhile do not wait for.
        Assert.InRange(worker.Tagged, 1, 40);
        // On a busy machine a new thread may wait before the profiler, which is late, knows it, and a burst of events be more than a ring that it
        // is late to empty: that is said.
        Assert.DoesNotContain(worker.Warnings, warning => !MayBeSaid().IsMatch(warning));
        Assert.All(worker.Features, feature => Assert.Equal((feature.Key, ""), (feature.Key, feature.Value)));
        foreach (var kind in new[] { "process_cpu", "memory", "lock", "exception" })
        {
            var samples = Pprof.ReadFolder(folder, kind).SelectMany(profile => profile.Samples).ToArray();
            Assert.True(samples.Any(sample => sample.Label("span_name") == "work"), $"{kind}: {samples.Length}");
        }
    }

    [Fact]
    public async Task A_span_that_begins_while_the_first_one_starts_the_profiler_waits_for_nothing_and_has_its_profile()
    {
        var worker = await Run(new() { ["WORKER_SPAN_MEANWHILE"] = "1" });
        Assert.True(worker.Running, worker.Reason);
        Assert.Equal("", worker.MeanwhileAtFirst);
        Assert.Matches("^[0-9a-f]{16}$", worker.Meanwhile);
        var samples = Pprof.ReadFolder(folder, "process_cpu").SelectMany(profile => profile.Samples);
        Assert.Contains(samples, sample => (sample.Label("span_id"), sample.Label("span_name")) == (worker.Meanwhile, "meanwhile"));
        // By then the profiler runs, and each span has its tag from its start on.
        Assert.Equal((40, 40), (worker.Spans, worker.Tagged));
    }

    [Fact]
    public async Task Where_a_provider_is_shut_down_that_started_the_profiler_it_goes_on_for_others_and_ends_with_the_last()
    {
        var worker = await Run(new() { ["WORKER_HAS_ANOTHER_PROVIDER"] = "1" });
        Assert.True(worker.Running, worker.Reason);
        Assert.Equal((40, 40, true), (worker.Spans, worker.Tagged, worker.Ended));
        Assert.Contains("SetContentionTrackingEnabled has no effect: no profiler runs", worker.Warnings);
        var samples = Pprof.ReadFolder(folder, "process_cpu").SelectMany(profile => profile.Samples);
        Assert.Contains(samples, sample => sample.Label("span_name") == "work");
    }

    [Fact]
    public async Task A_span_that_begins_while_a_start_fails_has_no_tag()
    {
        var worker = await Run(new() { ["WORKER_SPAN_MEANWHILE"] = "1", ["PYROSCOPE_SAMPLE_RATE"] = "fast" });
        Assert.Equal((40, 0, false), (worker.Spans, worker.Tagged, worker.Running));
        Assert.Equal(("", ""), (worker.MeanwhileAtFirst, worker.Meanwhile));
    }

    [Fact]
    public async Task Without_the_native_library_nothing_is_profiled()
    {
        var copy = Copy(file => !file.EndsWith("libspanprof.so", StringComparison.Ordinal));
        var worker = await Run([], copy);
        Assert.Equal((40, 0, false), (worker.Spans, worker.Tagged, worker.Running));
        Assert.Contains("libspanprof.so cannot be loaded", worker.Reason);
        Assert.Contains("libspanprof.so cannot be loaded", Assert.Single(worker.Warnings));
    }

    [Fact]
    public async Task With_a_library_for_another_processor_nothing_is_profiled()
    {
        var copy = Copy(_ => true);
        var library = Path.Combine(copy, "libspanprof.so");
        var bytes = File.ReadAllBytes(library);
        bytes[18] = 183; // e_machine: 64-bit ARM.
        File.WriteAllBytes(library, bytes);
        var worker = await Run([], copy);
        Assert.Equal((40, 0, false), (worker.Spans, worker.Tagged, worker.Running));
        Assert.Contains("libspanprof.so cannot be loaded", Assert.Single(worker.Warnings));
    }

    [Theory]
    [InlineData("DOTNET_EnableDiagnostics", "0")]
    [InlineData("TMPDIR", "/proc/none")]
    public async Task Without_diagnostics_events_are_off_and_cpu_time_goes_on(string variable, string value)
    {
        var worker = await Run(new() { [variable] = value, ["PYROSCOPE_PROFILING_ALLOCATION_ENABLED"] = "true" });
        Assert.True(worker.Running, worker.Reason);
        Assert.Equal(40, worker.Spans);
        Assert.Equal("", worker.Features["cpu"]);
        Assert.NotEqual("", worker.Features["allocations"]);
        Assert.NotEqual("", worker.Features["names"]);
        Assert.Contains(worker.Features["names"], Assert.Single(worker.Warnings));
        var samples = Pprof.ReadFolder(folder, "process_cpu").SelectMany(profile => profile.Samples).ToArray();
        Assert.Contains(samples, sample => sample.Label("span_name") == "work");
    }

    [Fact]
    public async Task Where_another_library_takes_the_signal_cpu_time_ends_and_events_go_on()
    {
        var worker = await Run(new() { ["WORKER_RESETS_SIGNAL"] = "1", ["PYROSCOPE_PROFILING_EXCEPTION_ENABLED"] = "true" });
        Assert.True(worker.Running, worker.Reason);
        Assert.Equal((40, 40), (worker.Spans, worker.Tagged));
        Assert.Contains("was replaced", worker.Features["cpu"]);
        Assert.Equal($"Sampling by timers has ended: {worker.Features["cpu"]}.", Assert.Single(worker.Warnings));
        Assert.Equal(("", ""), (worker.Features["exceptions"], worker.Features["spans"]));
        var thrown = Pprof.ReadFolder(folder, "exception").SelectMany(profile => profile.Samples).Where(sample => sample.Label("span_name") == "work");
        Assert.Equal(80, thrown.Sum(sample => sample.Values[0]));
    }

    [Fact]
    public async Task Beside_the_package_that_has_the_same_types_all_works_and_one_warning_says_which_to_remove()
    {
        var copy = Copy(_ => true);
        // What a program's assemblies are is said there.
        var file = Path.Combine(copy, "Worker.deps.json");
        var parts = JsonNode.Parse(File.ReadAllText(file))!;
        parts["targets"]!.AsObject().Last().Value!["Pyroscope/1.0.0"] = JsonNode.Parse("""{"runtime": {"Pyroscope.dll": {}}}""");
        parts["libraries"]!["Pyroscope/1.0.0"] = JsonNode.Parse("""{"type": "project", "serviceable": false, "sha512": ""}""");
        File.WriteAllText(file, parts.ToJsonString());
        File.Copy(Path.Combine(WorkerFolder.Replace("Worker", "OtherPackage", StringComparison.Ordinal), "Pyroscope.dll"), Path.Combine(copy, "Pyroscope.dll"));
        var worker = await Run([], copy);
        Assert.True(worker.Running, worker.Reason);
        Assert.Equal(40, worker.Spans);
        Assert.Contains("remove the package Pyroscope from the project", Assert.Single(worker.Warnings));
    }

    [Fact]
    public async Task With_a_server_that_is_down_the_program_ends_and_one_warning_says_so()
    {
        var worker = await Run(new() { ["PYROSCOPE_SERVER_ADDRESS"] = "http://127.0.0.1:9" });
        Assert.True(worker.Running, worker.Reason);
        Assert.True(worker.Taken > 0);
        Assert.Contains("127.0.0.1:9", Assert.Single(worker.Warnings));
    }

    [Fact]
    public async Task With_a_wrong_variable_spans_go_on_and_one_warning_names_it()
    {
        var worker = await Run(new() { ["PYROSCOPE_SAMPLE_RATE"] = "fast" });
        Assert.Equal((40, 0, false), (worker.Spans, worker.Tagged, worker.Running));
        Assert.Contains("PYROSCOPE_SAMPLE_RATE: fast is not allowed", Assert.Single(worker.Warnings));
        Assert.StartsWith("PYROSCOPE_SAMPLE_RATE: fast is not allowed", worker.Reason);
    }

    [Fact]
    public async Task Settings_of_AddPyroscope_that_come_too_late_are_told_to_its_logger_by_name()
    {
        var worker = await Run(new() { ["WORKER_CONFIGURES_BEFORE"] = "" });
        Assert.Equal((true, 40), (worker.Running, worker.Tagged));
        Assert.Equal("switched off", worker.Features["waits"]);
        const string Told = "Settings of AddPyroscope have no effect, as the profiler was configured elsewhere: WallTimeProfilingEnabled. Set them there.";
        Assert.Equal(Told, Assert.Single(worker.Warnings));
    }

    [Fact]
    public async Task Settings_of_AddPyroscope_with_a_name_replace_those_before()
    {
        var worker = await Run(new() { ["WORKER_CONFIGURES_BEFORE"] = "worker" });
        Assert.Equal((true, 40), (worker.Running, worker.Tagged));
        Assert.Equal("", worker.Features["waits"]);
        Assert.DoesNotContain(worker.Warnings, warning => warning.Contains("AddPyroscope", StringComparison.Ordinal));
    }

    [Fact]
    public async Task A_logger_that_never_comes_back_keeps_no_process_alive_and_costs_no_samples()
    {
        // The logger is called for the warning that this brings.
        var worker = await Run(new() { ["WORKER_ENDS"] = "while its logger never comes back", ["TMPDIR"] = "/proc/none" });
        Assert.True(worker.Running);
        Assert.NotEmpty(Pprof.ReadFolder(folder, "process_cpu").SelectMany(profile => profile.Samples));
    }

    [Fact]
    public async Task Once_the_process_ends_no_profiler_starts()
    {
        var worker = await Run(new() { ["WORKER_ENDS"] = "and configures" });
        Assert.Equal((false, "the process ends"), (worker.Running, worker.Reason));
    }

    [Fact]
    public async Task Events_end_before_the_runtime_disposes_of_its_EventSources_and_do_not_begin_again()
    {
        var worker = await Run(new() { ["WORKER_ENDS"] = "and switches events on" });
        Assert.True(worker.Running);
        Assert.Equal(("", "switched off"), (worker.Features["cpu"], worker.Features["exceptions"]));
    }

    [Fact]
    public async Task An_exception_under_a_lock_that_the_end_of_a_session_takes_ends_the_program()
    {
        var worker = await Run(new() { ["WORKER_ENDS"] = "by an exception under the lock of listeners" }, crashesWith: "InvalidOperationException: expected");
        Assert.True(worker.Running);
        Assert.Equal("", worker.Features["exceptions"]);
    }

    [Fact]
    public async Task What_a_program_did_until_an_exception_ended_it_is_delivered()
    {
        var worker = await Run(new() { ["WORKER_ENDS"] = "by an exception" }, crashesWith: "InvalidOperationException: expected");
        Assert.True(worker.Running);
        Assert.InRange(Pprof.ReadFolder(folder, "process_cpu").SelectMany(profile => profile.Samples).Sum(sample => sample.Values[0]), 100_000_000, long.MaxValue);
    }

    [Theory]
    [InlineData("PYROSCOPE_PROFILING_ENABLED")]
    [InlineData("OTEL_PYROSCOPE_START_PROFILING")]
    public async Task What_the_environment_switches_off_stays_off_without_a_word(string variable)
    {
        var worker = await Run(new() { [variable] = "false" });
        Assert.Equal((40, 0, false), (worker.Spans, worker.Tagged, worker.Running));
        Assert.Empty(worker.Warnings);
        Assert.Empty(Directory.GetFiles(folder));
    }

    [Theory]
    [InlineData("OTEL_PYROSCOPE_ROOT_SPAN_ONLY")]
    [InlineData("OTEL_PYROSCOPE_START_PROFILING")]
    [InlineData("OTEL_PYROSCOPE_TIME_ATTRIBUTES")]
    public async Task A_variable_that_is_no_boolean_is_told_once_and_spans_go_on(string variable)
    {
        var worker = await Run(new() { [variable] = "maybe" });
        Assert.Equal((40, true), (worker.Spans, worker.Running));
        Assert.StartsWith($"{variable}: maybe is not allowed; allowed: true, false, 1, 0, yes, no. It is taken for ", Assert.Single(worker.Warnings));
    }

    public void Dispose() => Directory.Delete(folder, true);

    /// <summary>The program's folder, or what of it is wanted, once more.</summary>
    private string Copy(Func<string, bool> isWanted)
    {
        var copy = Directory.CreateDirectory(Path.Combine(folder, "copy")).FullName;
        foreach (var file in Directory.GetFiles(WorkerFolder).Where(isWanted))
        {
            File.Copy(file, Path.Combine(copy, Path.GetFileName(file)));
        }

        return copy;
    }

    private async Task<Report> Run(Dictionary<string, string> environment, string? from = null, string? crashesWith = null)
    {
        var start = new ProcessStartInfo(Environment.ProcessPath is { } path && path.EndsWith("dotnet", StringComparison.Ordinal) ? path : "dotnet")
        {
            ArgumentList = { Path.Combine(from ?? WorkerFolder, "Worker.dll") },
            RedirectStandardOutput = true,
            RedirectStandardError = true,
        };
        start.Environment["PYROSCOPE_SERVER_ADDRESS"] = $"file://{folder}";
        start.Environment["OTEL_SERVICE_NAME"] = "worker";
        foreach (var (name, value) in environment)
        {
            start.Environment[name] = value;
        }

        using var process = Process.Start(start)!;
        var (output, errors) = (process.StandardOutput.ReadToEndAsync(), process.StandardError.ReadToEndAsync());
        using (var patience = new CancellationTokenSource(TimeSpan.FromSeconds(60)))
        {
            try
            {
                await process.WaitForExitAsync(patience.Token);
            }
            catch (OperationCanceledException)
            {
                process.Kill();
                Assert.Fail("it did not end within a minute");
            }
        }

        if (crashesWith is null)
        {
            // Nothing of the profiler's is on the program's own streams.
            Assert.Equal((0, ""), (process.ExitCode, await errors));
        }
        else
        {
            Assert.Equal(134, process.ExitCode);
            Assert.Contains(crashesWith, await errors, StringComparison.Ordinal);
        }

        var line = Assert.Single((await output).Split('\n', StringSplitOptions.RemoveEmptyEntries));
        return JsonSerializer.Deserialize<Report>(line, new JsonSerializerOptions(JsonSerializerDefaults.Web))!;
    }

    private sealed record Report(
        int Spans, int Tagged, string MeanwhileAtFirst, string Meanwhile, int Caught, bool Running, string Reason, Dictionary<string, string> Features, string[] Warnings, bool Ended, ulong Taken);

    [GeneratedRegex("^Waits were lost, as their threads were not known|^Samples lost: [1-9], as the rings of their threads were full")]
    private static partial Regex MayBeSaid();
}
