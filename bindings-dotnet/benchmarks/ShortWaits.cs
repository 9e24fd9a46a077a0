using System.Net.Sockets;

namespace Pyroscope.Benchmarks;

/// <summary>
/// Very many waits of 0.1 to 5 ms (sleeps: of 1 to 5), of which most are no sample and one stands for many: by kind, what the profile has over
/// what the program measured around the calls. A thread for each kind, whose spans have fifty waits each; what it waits for comes from threads
/// in no span.
/// </summary>
internal static class ShortWaits
{
    /// <summary>Each has a hundred samples a second, so together they have them sooner.</summary>
    private const int Processes = 12;

    private const int WaitsOfSpan = 50;

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        var runs = Closure.OfProcesses(options.Of(Processes, 2), "short waits", options.Of(80, 2), 0);
        return new[] { "io", "lock", "sleep" }.Select(kind => Closure.Cell($"profile / measured of waits of 0.1 to 5 ms: {kind}", runs, kind));
    }

    internal static void Run(SpanClock clock, double seconds)
    {
        var until = SpanClock.In(seconds);
        var isOver = false;
        bool IsOver() => Volatile.Read(ref isOver);
        using var sockets = new SocketPair();
        var (gates, turn, received) = (new[] { new object(), new object() }, 0, new byte[1]);
        using var isHeld = new ManualResetEventSlim();
        Thread[] others = [new(() => Send(sockets.Other, IsOver)), new(() => Hold(gates, isHeld, IsOver))];
        Array.ForEach(others, thread => thread.Start());
        isHeld.Wait();
        var random = new Random();
        Thread[] waits =
        [
            new(() => Wait(clock, "io", until, () => sockets.One.Receive(received))),
            new(() => Wait(clock, "lock", until, () =>
            {
                lock (gates[turn ^= 1])
                {
                }
            })),
            new(() => Wait(clock, "sleep", until, () => Thread.Sleep(random.Next(1, 6)))),
        ];
        Array.ForEach(waits, thread => thread.Start());
        Array.ForEach(waits, thread => thread.Join());
        Volatile.Write(ref isOver, true);
        Array.ForEach(others, thread => thread.Join());
    }

    private static void Wait(SpanClock clock, string kind, long until, Action wait)
    {
        var sum = 0L;
        while (SpanClock.Now < until)
        {
            using var span = Recording.Source.StartActivity(kind);
            for (var time = 0; time < WaitsOfSpan; time++)
            {
                var began = SpanClock.Now;
                wait();
                sum += SpanClock.Now - began;
            }
        }

        clock.Add(kind, sum);
    }

    private static void Send(Socket socket, Func<bool> isOver)
    {
        for (var random = new Random(); !isOver(); socket.Send([1]))
        {
            Rest(random);
        }
    }

    /// <summary>Always has one of both locks, and takes the other one before it gives this one away: who wants one after the other waits for each.</summary>
    private static void Hold(object[] gates, ManualResetEventSlim isHeld, Func<bool> isOver)
    {
        var turn = 1;
        Monitor.Enter(gates[turn]);
        isHeld.Set();
        for (var random = new Random(); !isOver(); turn ^= 1)
        {
            Rest(random);
            Monitor.Enter(gates[turn ^ 1]);
            Monitor.Exit(gates[turn]);
        }

        Monitor.Exit(gates[turn]);
    }

    /// <summary>As often of 0.1 to 0.5 ms as of 1 to 5.</summary>
    private static void Rest(Random random) => ShortSleep.For(100 * Math.Pow(50, random.NextDouble()));
}
