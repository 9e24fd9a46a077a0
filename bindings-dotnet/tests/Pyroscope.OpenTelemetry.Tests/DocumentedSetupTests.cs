using OpenTelemetry;
using OpenTelemetry.Trace;

namespace Pyroscope.Tests;

/// <summary>Programs that were written for Grafana's packages compile as they are.</summary>
public sealed class DocumentedSetupTests : IDisposable
{
    [Fact]
    public void The_documented_configuration_compiles_unchanged_and_runs()
    {
        Pyroscope.Profiler.Instance.Configure(new Pyroscope.ProfilerConfiguration {
            ApplicationName = "order-service", ServerAddress = "http://pyroscope:4040", ProfilingEnabled = true, CpuProfilingEnabled = true,
            AllocationProfilingEnabled = true, ContentionProfilingEnabled = true, SpanProfileLinkingEnabled = true });
        Assert.True(Profiler.Instance.Status.IsRunning, Profiler.Instance.Status.Reason);
    }

    [Fact]
    public void The_processor_is_added_as_documented_and_with_the_newer_argument()
    {
        Profiler.Instance.Configure(new ProfilerConfiguration { ApplicationName = "order-service", ServerAddress = "none" });
        foreach (var processor in new BaseProcessor<System.Diagnostics.Activity>[] { new Pyroscope.OpenTelemetry.PyroscopeSpanProcessor(), new Pyroscope.OpenTelemetry.PyroscopeSpanProcessor(stitchAsyncStacks: true) })
        {
            using var provider = Sdk.CreateTracerProviderBuilder().AddSource(TrueSpan.Source.Name).AddProcessor(processor).Build();
            using var span = TrueSpan.Start("order");
            Assert.Equal(span.Activity!.SpanId.ToHexString(), span.Activity.GetTagItem("pyroscope.profile.id"));
        }
    }

    [Fact]
    public void Every_function_of_the_profiler_is_there()
    {
        var profiler = Pyroscope.Profiler.Instance;
        profiler.SetCPUTrackingEnabled(true);
        profiler.SetAllocationTrackingEnabled(true);
        profiler.SetContentionTrackingEnabled(true);
        profiler.SetExceptionTrackingEnabled(true);
        profiler.SetDynamicTag("key", "value");
        profiler.SetDynamicTags(new Dictionary<string, string> { ["key"] = "value" });
        profiler.ClearDynamicTags();
        profiler.SetSpanContext(1, 2, 3);
#pragma warning disable CS0618 // It is obsolete there too.
        profiler.SetProfileId(0);
#pragma warning restore CS0618
        var labels = Pyroscope.LabelSet.Empty.BuildUpon().Add("key1", "value1").Build();
        var ran = false;
        Pyroscope.LabelsWrapper.Do(labels, () => { ran = true; });
        Assert.True(ran);
    }

    public void Dispose() => Profiler.Instance.Dispose();
}
