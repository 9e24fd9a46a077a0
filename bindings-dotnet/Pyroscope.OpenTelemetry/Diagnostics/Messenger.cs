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
        CatchUp.Now();
        WaitTest.LearnLock();
        ProfilerMessages.Deliver();
    }
}
