using System.Runtime.InteropServices;

namespace Pyroscope.Clients;

/// <summary>CPU time of the calling thread, by the kernel's clock.</summary>
internal static partial class ThreadClock
{
    private const int ThreadCpuTime = 3;

    internal static double Seconds
    {
        get
        {
            if (Read(ThreadCpuTime, out var time) != 0)
            {
                throw new InvalidOperationException("clock_gettime failed");
            }

            return time.Seconds + (time.Nanoseconds / 1e9);
        }
    }

    /// <summary>Uses so much of it.</summary>
    internal static void Burn(double seconds)
    {
        for (var until = Seconds + seconds; Seconds < until;)
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
