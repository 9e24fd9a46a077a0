using System.Globalization;
using System.Runtime.InteropServices;

namespace Pyroscope.Tests;

/// <summary>Time in which a span's thread was ready and another one had the processor is seen as that.</summary>
public sealed partial class RunQueueTests
{
    private const int Spans = 20;

    [Fact]
    public void A_processor_that_is_shared()
    {
        using var run = WallTime.Run();
        (double Cpu, double Queued) taken = default;
        using (new Thread(() => taken = BurnBesideAnother()).Do())
        {
        }

        var samples = run.End("wall").Where(sample => sample.Label("span_name") == "request").ToArray();
        Assert.All(samples, sample => Assert.True((sample.Frames[0] == "(waits for a CPU)") == (sample.Label("state") == "run_queue"), WallTime.Said(sample)));
        var seen = WallTime.ByState(samples);
        var late = Pprof.ReadFolder(run.Folder, "process_cpu").SelectMany(profile => profile.Samples).Where(sample => sample.Label("span_name") != "request");
        var said = $"{WallTime.Said(seen)} of {taken}; elsewhere {string.Join("; ", late.Select(sample => $"{sample.Values[^1] / 1e6:F1} ms {string.Join(" < ", sample.Frames.Take(4))}"))}";
        // About half of the time that it burns.
        Assert.True(taken.Queued > 0.3 * taken.Cpu, $"the other thread had nothing: {said}");
        // The time in the queue goes with the CPU samples, which on a busy machine may be late and another span's, so it is judged by these.
        var sampled = seen["cpu"] / taken.Cpu;
        Assert.True(sampled is > 0.6 and < 1.6, said);
        Assert.True(seen.GetValueOrDefault("run_queue") / sampled > 0.7 * taken.Queued, said);
        Assert.True(seen["run_queue"] / sampled < 1.05 * taken.Queued, said);
        var burns = samples.Where(sample => sample.Label("state") == "run_queue" && sample.Frames.Any(frame => frame.EndsWith("ThreadTime.Burn", StringComparison.Ordinal)));
        Assert.True(WallTime.ByState(burns)["run_queue"] > 0.9 * seen["run_queue"], said);
    }

    /// <summary>Milliseconds of what the kernel says of the spans' thread.</summary>
    private static (double Cpu, double Queued) BurnBesideAnother()
    {
        var processor = CurrentProcessor();
        StayOn(processor);
        var ends = false;
        var other = new Thread(() =>
        {
            StayOn(processor);
            while (!Volatile.Read(ref ends))
            {
                Thread.SpinWait(50);
            }
        });
        using (other.Do())
        {
            // The first sample says from when on a thread's time is known, and it is asked when that is read.
            using (TrueSpan.Start("before"))
            {
                ThreadTime.Burn(200);
                Profiler.Instance.Flush(TimeSpan.FromSeconds(10));
            }

            var (cpu, queued) = (ThreadTime.Seconds, Queued());
            for (var span = 0; span < Spans; span++)
            {
                using (TrueSpan.Start("request"))
                {
                    ThreadTime.Burn(50);
                }
            }

            var taken = ((ThreadTime.Seconds - cpu) * 1e3, Queued() - queued);
            Volatile.Write(ref ends, true);
            // Nobody can ask for the queue of a thread that has ended.
            Profiler.Instance.Flush(TimeSpan.FromSeconds(10));
            return taken;
        }
    }

    /// <summary>Milliseconds in which the calling thread was ready and did not run.</summary>
    private static double Queued() => double.Parse(File.ReadAllText("/proc/thread-self/schedstat").Split(' ')[1], CultureInfo.InvariantCulture) / 1e6;

    private static void StayOn(int processor)
    {
        var set = new ulong[16];
        set[processor / 64] = 1ul << (processor % 64);
        Assert.Equal(0, SetAffinity(0, set.Length * sizeof(ulong), set));
    }

    [LibraryImport("libc", EntryPoint = "sched_getcpu")]
    private static partial int CurrentProcessor();

    [LibraryImport("libc", EntryPoint = "sched_setaffinity")]
    private static partial int SetAffinity(int thread, nint size, ulong[] set);
}
