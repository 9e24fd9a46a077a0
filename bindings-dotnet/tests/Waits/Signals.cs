using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Waits;

/// <summary>Signals that come to a thread that waits: a handler of C's waits too, one of .NET's runs on a thread of the pool.</summary>
static unsafe class Signals
{
    const MethodImplOptions Apart = MethodImplOptions.NoInlining;
    const int User1 = 10;
    const int User2 = 12;

    static PosixSignalRegistration? registration;
    static long receiver;
    static volatile bool received;

    public static void Prepare()
    {
        registration = PosixSignalRegistration.Create((PosixSignal)User1, Handles);
        if (((delegate* unmanaged<int, int>)Modules.Function("waits_handle"))(User2) != 0) throw new InvalidOperationException("no handler");
    }

    public static void End() => registration?.Dispose();

    /// <summary>What the first thread does. It is there until the second one is gone.</summary>
    [MethodImpl(Apart)]
    public static void Receive(Thread sender)
    {
        receiver = ((delegate* unmanaged<int, long>)Modules.Function("waits_self"))(0);
        sender.Start();
        for (var round = 0; !received; round++)
        {
            using var span = Spans.Source.StartActivity("signaled");
            Signaled(round);
        }
        sender.Join();
    }

    [MethodImpl(Apart)]
    static int Signaled(int round)
    {
        using var semaphore = new SemaphoreSlim(0);
        var gate = new object();
        for (var time = 0; time < 10; time++)
        {
            Thread.Sleep(1);
            lock (gate) round += Monitor.Wait(gate, 1) ? 1 : 0;
            round += semaphore.Wait(1) ? 1 : 0;
            round += ((delegate* unmanaged<long, int>)Modules.Function("waits_sleep"))(100_000);
        }
        return round;
    }

    /// <summary>What the second one does.</summary>
    [MethodImpl(Apart)]
    public static void Send()
    {
        while (!Spans.Over) Spans.One("sends", Sends, 0);
        received = true;
    }

    [MethodImpl(Apart)]
    static int Sends(int number)
    {
        var sleep = (delegate* unmanaged<long, int>)Modules.Function("waits_sleep");
        var signal = (delegate* unmanaged<long, int, int>)Modules.Function("waits_signal");
        for (var time = 0; time < 20; time++)
        {
            number += sleep(300_000);
            number += signal(receiver, time == 0 ? User1 : User2);
        }
        return number;
    }

    // In no span.
    [MethodImpl(Apart)]
    static void Handles(PosixSignalContext context)
    {
        context.Cancel = true;
        Thread.Sleep(1);
    }
}
