using System.Diagnostics;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.Context;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Tests;

/// <summary>How long nobody runs a span is never made of two periods, whenever profilers end and begin meanwhile.</summary>
public sealed class OffTimeTests : IDisposable
{
    private readonly Pyroscope.Context.SpanContext span = new(1, 0, 0);

    [Fact]
    public void Who_comes_with_a_period_that_is_over_changes_nothing()
    {
        var over = OffTime.Begin();
        var current = OffTime.Begin();
        Assert.Equal(0, span.Off.Enter(current));
        Assert.Equal(0, span.Off.Enter(over));
        span.Off.Leave(2, over);
        Assert.Equal(0, span.Off.Current(10));
        Assert.Equal(2, span.Off.Enter(current));
        span.Off.Leave(3, current);
        span.Off.Leave(4, current);
        Assert.Equal(6, span.Off.Current(10));
    }

    [Fact]
    public void The_last_of_those_who_leave_at_once_is_the_one_that_counts()
    {
        const int Rounds = 20_000;
        var current = OffTime.Begin();
        using var together = new Barrier(2);
        var early = 0;
        Parallel.Invoke(() => Leave(0), () => Leave(1));
        Assert.Equal(0, early);

        void Leave(int which)
        {
            for (var round = 0; round < Rounds; round++)
            {
                span.Off.Enter(current);
                together.SignalAndWait();
                span.Off.Leave((2 * round) + which, current);
                together.SignalAndWait();
                if (which == 1 && span.Off.Current(2 * Rounds) != (2 * Rounds) - ((2 * round) + 1))
                {
                    early++;
                }

                together.SignalAndWait();
            }
        }
    }

    [Fact]
    public void A_span_that_is_taken_away_and_comes_back_is_the_same_one()
    {
        using var source = new ActivitySource(nameof(OffTimeTests));
        using var provider = Sdk.CreateTracerProviderBuilder().AddSource(source.Name).AddProcessor(new PyroscopeSpanProcessor(SpanScope.All)).Build();
        using var outer = source.StartActivity("outer")!;
        using var inner = source.StartActivity("inner")!;
        var (ofOuter, ofInner) = (SpanMirror.ContextOf(outer), SpanMirror.ContextOf(inner));
        Assert.NotNull(ofInner);
        Activity.Current = null;
        Activity.Current = null;
        Assert.Null(SpanMirror.ContextOf(inner));
        Activity.Current = inner;
        Assert.Same(ofInner, SpanMirror.ContextOf(inner));
        Activity.Current = null;
        Activity.Current = outer;
        Assert.Same(ofOuter, SpanMirror.ContextOf(outer));
        // What comes meanwhile is not in it.
        Activity.Current = null;
        using (var other = source.StartActivity("other")!)
        {
            Assert.Null(SpanMirror.ContextOf(other)!.Parent);
        }
    }

    public void Dispose() => OffTime.End();
}
