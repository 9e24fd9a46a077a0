using System.Diagnostics;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.OpenTelemetry;
using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>A profiler that writes into a folder, with a span processor of its own.</summary>
internal sealed class Recording : IDisposable
{
    internal static readonly ActivitySource Source = new("Benchmarks");

    private readonly string folder = Directory.CreateTempSubdirectory("pyroscope-bench-").FullName;
    private readonly TracerProvider provider;
    private readonly double since;

    internal Recording(Action<ProfilerConfiguration>? configure = null, Sampler? sampler = null, SpanScope scope = SpanScope.All)
    {
        var configuration = new ProfilerConfiguration { ApplicationName = "bench", ServerAddress = $"file://{folder}" };
        configure?.Invoke(configuration);
        if (!Profiler.Instance.Configure(configuration))
        {
            throw new InvalidOperationException(Profiler.Instance.Status.Reason);
        }

        since = ProgramSeconds;
        provider = Sdk.CreateTracerProviderBuilder()
            .AddSource(Source.Name, TrueSpan.Source.Name, "Microsoft.AspNetCore", "System.Net.Http")
            .SetSampler(sampler ?? new AlwaysOnSampler())
            .AddProcessor(new PyroscopeSpanProcessor(scope))
            .Build()!;
    }

    /// <summary>CPU time that the program used while it was profiled; known once the profiles were read.</summary>
    internal double BurntSeconds { get; private set; }

    /// <summary>CPU time of the whole process, less the profiler's own threads, which no profile shows.</summary>
    private static double ProgramSeconds => ThreadTime.OfAllThreads - (Profiler.Instance.Stats.Numbers["own_cpu_ns"] / 1e9);

    /// <summary>Ends it. Its profiles of a kind, oldest first.</summary>
    internal Pprof[] Profiles(string kind)
    {
        provider.Dispose();
        BurntSeconds = ProgramSeconds - since;
        Profiler.Instance.Dispose();
        return Pprof.ReadFolder(folder, kind).ToArray();
    }

    internal PprofSample[] Samples(string kind) => Profiles(kind).SelectMany(profile => profile.Samples).ToArray();

    public void Dispose()
    {
        provider.Dispose();
        Profiler.Instance.Dispose();
        Directory.Delete(folder, true);
    }
}
