using System.Diagnostics;
using BenchmarkDotNet.Attributes;
using BenchmarkDotNet.Configs;
using BenchmarkDotNet.Jobs;
using BenchmarkDotNet.Running;
using BenchmarkDotNet.Toolchains.InProcess.NoEmit;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Benchmarks;

/// <summary>What spans and switches of contexts cost with the profiler, and over the bare SDK without it.</summary>
[MemoryDiagnoser(displayGenColumns: false)]
[MinColumn]
public class SpanCost
{
    private static readonly ActivitySource Source = new("Benchmarks");

    private TracerProvider? provider;
    private Activity? outer;
    private ExecutionContext? inSpan;

    /// <summary>Whether the profiler runs, with its span processor in the default scope.</summary>
    [Params(false, true)]
    public bool Profiler { get; set; }

    [GlobalSetup]
    public void SetUp()
    {
        var builder = Sdk.CreateTracerProviderBuilder().AddSource(Source.Name);
        if (Profiler)
        {
            Pyroscope.Profiler.Instance.Configure(new ProfilerConfiguration { ApplicationName = "benchmarks", ServerAddress = "none" });
            builder.AddProcessor(new PyroscopeSpanProcessor());
        }
        else
        {
            builder.AddProcessor(new Nothing());
        }

        provider = builder.Build();
        outer = Source.StartActivity("outer");
        inSpan = ExecutionContext.Capture();
        Activity.Current = null;
    }

    [GlobalCleanup]
    public void CleanUp()
    {
        outer?.Dispose();
        provider?.Dispose();
        Pyroscope.Profiler.Instance.Dispose();
    }

    [Benchmark(Description = "root span start + stop")]
    public void RootSpan() => Source.StartActivity("root")!.Dispose();

    [Benchmark(Description = "switch in + out")]
    public void Switch() => ExecutionContext.Run(inSpan!, static _ => { }, null);

    public static void Main(string[] arguments)
    {
        var job = arguments.Contains("--quick") ? Job.Dry.WithIterationCount(3).WithInvocationCount(1 << 16).WithUnrollFactor(16) : Job.Default.WithIterationCount(20);
        BenchmarkRunner.Run<SpanCost>(
            DefaultConfig.Instance.AddJob(job.WithToolchain(InProcessNoEmitToolchain.Instance)).WithArtifactsPath(arguments[0]));
    }

    private sealed class Nothing : BaseProcessor<Activity>;
}
