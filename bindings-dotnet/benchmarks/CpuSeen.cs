using System.Runtime.InteropServices;
using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>CPU time in profiles over the CPU time that the process used, by the kernel's clock.</summary>
internal static unsafe partial class CpuSeen
{
    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        var part = options.Of(40, 1);
        yield return Ratio("one thread", 100, () => Threads(1, 1, part * 100));
        yield return Ratio("8 threads", 100, () => Threads(8, 8, part * 25));
        // A thread of less than a period has one sample or none: more of both, so that chance is about 1 %.
        yield return Ratio("threads of 20 ms", 250, () => Threads(part * 10, 4, 20));
        yield return Ratio("threads of 5 ms", 250, () => Threads(part * 50, 4, 5));
        yield return Ratio("threads of 1 ms", 250, () => Threads(part * 400, 4, 1));
        yield return Ratio("threads of 5 ms outside of any span", 250, () => Threads(part * 50, 4, 5, null));
        yield return Ratio("in native code", 100, () => AtOnce(2, () => Native(part * 50)));
    }

    private static Cell Ratio(string what, int rate, Action work)
    {
        using var recording = new Recording(settings => settings.SampleRate = rate);
        work();
        var seen = recording.Samples("process_cpu").Sum(sample => sample.Values[0]) / 1e9;
        Row.Say($"{what}: {seen:0.000} of {recording.BurntSeconds:0.000} s");
        return Cell.Within($"CPU seen / burnt: {what}", seen / recording.BurntSeconds, 0.97, 1.03);
    }

    /// <summary>Threads that burn so much each, some at a time.</summary>
    private static void Threads(int count, int atOnce, int milliseconds, string? span = "burn")
    {
        using var root = span is null ? null : Recording.Source.StartActivity(span);
        for (var made = 0; made < count; made += atOnce)
        {
            AtOnce(atOnce, () => Burn(milliseconds));
        }
    }

    private static void AtOnce(int count, ThreadStart work)
    {
        var threads = Enumerable.Range(0, count).Select(_ => new Thread(work)).ToArray();
        foreach (var thread in threads)
        {
            thread.Start();
        }

        foreach (var thread in threads)
        {
            thread.Join();
        }
    }

    // Until the thread has used so much, its start included: that is much of a millisecond.
    private static void Burn(int milliseconds)
    {
        while (ThreadTime.Seconds < milliseconds / 1e3)
        {
            Thread.SpinWait(50);
        }
    }

    private static void Native(int milliseconds)
    {
        const int Size = 1 << 20;
        var memory = NativeMemory.Alloc(Size);
        while (ThreadTime.Seconds < milliseconds / 1e3)
        {
            Fill(memory, 1, Size);
        }

        NativeMemory.Free(memory);
    }

    [LibraryImport("libc", EntryPoint = "memset")]
    private static partial void* Fill(void* memory, int value, nuint size);
}
