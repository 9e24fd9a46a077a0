using System.Runtime.InteropServices;

namespace Pyroscope.Interop;

/// <summary>What the time of a span went to. The layout is that of the native library, which asserts it too.</summary>
[StructLayout(LayoutKind.Explicit, Size = 224)]
internal unsafe struct Times
{
    /// <summary>How many states there are.</summary>
    internal const int States = 13;

    /// <summary>Nanoseconds by the number of the state.</summary>
    [FieldOffset(0)]
    internal fixed ulong Sums[States];

    // The sums of short waits, which native code alone reads.

    /// <summary>The block of the thread whose time the span's is, 0: none's.</summary>
    [FieldOffset(208)]
    internal nint Owner;

    /// <summary>Since when it is none's, by <see cref="System.Diagnostics.Stopwatch"/>.</summary>
    [FieldOffset(216)]
    internal long FreeSince;
}
