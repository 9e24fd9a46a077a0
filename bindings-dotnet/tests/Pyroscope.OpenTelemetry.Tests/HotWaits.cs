using System.Collections.Concurrent;
using System.Runtime.CompilerServices;

namespace Pyroscope.Tests;

/// <summary>Ways to wait for a millisecond, whose names begin with the state. The runtime's methods, not those here, are what becomes hot.</summary>
internal sealed class HotWaits : IDisposable
{
    // Otherwise it waits for helpers, too.
    private static readonly ParallelOptions Alone = new() { MaxDegreeOfParallelism = 1 };

    private readonly object gate = new();
    private readonly object held = new();
    private readonly Busy busy = new();
    private readonly AutoResetEvent first = new(false);
    private readonly AutoResetEvent second = new(false);
    private readonly AutoResetEvent signaled = new(false);
    private readonly AutoResetEvent asked = new(false);
    private readonly AutoResetEvent holdsNow = new(false);
    private readonly Mutex mutex = new();
    private readonly Mutex named = new(false, $"pyroscope-tests-{Environment.ProcessId}");
    private readonly ManualResetEventSlim slim = new();
    private readonly SemaphoreSlim semaphore = new(0);
    private readonly CountdownEvent countdown = new(1);
    private readonly BlockingCollection<int> collection = [];
    private readonly ReaderWriterLockSlim readers = new();
    private readonly ManualResetEvent end = new(false);
    private readonly Thread holder;
    private readonly Thread busyHolder;

    internal HotWaits()
    {
        using var holds = new ManualResetEvent(false);
        holder = new Thread(() =>
        {
            lock (held)
            {
                mutex.WaitOne();
                named.WaitOne();
                readers.EnterWriteLock();
                holds.Set();
                end.WaitOne();
                readers.ExitWriteLock();
                named.ReleaseMutex();
                mutex.ReleaseMutex();
            }
        });
        holder.UnsafeStart();
        holds.WaitOne();
        busyHolder = new Thread(HoldWhenAsked);
        busyHolder.UnsafeStart();
        All =
        [
            ("sleep for a time", Nothing, () => Thread.Sleep(1)),
            ("lock of an object", Nothing, () => Monitor.TryEnter(held, 1)),
            ("lock of what another holds", Ask, () => { lock (busy) { } }),
            ("lock of what is entered", Ask, EnterPlainly),
            ("lock of a synchronized method", Ask, busy.Synchronized),
            ("lock of a synchronized class", Ask, Busy.StaticSynchronized),
            ("sleep in a loop of tasks", Nothing, () => Parallel.For(0, 1, Alone, static _ => Thread.Sleep(1))),
            ("lock until pulsed", Nothing, WaitUntilPulsed),
            ("lock of an event", Nothing, () => first.WaitOne(1)),
            ("lock of a mutex", Nothing, () => mutex.WaitOne(1)),
            ("lock of a named mutex", Nothing, () => named.WaitOne(1)),
            ("lock of any event", Nothing, () => WaitHandle.WaitAny([first, second], 1)),
            ("lock after a signal", Nothing, () => WaitHandle.SignalAndWait(signaled, first, 1, false)),
            ("lock until a thread ends", Nothing, () => holder.Join(1)),
            ("lock of a slim event", Nothing, () => slim.Wait(1)),
            ("lock of a semaphore", Nothing, () => semaphore.Wait(1)),
            ("lock of a countdown", Nothing, () => countdown.Wait(1)),
            ("lock of a collection", Nothing, () => collection.TryTake(out _, 1)),
            ("lock of readers", Nothing, () => readers.TryEnterReadLock(1)),
            ("lock of a task", Nothing, () => Task.Delay(1).Wait()),
            ("lock of a task's result", Nothing, () => Task.Delay(1).ContinueWith(static _ => 1).GetAwaiter().GetResult()),
            ("lock of tasks", Nothing, () => Task.WaitAll(Task.Delay(1), Task.Delay(1))),
        ];
    }

    /// <summary>With what is done before, outside of the wait's span.</summary>
    internal (string Name, Action Prepare, Action Wait)[] All { get; }

    public void Dispose()
    {
        end.Set();
        holder.Join();
        asked.Set();
        busyHolder.Join();
        foreach (var each in new IDisposable[] { first, second, signaled, asked, holdsNow, mutex, named, slim, semaphore, countdown, collection, readers, end })
        {
            each.Dispose();
        }
    }

    private static void Nothing()
    {
    }

    private void Ask()
    {
        asked.Set();
        holdsNow.WaitOne();
    }

    private void HoldWhenAsked()
    {
        while (asked.WaitOne() && !end.WaitOne(0))
        {
            lock (typeof(Busy))
            lock (busy)
            {
                holdsNow.Set();
                Thread.Sleep(1);
            }
        }
    }

    private void EnterPlainly()
    {
        Monitor.Enter(busy);
        Monitor.Exit(busy);
    }

    private void WaitUntilPulsed()
    {
        lock (gate)
        {
            Monitor.Wait(gate, 1);
        }
    }

    private sealed class Busy
    {
        [MethodImpl(MethodImplOptions.Synchronized)]
        internal static void StaticSynchronized()
        {
        }

        [MethodImpl(MethodImplOptions.Synchronized)]
        internal void Synchronized()
        {
        }
    }
}
