using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>The tests' ways to wait, one after the other: time in the profile over time by the program's clock, of each.</summary>
internal static class WaysSeen
{
    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        // Methods are compiled before they are measured.
        Array.ForEach(KnownWaits.All, way => way.Wait());
        // Of CPU time beside waits there are samples enough.
        var closure = Closure.Of(1_000, clock =>
        {
            // So are those that were compiled ahead of time met by the profiler.
            using (Recording.Source.StartActivity("before"))
            {
                Array.ForEach(KnownWaits.All, way => way.Wait());
            }

            // Each on a thread of its own, whose next sample has what it stood in the run queue: that is no other way's.
            foreach (var (wait, _) in KnownWaits.All)
            {
                var thread = new Thread(() => Repeat(clock, wait, options.Of(20, 2)));
                thread.Start();
                thread.Join();
            }
        });
        var shares = closure.True.Select(way => (Name: way.Key, Share: closure.Found.GetValueOrDefault(way.Key) / (double)way.Value)).OrderBy(way => way.Share).ToArray();
        foreach (var (name, share) in shares)
        {
            Row.Say($"{name}: {share:0.000} of {closure.True[name] / 1e6:0.0} ms");
        }

        var (least, most) = (shares[0].Share, shares[^1].Share);
        yield return new(
            "waits: seen of known ones, by way", "0.97-1.03", FormattableString.Invariant($"{least:0.000}-{most:0.000} of {shares.Length} ways"),
            least >= 0.97 && most <= 1.03);
    }

    private static void Repeat(SpanClock clock, Action wait, int times)
    {
        for (var time = 0; time < times; time++)
        {
            using var span = Recording.Source.StartActivity(wait.Method.Name);
            var began = SpanClock.Now;
            wait();
            clock.Add(wait.Method.Name, SpanClock.Now - began);
        }
    }
}
