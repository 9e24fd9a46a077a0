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
        Task.WaitAll(Enumerable.Range(0, flows).Select(_ => Task.Run(() => One(clock, seconds))).ToArray());
    }

    private static async Task One(SpanClock clock, double seconds)
    {
        var (random, most) = (new Random(), (int)Math.Min(4_000, 1_000 * seconds));
        using var span = Recording.Source.StartActivity(Flow);
        var began = SpanClock.Now;
        for (var until = SpanClock.In(seconds); SpanClock.Now < until;)
        {
            var milliseconds = random.Next(500, most);
            if (random.Next(Later.Ways + 1) is var way and < Later.Ways)
            {
                await Later.Comes(way, milliseconds);
            }
            else
            {
                await Later.IsRead(milliseconds);
            }

            Thread.SpinWait(random.Next(500));
            if (random.Next(50) == 0)
            {
                Thread.Sleep(1);
            }
        }

        clock.Add(Flow, SpanClock.Now - began);
    }
}
