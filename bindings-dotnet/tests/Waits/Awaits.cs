using System.Net.Sockets;
using System.Runtime.CompilerServices;
using System.Threading.Channels;

namespace Waits;

/// <summary>Async methods that are suspended, canceled, time out and throw, and wait without awaiting.</summary>
static class Awaits
{

    static readonly (string Span, Func<Task<int>> Work)[] kinds =
    [
        ("delays", Delays), ("chain", Chain1), ("several", Several), ("canceled delay", CanceledDelay), ("late", Late), ("throws", Throws),
        ("iterates", Iterates), ("channel", Through), ("receives", Receives), ("sleeps between", SleepsBetween), ("parent", Parent),
    ];

    /// <summary>What each flow does.</summary>
    public static async Task<int> Flow(Random random)
    {
        var sum = 0;
        while (!Spans.Over)
        {
            var (span, work) = kinds[random.Next(kinds.Length)];
            sum += await Spans.OneAwait(span, work);
        }
        return sum;
    }

    public static async Task<int> Warm()
    {
        var sum = 0;
        foreach (var (span, work) in kinds) sum += await Spans.OneAwait(span, work);
        return sum;
    }

    static async Task<int> Delays()
    {
        for (var time = 0; time < 3; time++) await Task.Delay(1);
        return 1;
    }

    static async Task<int> Chain1() => await Chain2() + 1;

    static async Task<int> Chain2()
    {
        var sum = await Chain3();
        Thread.Sleep(1);
        return sum + 1;
    }

    static async Task<int> Chain3()
    {
        await Task.Delay(1);
        await Task.Yield();
        return 1;
    }

    static async Task<int> Several()
    {
        await Task.WhenAll(Task.Delay(1), Task.Delay(2), Task.Run(Rests));
        return 1;
    }

    // On another thread, in the same span.
    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Rests()
    {
        Thread.Sleep(1);
        return 1;
    }

    static async Task<int> CanceledDelay()
    {
        using var source = new CancellationTokenSource(1);
        try { await Task.Delay(Timeout.Infinite, source.Token); }
        catch (OperationCanceledException) { Thread.Sleep(1); }
        return 1;
    }

    static async Task<int> Late()
    {
        try { await new TaskCompletionSource().Task.WaitAsync(TimeSpan.FromMilliseconds(1)); }
        catch (TimeoutException) { await Task.Delay(1); }
        return 1;
    }

    static async Task<int> Throws()
    {
        try { return await Thrower(); }
        catch (FormatException) { Thread.Sleep(1); }
        return 1;
    }

    static async Task<int> Thrower()
    {
        await Task.Delay(1);
        throw new FormatException("expected");
    }

    static async Task<int> Iterates()
    {
        var sum = 0;
        await foreach (var number in Numbers()) sum += number;
        return sum;
    }

    static async IAsyncEnumerable<int> Numbers()
    {
        for (var number = 0; number < 3; number++)
        {
            await Task.Delay(1);
            yield return number;
        }
    }

    // Both sides are in the same span.
    static async Task<int> Through()
    {
        var channel = Channel.CreateBounded<int>(1);
        var produced = Produces(channel.Writer);
        var sum = 0;
        await foreach (var number in channel.Reader.ReadAllAsync()) sum += number;
        return sum + await produced;
    }

    static async Task<int> Produces(ChannelWriter<int> writer)
    {
        for (var number = 0; number < 5; number++)
        {
            await Task.Yield();
            await writer.WriteAsync(number);
        }
        writer.Complete();
        return 1;
    }

    static async Task<int> Receives()
    {
        var sockets = Pair.Connected();
        using var first = sockets[0];
        using var second = sockets[1];
        var received = first.ReceiveAsync(new byte[1]);
        await Task.Delay(1);
        await second.SendAsync(new byte[1]);
        var count = await received;
        using var source = new CancellationTokenSource(1);
        try { count += await first.ReceiveAsync(new byte[1], source.Token); }
        catch (OperationCanceledException) { count++; }
        return count;
    }

    static async Task<int> SleepsBetween()
    {
        await Task.Delay(1);
        Thread.Sleep(1);
        await Task.Yield();
        Thread.Sleep(1);
        return 1;
    }

    static async Task<int> Parent()
    {
        await Task.Delay(1);
        var sum = await Spans.OneAwait("child", Child);
        await Task.Delay(1);
        return sum;
    }

    static async Task<int> Child()
    {
        await Task.Delay(1);
        Thread.Sleep(1);
        return 1;
    }
}
