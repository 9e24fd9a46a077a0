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

    public void Dispose() => OffTime.End();
}
