using System.Collections.Concurrent;
using System.Diagnostics;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Tests;

/// <summary>What an exporter sees of a span.</summary>
internal sealed record EndedSpan(double Milliseconds, Dictionary<string, double> Times)
{
    /// <summary>In all no more than the span took, but for what the system's clock is corrected by meanwhile.</summary>
    internal bool IsWithin => Times.Values.Sum() <= Milliseconds * 1.001;

    internal double this[string state] => Times.GetValueOrDefault($"pyroscope.time.{state}");

    public override string ToString() => $"{Milliseconds:F1} ms: {string.Join(", ", Times.Select(pair => $"{pair.Key} {pair.Value:F3}"))}";
}

/// <summary>A profiler and a processor that says times, and an exporter after it.</summary>
internal sealed class TimeAttributesRun : IDisposable
{
    private readonly ConcurrentDictionary<string, EndedSpan> ended = new();
    private readonly TracerProvider provider;

    internal TimeAttributesRun(SpanScope scope, bool? tells = true, Action<ProfilerConfiguration>? configure = null)
    {
        var configuration = new ProfilerConfiguration { ApplicationName = "tests", ServerAddress = "none", WallTimeProfilingEnabled = true };
        configure?.Invoke(configuration);
        Assert.True(Profiler.Instance.Configure(configuration), Profiler.Instance.Status.Reason);
        Profiler.Instance.Flush(TimeSpan.FromSeconds(10));
        Interop.WaitTest.Learn();
        provider = Sdk.CreateTracerProviderBuilder().AddSource(TrueSpan.Source.Name)
            .AddProcessor(tells is { } tell ? new PyroscopeSpanProcessor(scope) { TimeAttributes = tell } : new PyroscopeSpanProcessor(scope))
            .AddProcessor(new Exporter(ended))
            .Build()!;
        // Methods are compiled before they are measured.
        using (TrueSpan.Start("before"))
        {
            Thread.Sleep(1);
        }
    }

    internal EndedSpan Of(string span) => ended[span];

    public void Dispose()
    {
        provider.Dispose();
        Profiler.Instance.Dispose();
    }

    private sealed class Exporter(ConcurrentDictionary<string, EndedSpan> ended) : BaseProcessor<Activity>
    {
        public override void OnEnd(Activity data)
        {
            var times = data.TagObjects.Where(tag => tag.Key.StartsWith("pyroscope.time.", StringComparison.Ordinal)).ToArray();
            Assert.All(times, tag => Assert.True(tag.Value is > 0L));
            ended[data.DisplayName] = new EndedSpan(data.Duration.TotalMilliseconds, times.ToDictionary(tag => tag.Key, tag => (long)tag.Value! / 1e6));
        }
    }
}
