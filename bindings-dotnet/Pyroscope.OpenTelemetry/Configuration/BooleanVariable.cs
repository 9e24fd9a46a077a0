namespace Pyroscope.OpenTelemetry;

/// <summary>Booleans of the environment, as the native library reads them.</summary>
internal static class BooleanVariable
{
    /// <summary>The value of a variable; <paramref name="otherwise"/> where it is not set or empty.</summary>
    internal static bool Read(string name, bool otherwise)
    {
        var value = Environment.GetEnvironmentVariable(name)?.Trim();
        return value?.ToLowerInvariant() switch
        {
            null or "" => otherwise,
            "true" or "1" or "yes" => true,
            "false" or "0" or "no" => false,
            _ => throw new ArgumentException($"{name}: {value} is not allowed; allowed: true, false, 1, 0, yes, no", name),
        };
    }
}
