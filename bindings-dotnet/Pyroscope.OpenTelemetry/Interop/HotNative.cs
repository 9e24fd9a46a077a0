using System.Runtime.InteropServices;

namespace Pyroscope.Interop;

/// <summary>What spans call. Written by hand, as a generated call costs up to seven times as much.</summary>
internal static unsafe partial class HotNative
{
    private const string Library = "spanprof";

    /// <summary>The calling thread's block, zeros at first. It is recycled when the thread has ended and never freed.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_block")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    internal static partial Block* OwnBlock();

    /// <summary>Whether a sample may carry this span. A few nanoseconds and no lock, so the garbage collector may wait for it.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_is_sampled")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    [SuppressGCTransition]
    internal static partial byte IsSampled(ulong spanId);

    /// <summary>No thread ran this thread's span for so long, until now: what that is to stand for as a sample, else 0.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_resumed")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    [SuppressGCTransition]
    internal static partial ulong Resumed(ulong nanoseconds);

    /// <summary>
    /// Takes that sample. The garbage collector waits for it, so that no object moves. Not 0: a method table to be explained,
    /// unless all else is to be left out.
    /// </summary>
    [LibraryImport(Library, EntryPoint = "spanprof_sample_resumed")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    [SuppressGCTransition]
    internal static partial nint SampleResumed(ulong nanoseconds, ulong weight, void* context, uint all);

    /// <summary>Where an object refers to another one, by the addresses of references; 0: nowhere. As before, nothing moves.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_offset_of")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    [SuppressGCTransition]
    internal static partial uint OffsetOf(void* holder, void* held);

    /// <summary>Where things are in suspended methods; some method tables of classes. Not 0: it is understood.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_learn_boxes")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    internal static partial byte LearnBoxes(uint context, uint continuation, nint* tables, nuint count);

    /// <summary>What a method table means.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_explain_type")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    internal static partial void ExplainType(nint table, byte* name, nuint length, uint next, uint kind);

    /// <summary>One processor more (1) or fewer (0) wants the times of spans.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_want_times")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    internal static partial void WantTimes(uint wanted);

    /// <summary>The calling thread's CPU time in nanoseconds.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_own_cpu")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    [SuppressGCTransition]
    internal static partial ulong OwnCpu();

    /// <summary>A span has ended after so much time, and its thread ran for so long: what of that was within calls that waited is taken off these.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_add_cpu")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    [SuppressGCTransition]
    internal static partial void AddCpu(Times* times, ulong cpu, ulong wall);

    /// <summary>This thread makes waits of one kind from here on (0), until now, when it may have waited for something else too (1) or not (2). Not 0 at
    /// first: no other thread is at it; not 0 in the end: it is known how these are told from other waits.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_learn_wait")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    internal static partial byte LearnWait(uint kind, uint end);

    /// <summary>Gives the samples of a span its final name.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_span_ended")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    internal static partial void SpanEnded(ulong spanId, byte* name, nuint length);

    /// <summary>A copy of the name that stays for ever, or null where there are too many.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_name")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    internal static partial byte* InternName(byte* name, nuint length);
}
