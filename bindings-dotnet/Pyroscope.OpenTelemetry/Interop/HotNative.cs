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

    /// <summary>No thread ran this thread's span for so long, until now. The caller's stack is read; the garbage collector may wait for it.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_resumed")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    [SuppressGCTransition]
    internal static partial void Resumed(ulong nanoseconds);

    /// <summary>Gives the samples of a span its final name.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_span_ended")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    internal static partial void SpanEnded(ulong spanId, byte* name, nuint length);

    /// <summary>A copy of the name that stays for ever, or null where there are too many.</summary>
    [LibraryImport(Library, EntryPoint = "spanprof_name")]
    [DefaultDllImportSearchPaths(DllImportSearchPath.AssemblyDirectory)]
    internal static partial byte* InternName(byte* name, nuint length);
}
