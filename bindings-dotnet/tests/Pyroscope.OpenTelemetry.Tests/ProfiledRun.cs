using System.Runtime.InteropServices;
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

    public void Dispose()
    {
        provider.Dispose();
        Profiler.Instance.Dispose();
        Directory.Delete(Folder, true);
    }
}

/// <summary>CPU time of the calling thread, by the kernel's clock: wall time says little on a busy machine.</summary>
internal static partial class ThreadTime
{
    private const int ThreadCpuTime = 3;

    internal static double Seconds
    {
        get
        {
            Assert.Equal(0, Read(ThreadCpuTime, out var time));
            return time.Seconds + (time.Nanoseconds / 1e9);
        }
    }

    /// <summary>Uses so much of it.</summary>
    internal static void Burn(int milliseconds)
    {
        for (var until = Seconds + (milliseconds / 1e3); Seconds < until;)
        {
            Thread.SpinWait(50);
        }
    }

    [LibraryImport("libc", EntryPoint = "clock_gettime")]
    private static partial int Read(int clock, out Time time);

    [StructLayout(LayoutKind.Sequential)]
    private struct Time
    {
        internal long Seconds;
        internal long Nanoseconds;
    }
}
