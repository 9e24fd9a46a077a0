using System.Threading.Channels;

namespace Pyroscope.Benchmarks;

/// <summary>What async methods await: it comes after so many milliseconds, from a timer that is in no span.</summary>
internal static class Later
{
    internal const int Ways = 3;

    /// <summary>One of so many ways.</summary>
    internal static Task Comes(int way, int milliseconds)
    {
        switch (way)
        {
            case 0:
                return Task.Delay(milliseconds);
            case 1:
                var source = new TaskCompletionSource();
                After(milliseconds, source.SetResult);
                return source.Task;
            default:
                var semaphore = new SemaphoreSlim(0);
                After(milliseconds, () => semaphore.Release());
                return semaphore.WaitAsync();
        }
    }

    /// <summary>From a channel, which makes no task.</summary>
    internal static ValueTask<int> IsRead(int milliseconds)
    {
        var channel = Channel.CreateUnbounded<int>();
        After(milliseconds, () => channel.Writer.TryWrite(1));
        return channel.Reader.ReadAsync();
    }

    private static void After(int milliseconds, Action action)
    {
        using (ExecutionContext.SuppressFlow())
        {
            // One that is its own state is there until it is due.
            new Timer(timer =>
            {
                action();
                ((Timer)timer!).Dispose();
            }).Change(milliseconds, Timeout.Infinite);
        }
    }
}
