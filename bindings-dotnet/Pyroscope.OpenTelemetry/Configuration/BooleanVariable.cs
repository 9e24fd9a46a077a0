namespace Pyroscope.OpenTelemetry;

/// <summary>Booleans of the environment, as the native library reads them. One that is none is told once, with the next delivery, and spans go on.</summary>
internal static class BooleanVariable
{
    /// <summary>The value of a variable; <paramref name="otherwise"/> where it is not set, empty or no boolean.</summary>
    internal static bool Read(string name, bool otherwise)
    {
        var value = Environment.GetEnvironmentVariable(name)?.Trim();
        switch (value?.ToLowerInvariant())
        {
            case null or "":
                return otherwise;
            case "true" or "1" or "yes":
                return true;
            case "false" or "0" or "no":
                return false;
            default:
                var taken = otherwise ? "true" : "false";
                ProfilerMessages.Note($"{name}: {value} is not allowed; allowed: true, false, 1, 0, yes, no. It is taken for {taken}.");
                return otherwise;
        }
    }
}
