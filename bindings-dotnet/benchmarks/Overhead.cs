using System.Text.Json;
using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>
/// CPU time of a fixed amount of work with a profiler over the same without, in one warm process that takes turns: off, CPU
/// time, off, allocations. The two without are the control.
/// </summary>
internal static class Overhead
{
    private static readonly Order[] Orders = Enumerable.Range(0, 200).Select(number =>
        new Order(number, $"customer {number}", Enumerable.Range(0, 20).Select(item => new Item($"item {item}", item * 1.5m, item % 3)).ToArray())).ToArray();

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        Profile cpu = new(true, false), allocations = new(false, true);
        // What is compiled anew while it runs is so by then.
        Slice(null, options.Of(40, 2));
        Slice(cpu, options.Of(10, 2));
        Slice(allocations, options.Of(10, 2));
        var work = options.Of((int)Math.Clamp(20 / Slice(null, 20).Seconds * 1.2, 5, 200), 4);
        var rounds = Enumerable.Range(0, options.Of(32, 3)).Select(round =>
        {
            var off = Slice(null, work);
            var withCpu = Slice(cpu, work);
            var control = Slice(null, work);
            var withAllocations = Slice(allocations, work);
            var without = (off.Seconds + control.Seconds) / 2;
            Row.Say($"round {round + 1}: {off.Seconds:0.000} s, CPU time {withCpu.Seconds:0.000}, control {control.Seconds:0.000}, allocations {withAllocations.Seconds:0.000}");
            return (Control: (control.Seconds / off.Seconds) - 1, Cpu: (withCpu.Seconds / without) - 1, Allocations: (withAllocations.Seconds / without) - 1, off.Rate);
        }).ToArray();
        var (control, cpuMore, allocationsMore) = (
            new Interval(rounds.Select(round => round.Control)), new Interval(rounds.Select(round => round.Cpu)), new Interval(rounds.Select(round => round.Allocations)));
        yield return new("CPU of the same work twice (control)", "", control.Percent, null);
        yield return new("CPU at 100 Hz, 95 % interval", "<= +1 %", cpuMore.Percent + (cpuMore.Low <= 0 ? ", not separable" : ""), cpuMore.High <= 0.01 || cpuMore.Low <= 0);
        yield return new(
            "CPU with allocations on, JSON", "<= +2 %", FormattableString.Invariant($"{allocationsMore.Percent} at {rounds.Average(round => round.Rate) / 1e9:0.0} GB/s"), allocationsMore.Mean <= 0.02);
    }

    /// <summary>CPU seconds of so many portions of work on two threads, and bytes a second that it allocates.</summary>
    private static (double Seconds, double Rate) Slice(Profile? profile, int work)
    {
        using var recording = profile is null ? null : new Recording(settings =>
            (settings.CpuProfilingEnabled, settings.AllocationProfilingEnabled) = (profile.Cpu, profile.Allocations));
        // Each slice begins with the same heap.
        GC.Collect();
        GC.WaitForPendingFinalizers();
        var (bytes, since, before) = (GC.GetTotalAllocatedBytes(true), System.Diagnostics.Stopwatch.GetTimestamp(), ThreadTime.OfAllThreads);
        Parallel.For(0, 2, new ParallelOptions { MaxDegreeOfParallelism = 2 }, _ =>
        {
            using var span = Recording.Source.StartActivity("work");
            for (var portion = 0; portion < work; portion++)
            {
                Portion();
            }
        });
        // What it costs to pass on the samples is part of it.
        if (profile is not null)
        {
            Profiler.Instance.Flush();
        }

        var seconds = ThreadTime.OfAllThreads - before;
        return (seconds, (GC.GetTotalAllocatedBytes(true) - bytes) / System.Diagnostics.Stopwatch.GetElapsedTime(since).TotalSeconds);
    }

    private static void Portion()
    {
        for (var time = 0; time < 10; time++)
        {
            var text = JsonSerializer.Serialize(Orders);
            var read = JsonSerializer.Deserialize<Order[]>(text)!;
            var totals = read.Where(order => order.Number % 3 != 0).Select(order => new { order.Customer, Total = order.Items.Sum(item => item.Price * item.Count) })
                .OrderByDescending(order => order.Total).ToDictionary(order => order.Customer, order => order.Total.ToString(System.Globalization.CultureInfo.InvariantCulture));
            GC.KeepAlive(totals);
        }
    }

    private sealed record Profile(bool Cpu, bool Allocations);

    private sealed record Order(int Number, string Customer, Item[] Items);

    private sealed record Item(string Name, decimal Price, int Count);
}
