using System.Collections.Concurrent;
using System.Diagnostics;
using System.Net;
using System.Runtime.CompilerServices;

namespace Waits;

/// <summary>Waits that a thread makes by itself: for time, files, children, names, threads of its own, and what ends a wait early.</summary>
static class Alone
{
    const MethodImplOptions Apart = MethodImplOptions.NoInlining;

    public static readonly (string Span, Func<int, int> Work)[] Kinds =
    [
        ("sleeps", Sleeps), ("times out", TimesOut), ("synchronizes", Synchronizes), ("joins", Joins), ("runs a program", RunsAProgram),
        ("resolves", Resolves), ("interrupted", Interrupted), ("canceled", Canceled), ("outer", Outer), ("waits for a task", WaitsForATask),
        ("collects", Collects), ("collectible", Modules.Collectible), ("dynamic", Modules.Dynamic),
    ];

    /// <summary>What the thread does. Waits outside of spans are in no sample.</summary>
    [MethodImpl(Apart)]
    public static void Work((string Span, Func<int, int> Work)[] kinds, Random random)
    {
        while (!Spans.Over)
        {
            var (span, work) = kinds[random.Next(kinds.Length)];
            Spans.One(span, work, random.Next(1_000));
            Outside();
        }
    }

    [MethodImpl(Apart)]
    public static int Outside()
    {
        Thread.Sleep(1);
        return 0;
    }

    [MethodImpl(Apart)]
    static int Sleeps(int number)
    {
        for (var time = 0; time < 8; time++) Thread.Sleep(1);
        return number;
    }

    [MethodImpl(Apart)]
    static int TimesOut(int number)
    {
        using var semaphore = new SemaphoreSlim(0);
        using var first = new ManualResetEvent(false);
        using var second = new AutoResetEvent(false);
        var gate = new object();
        number += semaphore.Wait(1) ? 1 : 0;
        number += first.WaitOne(1) ? 1 : 0;
        number += WaitHandle.WaitAny([first, second], 1);
        lock (gate) number += Monitor.Wait(gate, 1) ? 1 : 0;
        return number;
    }

    [MethodImpl(Apart)]
    static int Synchronizes(int number)
    {
        var path = Path.Combine(AppContext.BaseDirectory, $"synchronized-{Environment.ProcessId}-{Environment.CurrentManagedThreadId}");
        using var file = new FileStream(path, FileMode.Create, FileAccess.ReadWrite, FileShare.None, 1, FileOptions.DeleteOnClose);
        for (var time = 0; time < 5; time++)
        {
            file.Write(new byte[10_000]);
            file.Flush(true);
        }
        file.Position = 0;
        return number + file.Read(new byte[10_000]);
    }

    [MethodImpl(Apart)]
    static int Joins(int number)
    {
        for (var time = 0; time < 3; time++)
        {
            var thread = new Thread(Short);
            thread.UnsafeStart();
            thread.Join();
        }
        return number;
    }

    [MethodImpl(Apart)]
    static void Short() => Spans.One("short thread", Rests, 0);

    [MethodImpl(Apart)]
    static int Rests(int number)
    {
        Thread.Sleep(1);
        return number;
    }

    [MethodImpl(Apart)]
    static int RunsAProgram(int number)
    {
        using var child = Process.Start(new ProcessStartInfo("/bin/true"))!;
        child.WaitForExit();
        return number + child.ExitCode;
    }

    [MethodImpl(Apart)]
    static int Resolves(int number)
    {
        for (var time = 0; time < 3; time++) number += Dns.GetHostAddresses("localhost").Length;
        return number;
    }

    // Whoever waits without an end is interrupted once, so that nothing else is.
    [MethodImpl(Apart)]
    static int Interrupted(int number)
    {
        using var never = new ManualResetEventSlim();
        var gate = new object();
        using var timer = new Timer(Interrupts, Thread.CurrentThread, 1, Timeout.Infinite);
        try
        {
            if (number % 3 == 0) Thread.Sleep(Timeout.Infinite);
            else if (number % 3 == 1) lock (gate) Monitor.Wait(gate);
            else never.Wait();
        }
        catch (ThreadInterruptedException) { number++; }
        Thread.Sleep(1);
        return number;
    }

    // On a thread of the pool, in the same span, as its context flows.
    [MethodImpl(Apart)]
    static void Interrupts(object? thread)
    {
        ((Thread)thread!).Interrupt();
        GC.KeepAlive(thread);
    }

    [MethodImpl(Apart)]
    static int Canceled(int number)
    {
        using var source = new CancellationTokenSource(1);
        using var semaphore = new SemaphoreSlim(0);
        using var never = new ManualResetEventSlim();
        using var queue = new BlockingCollection<int>();
        try
        {
            if (number % 4 == 0) semaphore.Wait(source.Token);
            else if (number % 4 == 1) never.Wait(source.Token);
            else if (number % 4 == 2) number += queue.Take(source.Token);
            else new TaskCompletionSource().Task.Wait(source.Token);
        }
        catch (OperationCanceledException) { number++; }
        Thread.Sleep(1);
        return number;
    }

    [MethodImpl(Apart)]
    static int Outer(int number)
    {
        Thread.Sleep(1);
        number += Spans.One("inner", Inner, number);
        Thread.Sleep(1);
        return number;
    }

    [MethodImpl(Apart)]
    static int Inner(int number)
    {
        Thread.Sleep(1);
        number += Spans.One("innermost", Innermost, number);
        Thread.Sleep(1);
        return number;
    }

    [MethodImpl(Apart)]
    static int Innermost(int number)
    {
        Thread.Sleep(1);
        return number;
    }

    // Which the thread may run itself.
    [MethodImpl(Apart)]
    static int WaitsForATask(int number)
    {
        for (var time = 0; time < 3; time++)
        {
            var task = Task.Run(RestsInATask);
            task.Wait();
        }
        return number;
    }

    [MethodImpl(Apart)]
    static void RestsInATask() => Rests(1);

    [MethodImpl(Apart)]
    static int Collects(int number)
    {
        var kept = new List<object>();
        for (var each = 0; each < 1_000; each++) kept.Add(new byte[each]);
        if (number % 10 == 0) GC.Collect(number % 3, GCCollectionMode.Forced, true, number % 4 == 0);
        GC.KeepAlive(kept);
        return number;
    }
}
