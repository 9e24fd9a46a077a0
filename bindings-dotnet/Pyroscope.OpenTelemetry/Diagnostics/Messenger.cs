using Pyroscope.Context;
using Pyroscope.Interop;

namespace Pyroscope;

/// <summary>What comes each second while a profiler runs.</summary>
internal static class Messenger
{
    private static readonly TimeSpan BetweenMessages = TimeSpan.FromSeconds(1);

    /// <summary>Goes on until it is disposed of.</summary>
    internal static Timer Start()
    {
        // Outside of any span, whoever starts the profiler.
        using (ExecutionContext.SuppressFlow())
        {
            return new Timer(static _ => Tick(), null, BetweenMessages, BetweenMessages);
        }
    }

    private static void Tick()
    {
        // On a thread of the pool, where an exception ends the process: at its limit of threads or of memory each of these may throw one.
        Try(CatchUp.Now);
        Try(CatchUp.Late);
        Try(WaitTest.Tick);
        Try(SpanTimes.TellOfMissed);
        Try(ProfilerMessages.Deliver);
    }

    private static void Try(Action action)
    {
        try
        {
            action();
        }
        catch (Exception)
        {
            // The next second tries again.
        }
    }
}
