using Pyroscope.Context;

namespace Pyroscope.Tests;

/// <summary>How long nobody runs a span is never made of two periods, whenever profilers end and begin meanwhile.</summary>
public sealed class OffTimeTests : IDisposable
{
    private readonly SpanContext span = new(1, 0, 0);

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

    public void Dispose() => OffTime.End();
}
