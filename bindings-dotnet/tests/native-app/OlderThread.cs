using System.Runtime.CompilerServices;

namespace NativeApp;

/// A thread that is older than the profiler, of which it is never told: it is in no span.
static class OlderThread
{
    const int Arrays = 10_000, Bytes = 20_024, Waits = 30;
    static readonly ManualResetEventSlim profiled = new();
    static readonly object gate = new();
    static Thread? thread;
    static object? kept;

    public static void Make()
    {
        thread = new Thread(() => { profiled.Wait(); Allocates(); WaitsForLocks(); });
        thread.Start();
    }

    public static void Run()
    {
        profiled.Set();
        while (thread!.IsAlive) { lock (gate) Thread.Sleep(10); Thread.Sleep(1); }
        Console.WriteLine($"true bytes {Arrays * Bytes} waits {Waits}");
    }

    [MethodImpl(MethodImplOptions.NoInlining)] static void Allocates() { for (var i = 0; i < Arrays; i++) kept = new byte[Bytes - 24]; }

    [MethodImpl(MethodImplOptions.NoInlining)] static void WaitsForLocks()
    {
        for (var waits = 0; waits < Waits; Thread.Sleep(1))
        {
            var contended = Monitor.LockContentionCount;
            lock (gate) { }
            if (Monitor.LockContentionCount != contended) waits++;
        }
    }
}
