namespace Pyroscope.Benchmarks;

/// <summary>
/// Whether all time of tasks' spans is found: so many flows at once, each with a root span, that await what comes after a random time, with a
/// little CPU time between and now and then a sleep.
/// </summary>
internal static class AwaitsSeen
{
    /// <summary>Each has a hundred samples a second, so together they have them sooner.</summary>
    private const int Processes = 12;

    private const string Flow = "flow";

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        foreach (var flows in new[] { 10, 100, 1_000, 10_000 })
        {
            var runs = Closure.OfProcesses(options.Of(Processes, 2), "flows", options.Of(28, 1), flows);
            yield return Closure.Cell(FormattableString.Invariant($"awaits + CPU time + waits of spans of tasks: {flows:N0} at once"), runs, Flow);
        }
    }

    internal static void Run(SpanClock clock, double seconds, int flows)
    {
        Task.WaitAll(Enumerable.Range(0, flows).Select(_ => Task.Run(() => One(clock, seconds, flows))).ToArray());
    }

    private static async Task One(SpanClock clock, double seconds, int flows)
    {
        var random = new Random();
        // Of few flows nearly each await is a sample, of many one in hundreds; and processors can do all that.
        var longest = (int)Math.Min(Math.Min(4_000, 20 * flows), 1_000 * seconds);
        var mostCpu = Math.Min(500_000, 200_000_000 / flows);
        using var span = Recording.Source.StartActivity(Flow);
        var began = SpanClock.Now;
        for (var until = SpanClock.In(seconds); SpanClock.Now < until;)
        {
            var milliseconds = random.Next(longest / 8, longest);
            if (random.Next(Later.Ways + 1) is var way and < Later.Ways)
            {
                await Later.Comes(way, milliseconds);
            }
            else
            {
                await Later.IsRead(milliseconds);
            }

            Spin(random.Next(mostCpu));
            if (random.Next(50) == 0)
            {
                Thread.Sleep(1);
            }
        }

        clock.Add(Flow, SpanClock.Now - began);
    }

    private static void Spin(int nanoseconds)
    {
        for (var until = SpanClock.Now + nanoseconds; SpanClock.Now < until;)
        {
        }
    }
}
