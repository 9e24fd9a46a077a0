using System.Runtime.CompilerServices;

namespace Pyroscope.Interop;

/// <summary>Waits that are made to see whether they are seen, and to learn where the runtime waits.</summary>
internal static class WaitTest
{
    private const int Tries = 5;
    private const ulong Millisecond = 1_000_000;

    /// <summary>Of seconds between two times in which it is learned.</summary>
    private const int LongestDistance = 60;

    // What the engine is told of a wait.
    private const uint Begins = 0;
    private const uint MayBeOther = 1;
    private const uint IsCertain = 2;

    /// <summary>How long another thread holds a lock for us.</summary>
    private static readonly TimeSpan Held = TimeSpan.FromMilliseconds(3);

    /// <summary>By the number that the engine gives the kind.</summary>
    private static readonly Kind[] Kinds =
    [
        new(static _ => Thread.Sleep(1)),
        new(Enter, isHeld: true),
        new(EnterPlainly, isHeld: true),
        new(static means => means.Synchronized(), isHeld: true),
        new(static _ => Means.StaticSynchronized(), isHeld: true),
        new(TryEnter, isHeld: true),
        new(WaitForPulse),
        new(static means => means.Event.WaitOne(1)),
        new(static means => WaitHandle.WaitAny([means.Event, means.Other], 1)),
        new(static means => WaitHandle.SignalAndWait(means.Other, means.Event, 1, false)),
        new(static means => means.Holder.Join(1)),
    ];

    private static int distance = 1;
    private static int ticksLeft = 1;
    private static int isAtIt;

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
    /// Once a second while a profiler runs: learns on a thread of its own, with growing distance where it does not succeed. Not with the profiler's
    /// start, as it has not read the runtime's libraries then.
    /// </summary>
    internal static void Tick()
    {
        if (--ticksLeft > 0 || AreKnown() || !Engine.MeasuresWaits() || Interlocked.Exchange(ref isAtIt, 1) != 0)
        {
            return;
        }

        distance = Math.Min(2 * distance, LongestDistance);
        ticksLeft = distance;
        var isStarted = false;
        try
        {
            // Not on the pool, which may have few threads, and its work items take a while where the processor is busy.
            new Thread(LearnAndSayNothing) { IsBackground = true, Name = "pyroscope-waits" }.UnsafeStart();
            isStarted = true;
        }
        finally
        {
            if (!isStarted)
            {
                isAtIt = 0;
            }
        }
    }

    /// <summary>
    /// Learns how waits that a program makes, for locks, handles, threads and time, are told from those for a garbage collection, unless it is known.
    /// A tenth of a second. Whether it is known now.
    /// </summary>
    internal static bool Learn()
    {
        // The engine learns of one thread at a time. Here none of the program's waits.
        lock (Kinds)
        {
            using var means = new Means();
            for (var number = 0u; number < Kinds.Length; number++)
            {
                Kinds[number].LearnAs(number, means);
            }

            return AreKnown();
        }
    }

    private static bool AreKnown() => Array.TrueForAll(Kinds, static kind => kind.IsKnown);

    private static void LearnAndSayNothing()
    {
        try
        {
            Learn();
        }
        catch (Exception)
        {
            // No thread, or no memory: it is tried again.
        }
        finally
        {
            isAtIt = 0;
        }
    }

    // As user code does it when it is warm: without a method of the runtime's between.
    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
    private static void Enter(Means means)
    {
        lock (means)
        {
        }
    }

    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
    private static void EnterPlainly(Means means)
    {
        Monitor.Enter(means);
        Monitor.Exit(means);
    }

    private static void TryEnter(Means means)
    {
        if (Monitor.TryEnter(means, Timeout.Infinite))
        {
            Monitor.Exit(means);
        }
    }

    private static void WaitForPulse(Means means)
    {
        lock (means)
        {
            Monitor.Wait(means, 1);
        }
    }

    /// <summary>What waits are made with.</summary>
    private sealed class Means : IDisposable
    {
        private readonly AutoResetEvent asked = new(false);
        private readonly AutoResetEvent holds = new(false);
        private volatile bool isOver;

        internal Means()
        {
            Holder = new Thread(HoldWhenAsked) { IsBackground = true, Name = "pyroscope-lock" };
            Holder.UnsafeStart();
        }

        internal AutoResetEvent Event { get; } = new(false);

        internal AutoResetEvent Other { get; } = new(false);

        /// <summary>Lives as long as this.</summary>
        internal Thread Holder { get; }

        public void Dispose()
        {
            isOver = true;
            asked.Set();
            Holder.Join();
            asked.Dispose();
            holds.Dispose();
            Event.Dispose();
            Other.Dispose();
        }

        [MethodImpl(MethodImplOptions.Synchronized | MethodImplOptions.NoInlining)]
        internal static void StaticSynchronized()
        {
        }

        [MethodImpl(MethodImplOptions.Synchronized | MethodImplOptions.NoInlining)]
        internal void Synchronized()
        {
        }

        /// <summary>From here on another thread has the locks of this object and its class, for a while.</summary>
        internal void Hold()
        {
            asked.Set();
            holds.WaitOne();
        }

        private void HoldWhenAsked()
        {
            while (asked.WaitOne() && !isOver)
            {
                lock (typeof(Means))
                {
                    lock (this)
                    {
                        holds.Set();
                        Thread.Sleep(Held);
                    }
                }
            }
        }
    }

    /// <summary>A kind of wait; <c>isHeld</c>: while another thread holds what is waited for.</summary>
    private sealed class Kind(Action<Means> wait, bool isHeld = false)
    {
        internal bool IsKnown { get; private set; }

        internal void LearnAs(uint number, Means means)
        {
            // What two waits say alike is known; a third, where one of them was held up by something else.
            for (var attempt = 0; attempt < 3 && !IsKnown; attempt++)
            {
                if (isHeld)
                {
                    means.Hold();
                }

                var collections = GC.CollectionCount(0);
                if (HotNative.LearnWait(number, Begins) == 0)
                {
                    // Another copy of the package is at it.
                    continue;
                }

                var ended = MayBeOther;
                try
                {
                    wait(means);
                    ended = GC.CollectionCount(0) == collections ? IsCertain : MayBeOther;
                }
                finally
                {
                    IsKnown = HotNative.LearnWait(number, ended) != 0;
                }
            }
        }
    }
}
