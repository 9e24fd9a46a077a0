namespace Pyroscope;

/// <summary>The package that had these types before, in an assembly of another name: code that uses both does not compile.</summary>
internal static class OtherPackage
{
    /// <summary>Warns where the program brings it along. A comparison of a text; a program in a single file has none.</summary>
    internal static void Check()
    {
        var assemblies = AppContext.GetData("TRUSTED_PLATFORM_ASSEMBLIES") as string;
        if (assemblies?.Contains("/Pyroscope.dll", StringComparison.Ordinal) == true)
        {
            ProfilerMessages.Note("The package Pyroscope is there beside Pyroscope.OpenTelemetry, which has all of its types: remove the package Pyroscope from the project");
        }
    }
}
