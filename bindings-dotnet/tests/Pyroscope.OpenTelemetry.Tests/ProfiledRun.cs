using System.Diagnostics;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Tests;

/// <summary>A profiler that writes into a folder of its own, and what it left there.</summary>
internal sealed class ProfiledRun : IDisposable
{
    private readonly TracerProvider provider;

    internal ProfiledRun(SpanScope scope = SpanScope.All, Action<ProfilerConfiguration>? configure = null)
    {
        var configuration = new ProfilerConfiguration { ApplicationName = "tests", ServerAddress = $"file://{Folder}" };
        configure?.Invoke(configuration);
        Assert.True(Profiler.Instance.Configure(configuration), Profiler.Instance.Status.Reason);
        provider = Sdk.CreateTracerProviderBuilder().AddSource(TrueSpan.Source.Name).AddProcessor(new PyroscopeSpanProcessor(scope)).Build()!;
    }

    internal string Folder { get; } = Directory.CreateTempSubdirectory("pyroscope-tests-").FullName;

    /// <summary>Ends the run. All samples of a kind.</summary>
    internal PprofSample[] End(string kind = "process_cpu")
    {
        provider.Dispose();
        Profiler.Instance.Dispose();
        return Pprof.ReadFolder(Folder, kind).SelectMany(profile => profile.Samples).ToArray();
    }

    /// <summary>Uses CPU time of this thread.</summary>
    internal static void Burn(int milliseconds)
    {
        // The thread's own clock would be right, but .NET has none; the tests compare shares, which both see alike.
        var until = Stopwatch.GetTimestamp() + (milliseconds * Stopwatch.Frequency / 1000);
        while (Stopwatch.GetTimestamp() < until)
        {
            Thread.SpinWait(50);
        }
    }

    /// <summary>CPU time of this process.</summary>
    internal static TimeSpan CpuTime()
    {
        using var self = Process.GetCurrentProcess();
        return self.TotalProcessorTime;
    }

    public void Dispose()
    {
        provider.Dispose();
        Profiler.Instance.Dispose();
        Directory.Delete(Folder, true);
    }
}
