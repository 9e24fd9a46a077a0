using System.Runtime.InteropServices;

namespace Pyroscope.Benchmarks;

/// <summary>Sleeps in microseconds: a timer of .NET's counts milliseconds.</summary>
internal static partial class ShortSleep
{
    internal static void For(double microseconds) => _ = Sleep((uint)microseconds);

    [LibraryImport("libc", EntryPoint = "usleep")]
    private static partial int Sleep(uint microseconds);
}
