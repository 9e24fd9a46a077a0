using System.Diagnostics;
using System.Globalization;
using Pyroscope.OpenTelemetry;
using Pyroscope.Tests;

namespace Pyroscope.Clients;

/// <summary>A program that is profiled while its server misbehaves; see ../README.md for what a client does in any language.</summary>
internal static class Faults
{
    private static readonly ActivitySource Source = new("faults");

    internal static void Run(double patience)
    {
        var report = new Report();
        using var processor = new PyroscopeSpanProcessor();
        // What the SDK's provider does, without the tenth of a second that its own set-up takes in each of fifty programs.
        using var listener = new ActivityListener
        {
            ShouldListenTo = source => source == Source,
            Sample = (ref ActivityCreationOptions<ActivityContext> _) => ActivitySamplingResult.AllDataAndRecorded,
            ActivityStarted = processor.OnStart,
            ActivityStopped = processor.OnEnd,
        };
        ActivitySource.AddActivityListener(listener);
        if (!Profiler.Instance.Configure(new ProfilerConfiguration { Logger = report }))
        {
            throw new InvalidOperationException(Profiler.Instance.Status.Reason);
        }

        var blocked = 0.0;
        for (var time = 0; time < 2; time++)
        {
            using var half = new ManualResetEventSlim();
            var thread = new Thread(() => blocked = Math.Max(blocked, App(half)));
            thread.Start();
            half.Wait();
            // It must not matter to the app that somebody waits for a bad server.
            Profiler.Instance.Flush(TimeSpan.FromSeconds(0.15));
            thread.Join();
            Profiler.Instance.Flush(TimeSpan.FromSeconds(patience));
        }

        var since = Stopwatch.GetTimestamp();
        Profiler.Instance.Dispose();
        report.Print(("blocked", blocked), ("stopped_in", Stopwatch.GetElapsedTime(since).TotalSeconds));
    }

    /// <summary>100 ms of CPU in 100 spans. Seconds in which the thread neither ran nor could.</summary>
    private static double App(ManualResetEventSlim half)
    {
        var before = NeitherRanNorCould();
        for (var number = 0; number < 100; number++)
        {
            if (number == 50)
            {
                half.Set();
            }

            using (Source.StartActivity("work"))
            {
                ThreadTime.Burn(1);
            }
        }

        return NeitherRanNorCould() - before;
    }

    /// <summary>Seconds in which this thread neither ran nor waited for a processor: /proc says how long it did either.</summary>
    private static double NeitherRanNorCould()
    {
        var numbers = File.ReadAllText("/proc/thread-self/schedstat").Split(' ');
        var ranOrWaited = numbers.Take(2).Sum(number => long.Parse(number, CultureInfo.InvariantCulture));
        return Stopwatch.GetElapsedTime(0).TotalSeconds - (ranOrWaited / 1e9);
    }
}
