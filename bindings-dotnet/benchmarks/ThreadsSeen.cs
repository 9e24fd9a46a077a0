using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>Whether all time of spans is found: four threads that run, sleep, and wait for sockets and for each other, all in spans.</summary>
internal static class ThreadsSeen
{
    private const int Threads = 4;
    private const string Request = "request";

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        // At 1,000 Hz the sums of CPU time are known to a percent after some seconds, and of so few waits nearly each is a sample.
        var runs = Enumerable.Range(0, options.Of(5, 2)).Select(run => Closure.Of(1_000, clock => Run(clock, run, options.Of(6, 1)))).ToArray();
        yield return Closure.Cell("waits + CPU time + run queue of spans of four threads", runs, Request);
    }

    private static void Run(SpanClock clock, int run, double seconds)
    {
        var until = SpanClock.In(seconds);
        var shared = new object();
        var threads = Enumerable.Range(0, Threads).Select(number => new Thread(() => Serve(clock, shared, new Random((run * Threads) + number), until))).ToArray();
        Array.ForEach(threads, thread => thread.Start());
        Array.ForEach(threads, thread => thread.Join());
    }

    private static void Serve(SpanClock clock, object shared, Random random, long until)
    {
        using var answers = new Answers();
        while (SpanClock.Now < until)
        {
            using var span = Recording.Source.StartActivity(Request);
            var began = SpanClock.Now;
            ThreadTime.Burn(random.Next(5, 30));
            lock (shared)
            {
                ThreadTime.Burn(random.Next(1, 10));
            }

            answers.Ask(random.Next(5, 60));
            answers.Receive();
            Thread.Sleep(random.Next(5, 60));
            clock.Add(Request, SpanClock.Now - began);
        }
    }

    /// <summary>A socket to which another thread sends something so many milliseconds after it was asked.</summary>
    private sealed class Answers : IDisposable
    {
        private readonly SocketPair sockets = new();
        private readonly Thread thread;

        internal Answers()
        {
            thread = new Thread(() =>
            {
                for (var asked = new byte[1]; sockets.Other.Receive(asked) > 0; sockets.Other.Send(asked))
                {
                    ShortSleep.For(asked[0] * 1_000);
                }
            });
            thread.Start();
        }

        public void Dispose()
        {
            sockets.One.Dispose();
            thread.Join();
            sockets.Dispose();
        }

        internal void Ask(int milliseconds) => sockets.One.Send([(byte)milliseconds]);

        internal void Receive() => sockets.One.Receive(new byte[1]);
    }
}
