using System.Runtime.CompilerServices;

namespace Pyroscope.Interop;

/// <summary>Waits that are made to see whether they are seen, and to learn where the runtime waits.</summary>
internal static class WaitTest
{
    private const int Tries = 5;
    private const ulong Millisecond = 1_000_000;

    /// <summary>How long another thread holds a lock for us.</summary>
    private static readonly TimeSpan Held = TimeSpan.FromMilliseconds(3);

    /// <summary>By the number that the engine gives the kind.</summary>
    private static readonly Kind[] Kinds =
    [
        new(static _ => Thread.Sleep(1)),
        new(Enter, isHeld: true),
        new(EnterPlainly, isHeld: true),
        new(static wait => wait.Synchronized(), isHeld: true),
        new(TryEnter, isHeld: true),
        new(WaitForPulse),
        new(static wait => wait.Event.WaitOne(1)),
        new(static wait => WaitHandle.WaitAny([wait.Event, wait.Other], 1)),
        new(static wait => WaitHandle.SignalAndWait(wait.Other, wait.Event, 1, false)),
        new(static wait => wait.Holder!.Join(1), isHeld: true),
    ];

    private static int triesLeft = 20;

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
    /// Learns how waits that a program makes, for locks, handles, threads and time, are told from those for a garbage collection, and sleeps from all
    /// others, unless it is known. Not with the profiler's start, as it has not read the runtime's libraries then. Whether it is known now.
    /// </summary>
    internal static bool Learn()
    {
        // The engine learns of one thread at a time.
        lock (Kinds)
        {
            if (triesLeft > 0 && Engine.MeasuresWaits())
            {
                for (var number = 0u; number < Kinds.Length; number++)
                {
                    Kinds[number].LearnAs(number);
                }

                // Not where no thread could be started, which is told by an exception.
                triesLeft--;
            }

            return Array.TrueForAll(Kinds, static kind => kind.IsKnown);
        }
    }

    // As user code does it when it is warm: without a method of the runtime's between.
    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
    private static void Enter(Wait wait)
    {
        lock (wait)
        {
        }
    }

    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
    private static void EnterPlainly(Wait wait)
    {
        Monitor.Enter(wait);
        Monitor.Exit(wait);
    }

    private static void TryEnter(Wait wait)
    {
        if (Monitor.TryEnter(wait, Timeout.Infinite))
        {
            Monitor.Exit(wait);
        }
    }

    private static void WaitForPulse(Wait wait)
    {
        lock (wait)
        {
            Monitor.Wait(wait, 1);
        }
    }

    /// <summary>What a wait is made with.</summary>
    private sealed class Wait : IDisposable
    {
        internal AutoResetEvent Event { get; } = new(false);

        internal AutoResetEvent Other { get; } = new(false);

        /// <summary>Holds the lock of this object.</summary>
        internal Thread? Holder { get; private set; }

        public void Dispose()
        {
            Holder?.Join();
            Event.Dispose();
            Other.Dispose();
        }

        [MethodImpl(MethodImplOptions.Synchronized | MethodImplOptions.NoInlining)]
        internal void Synchronized()
        {
        }

        internal void Hold()
        {
            using var isHeld = new ManualResetEventSlim();
            Holder = new Thread(() => HoldUntil(isHeld)) { IsBackground = true, Name = "pyroscope-lock" };
            Holder.UnsafeStart();
            isHeld.Wait();
        }

        private void HoldUntil(ManualResetEventSlim isHeld)
        {
            lock (this)
            {
                isHeld.Set();
                Thread.Sleep(Held);
            }
        }
    }

    /// <summary>A kind of wait; <c>isHeld</c>: while another thread holds the object's lock.</summary>
    private sealed class Kind(Action<Wait> wait, bool isHeld = false)
    {
        internal bool IsKnown { get; private set; }

        internal void LearnAs(uint number)
        {
            // What two waits say alike is known; a third, where one of them was held up by something else.
            for (var attempt = 0; attempt < 3 && !IsKnown; attempt++)
            {
                using var with = new Wait();
                if (isHeld)
                {
                    with.Hold();
                }

                var collections = GC.CollectionCount(0);
                _ = HotNative.LearnWait(number, 0);
                wait(with);
                IsKnown = HotNative.LearnWait(number, GC.CollectionCount(0) == collections ? 2u : 1) != 0;
            }
        }
    }
}
