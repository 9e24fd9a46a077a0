using System.Runtime.CompilerServices;

namespace Pyroscope.Interop;

/// <summary>Waits that are made to see whether they are seen, and to learn how the runtime waits.</summary>
internal static class WaitTest
{
    private const int Tries = 5;
    private const ulong Millisecond = 1_000_000;

    /// <summary>How long another thread holds a lock for us.</summary>
    private static readonly TimeSpan Held = TimeSpan.FromMilliseconds(3);

    private static int triesLeft = 20;
    private static bool isKnown;

    /// <summary>Whether waits are measured; where one of a millisecond is not seen they are not any more. A millisecond or two.</summary>
    internal static bool Passes()
    {
        if (!Engine.MeasuresWaits())
        {
            return false;
        }

        var (isSeen, isInterrupted) = (false, false);
        for (var attempt = 0; attempt < Tries && !isSeen; attempt++)
        {
            var before = Engine.WaitedNanoseconds();
            try
            {
                Thread.Sleep(1);
            }
            catch (ThreadInterruptedException)
            {
                isInterrupted = true;
            }

            isSeen = Engine.WaitedNanoseconds() - before >= Millisecond * 9 / 10;
        }

        if (isInterrupted)
        {
            // The program's, for its own next wait.
            Thread.CurrentThread.Interrupt();
        }

        if (!isSeen)
        {
            // Unless none can be seen yet.
            Engine.MeasureNoWaits();
        }

        return isSeen || Engine.MeasuresWaits();
    }

    /// <summary>
    /// Learns how waits for the lock of an object are told from those for a garbage collection, and sleeps from both, unless it is known. Not with
    /// the profiler's start, as it has not read the runtime's libraries then. Whether it is known now.
    /// </summary>
    internal static bool LearnLock()
    {
        if (!isKnown && triesLeft > 0 && Engine.MeasuresWaits())
        {
            isKnown = KnowsAfterAFew(LearnSleep) & KnowsAfterAFew(LearnOneLock);
            // Not where no thread could be started, which is told by an exception.
            triesLeft--;
        }

        return isKnown;
    }

    /// <summary>What two waits say alike is known; a third, where one of them was held up by something else.</summary>
    private static bool KnowsAfterAFew(Func<bool> wait) => wait() || wait() || wait();

    private static bool LearnSleep()
    {
        var collections = GC.CollectionCount(0);
        _ = HotNative.LearnSleep(0);
        Thread.Sleep(1);
        return HotNative.LearnSleep(GC.CollectionCount(0) == collections ? 2u : 1) != 0;
    }

    private static bool LearnOneLock()
    {
        var gate = new object();
        using var isHeld = new ManualResetEventSlim();
        var holder = new Thread(() => Hold(gate, isHeld)) { IsBackground = true, Name = "pyroscope-lock" };
        holder.UnsafeStart();
        isHeld.Wait();
        var collections = GC.CollectionCount(0);
        var knows = WaitFor(gate, () => GC.CollectionCount(0) == collections);
        holder.Join();
        return knows;
    }

    private static void Hold(object gate, ManualResetEventSlim isHeld)
    {
        lock (gate)
        {
            isHeld.Set();
            Thread.Sleep(Held);
        }
    }

    // As user code does it when it is warm: without a method of the runtime's between.
    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
    private static bool WaitFor(object gate, Func<bool> wasAlone)
    {
        Engine.LearnLock();
        lock (gate)
        {
        }

        return Engine.LearnedLock(wasAlone());
    }
}
