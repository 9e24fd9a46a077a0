using System.Diagnostics;
using BenchmarkDotNet.Attributes;
using BenchmarkDotNet.Configs;
using BenchmarkDotNet.Jobs;
using BenchmarkDotNet.Reports;
using BenchmarkDotNet.Running;
using BenchmarkDotNet.Toolchains.InProcess.NoEmit;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Perfolizer.Horology;
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

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        var job = options.Quick
            ? Job.Dry.WithIterationCount(3).WithInvocationCount(1 << 16).WithUnrollFactor(16)
            : Job.Default.WithIterationCount(20).WithIterationTime(TimeInterval.FromMilliseconds(300));
        var summary = BenchmarkRunner.Run<SpanCost>(
            DefaultConfig.Instance.AddJob(job.WithToolchain(InProcessNoEmitToolchain.Instance)).WithArtifactsPath(folder));
        var (rootTime, rootBytes) = Difference(summary, nameof(RootSpan));
        var (switchTime, _) = Difference(summary, nameof(Switch));
        yield return new("root span start + stop over the bare SDK", "<= +140 ns", FormattableString.Invariant($"{rootTime:+0;-0} ns"), rootTime <= 140);
        yield return new("the same in bytes", "<= +440 B", FormattableString.Invariant($"{rootBytes:+0;-0} B"), rootBytes <= 440);
        yield return new("switch in + out over the bare SDK", "<= +15 ns", FormattableString.Invariant($"{switchTime:+0.0;-0.0} ns"), switchTime <= 15);
    }

    /// <summary>What a benchmark takes more with the profiler.</summary>
    private static (double Nanoseconds, double Bytes) Difference(Summary summary, string benchmark)
    {
        (double Time, double Bytes) Of(bool profiler)
        {
            var report = summary.Reports.Single(report =>
                report.BenchmarkCase.Descriptor.WorkloadMethod.Name == benchmark && (bool)report.BenchmarkCase.Parameters[nameof(Profiler)] == profiler);
            return (report.ResultStatistics!.Median, report.GcStats.GetBytesAllocatedPerOperation(report.BenchmarkCase)!.Value);
        }

        var (with, without) = (Of(true), Of(false));
        return (with.Time - without.Time, with.Bytes - without.Bytes);
    }

    private sealed class Nothing : BaseProcessor<Activity>;
}
