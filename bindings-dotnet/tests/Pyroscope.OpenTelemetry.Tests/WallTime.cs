namespace Pyroscope.Tests;

/// <summary>Profiles of wall time.</summary>
internal static class WallTime
{
    /// <summary>A run that measures it and knows the process: its threads, its libraries, and how the runtime waits for locks.</summary>
    internal static ProfiledRun Run(Pyroscope.OpenTelemetry.SpanScope scope = Pyroscope.OpenTelemetry.SpanScope.All)
    {
        var run = new ProfiledRun(scope, configuration => configuration.WallTimeProfilingEnabled = true);
        // A whole tick of the profiler's thread.
        Profiler.Instance.Flush(TimeSpan.FromSeconds(10));
        Interop.WaitTest.Learn();
        return run;
    }

    /// <summary>Milliseconds by state.</summary>
    internal static Dictionary<string, double> ByState(IEnumerable<PprofSample> samples) =>
        samples.GroupBy(sample => sample.Label("state")!).ToDictionary(group => group.Key, group => group.Sum(sample => sample.Values[1]) / 1e6);

    /// <summary>Milliseconds of sleep, if there are some, with what late samples of CPU time within it took off it: each a period, of 10 ms.</summary>
    internal static double OfSleep(IEnumerable<PprofSample> samples)
    {
        var byState = ByState(samples);
        return byState.TryGetValue("sleep", out var slept) ? slept + Math.Min(20, byState.GetValueOrDefault("cpu")) : 0;
    }

    internal static string Said(Dictionary<string, double> byState) => string.Join(", ", byState.Select(pair => $"{pair.Key} {pair.Value:F1} ms"));

    internal static string Said(PprofSample sample) => $"{sample.Values[1] / 1e6:F1} ms, {sample.Label("state")}: " + string.Join(" < ", sample.Frames);

    /// <summary>After a run: what was taken is somewhere.</summary>
    internal static void AssertAddsUp()
    {
        var stats = Profiler.Instance.Stats;
        Assert.Equal(stats.Taken.Weight, stats.DroppedRing.Weight + stats.DroppedWindow.Weight + stats.Pending.Weight + stats.Encoded.Weight);
        Assert.Equal(stats.Encoded.Weight, stats.Queued.Weight + stats.Uploaded.Weight + stats.Refused.Weight + stats.DroppedQueue.Weight + stats.DroppedOld.Weight + stats.Discarded.Weight);
        var waits = new[] { stats.WaitsSampled, stats.WaitsOutside, stats.WaitsPending, stats.WaitsDroppedRing, stats.WaitsDroppedBusy, stats.WaitsDroppedThread };
        Assert.Equal(stats.WaitsTaken, new Tally((ulong)waits.Sum(tally => (long)tally.Samples), (ulong)waits.Sum(tally => (long)tally.Weight)));
        Assert.NotEqual(0ul, stats.WaitsSampled.Samples);
    }

    /// <summary>Starts a thread; its disposal waits for its end.</summary>
    internal static Started Do(this Thread thread)
    {
        thread.UnsafeStart();
        return new Started(thread);
    }

    internal sealed class Started(Thread thread) : IDisposable
    {
        public void Dispose() => thread.Join();
    }
}
