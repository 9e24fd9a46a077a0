using System.Runtime.InteropServices;

namespace Pyroscope.Tests;

/// <summary>CPU time of the calling thread, by the kernel's clock: wall time says little on a busy machine.</summary>
internal static partial class ThreadTime
{
    private const int ThreadCpuTime = 3;

    internal static double Seconds
    {
        get
        {
            if (Read(ThreadCpuTime, out var time) != 0)
            {
                throw new InvalidOperationException("the thread's clock cannot be read");
            }

            return time.Seconds + (time.Nanoseconds / 1e9);
        }
    }

    /// <summary>Uses so much of it.</summary>
    internal static void Burn(int milliseconds)
    {
        for (var until = Seconds + (milliseconds / 1e3); Seconds < until;)
        {
            Thread.SpinWait(50);
        }
    }

    [LibraryImport("libc", EntryPoint = "clock_gettime")]
    private static partial int Read(int clock, out Time time);

    [StructLayout(LayoutKind.Sequential)]
    private struct Time
    {
        internal long Seconds;
        internal long Nanoseconds;
    }
}
