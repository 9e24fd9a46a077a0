using System.Diagnostics;

namespace Pyroscope.Benchmarks;

/// <summary>Time in the lock profile over the time that threads waited for a lock.</summary>
internal static class ContentionTruth
{
    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        using var recording = new Recording(settings => (settings.CpuProfilingEnabled, settings.ContentionProfilingEnabled) = (false, true));
        if (Profiler.Instance.Status["locks"] is { IsOn: false } off)
        {
            throw new InvalidOperationException(off.Reason);
        }

        var until = DateTime.UtcNow.AddSeconds(options.Of(8, 2));
        var gate = new object();
        long waited = 0;
        var threads = Enumerable.Range(0, 4).Select(number => new Thread(() =>
        {
            using var span = Recording.Source.StartActivity("wait");
            while (DateTime.UtcNow < until)
            {
                var since = Stopwatch.GetTimestamp();
                var taken = Monitor.TryEnter(gate);
                if (!taken)
                {
                    Monitor.Enter(gate);
                    Interlocked.Add(ref waited, (long)Stopwatch.GetElapsedTime(since).TotalNanoseconds);
                }

                Thread.Sleep(1 + (number * 2));
                Monitor.Exit(gate);
                Thread.Sleep(1);
            }
        })).ToArray();
        foreach (var thread in threads)
        {
            thread.Start();
        }

        foreach (var thread in threads)
        {
            thread.Join();
        }

        var seen = recording.Samples("lock").Sum(sample => sample.Values[1]);
        yield return Cell.Within("wait for locks, seen / true", seen / (double)waited, 0.95, 1.05);
    }
}
