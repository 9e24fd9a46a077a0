namespace Pyroscope.Interop;

/// <summary>Whether the native library can be used in this process. Looked at once.</summary>
internal static class NativeLibraryCheck
{
    private static readonly Lazy<string?> Found = new(Check);

    /// <summary>Why it cannot be used, or null.</summary>
    internal static string? Problem => Found.Value;

    internal static bool IsUsable => Found.Value is null;

    private static unsafe string? Check()
    {
        try
        {
            // Of no name there is nothing to keep, so this only loads the library.
            _ = HotNative.InternName(null, 0);
            return null;
        }
        catch (Exception error) when (error is DllNotFoundException or BadImageFormatException or EntryPointNotFoundException)
        {
            var problem = error is EntryPointNotFoundException
                ? "libspanprof.so is of another version than Pyroscope.OpenTelemetry.dll"
                : error.Message.Contains("static TLS", StringComparison.Ordinal)
                    ? "libspanprof.so cannot be loaded (other libraries of this process use up the static TLS; loading it earlier, or "
                        + "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096, leaves it room)"
                    : "libspanprof.so cannot be loaded (it is for Linux on x86-64 with glibc, and belongs beside Pyroscope.OpenTelemetry.dll)";
            ProfilerMessages.Note($"No profiles are taken, spans go on working: {problem}: {FirstLine(error.Message)}");
            return problem;
        }
    }

    private static string FirstLine(string text) => text.Split('\n', 2)[0].Trim();
}
