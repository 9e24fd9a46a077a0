using System.Runtime.InteropServices;

namespace Pyroscope.Exits;

/// <summary>What .NET has no function for.</summary>
internal static partial class Native
{
    [LibraryImport("libc", EntryPoint = "_exit")]
    internal static partial void LeaveAtOnce(int code);

    [LibraryImport("libc", EntryPoint = "exit")]
    internal static partial void Exit(int code);

    [LibraryImport("libc", EntryPoint = "abort")]
    internal static partial void Abort();

    [LibraryImport("libc", EntryPoint = "execv", StringMarshalling = StringMarshalling.Utf8)]
    internal static partial int Become(string program, string?[] arguments);
}
