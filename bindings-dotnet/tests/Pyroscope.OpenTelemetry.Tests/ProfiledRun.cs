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
        // From here on what was compiled between two runs has its name, too.
        GC.Collect();
        GC.WaitForPendingFinalizers();
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
