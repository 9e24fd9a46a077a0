using System.Runtime.InteropServices;

namespace Pyroscope.Tests;

/// <summary>CPU time of the calling thread, and of all, by the kernel's clocks: wall time says little on a busy machine.</summary>
internal static partial class ThreadTime
{
    private const int ProcessCpuTime = 2;
    private const int ThreadCpuTime = 3;

    internal static double Seconds => SecondsOf(ThreadCpuTime);

    internal static double OfAllThreads => SecondsOf(ProcessCpuTime);

    /// <summary>Uses so much of it.</summary>
    internal static void Burn(int milliseconds)
    {
        for (var until = Seconds + (milliseconds / 1e3); Seconds < until;)
        {
            Thread.SpinWait(50);
        }
    }

    private static double SecondsOf(int clock) =>
        Read(clock, out var time) == 0
            ? time.Seconds + (time.Nanoseconds / 1e9)
            : throw new InvalidOperationException($"clock {clock} cannot be read");

    [LibraryImport("libc", EntryPoint = "clock_gettime")]
    private static partial int Read(int clock, out Time time);

    [StructLayout(LayoutKind.Sequential)]
    private struct Time
    {
        internal long Seconds;
        internal long Nanoseconds;
    }
}
