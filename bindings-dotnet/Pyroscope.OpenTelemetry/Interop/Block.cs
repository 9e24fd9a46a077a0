using System.Runtime.InteropServices;

namespace Pyroscope.Interop;

/// <summary>
/// What a thread is in at this instant. The thread itself writes; the signal handler on that thread reads.
/// The layout is that of the native library, which asserts it too.
/// </summary>
[StructLayout(LayoutKind.Explicit, Size = 120)]
internal struct Block
{
    /// <summary>How often a span was published; an even number: the first record counts.</summary>
    [FieldOffset(0)]
    internal uint Active;

    /// <summary>The set of labels in force, 0 for none.</summary>
    [FieldOffset(4)]
    internal uint Tags;

    [FieldOffset(8)]
    internal SpanRecord First;

    [FieldOffset(64)]
    internal SpanRecord Second;
}

/// <summary>A span as a sample carries it.</summary>
[StructLayout(LayoutKind.Explicit, Size = 56)]
internal unsafe struct SpanRecord
{
    /// <summary>The first 16 digits of the trace id, as a number.</summary>
    [FieldOffset(0)]
    internal ulong TraceHigh;

    /// <summary>The last 16 digits.</summary>
    [FieldOffset(8)]
    internal ulong TraceLow;

    /// <summary>The 16 digits of the span id, as a number; 0 stands for no span.</summary>
    [FieldOffset(16)]
    internal ulong SpanId;

    /// <summary>UTF-8 that is never freed, or null.</summary>
    [FieldOffset(24)]
    internal byte* Name;

    [FieldOffset(32)]
    internal uint NameLength;

    /// <summary>The native side's own; 0 here.</summary>
    [FieldOffset(36)]
    internal uint DefinedIn;

    /// <summary>The flow that the span began in: 0 here, as what a span starts at once counts once by <see cref="Context.OffTime"/>.</summary>
    [FieldOffset(40)]
    internal ulong Flow;

    /// <summary>Where the native side adds what the span's time went to: null here, nobody wants to know.</summary>
    [FieldOffset(48)]
    internal nint Times;
}
