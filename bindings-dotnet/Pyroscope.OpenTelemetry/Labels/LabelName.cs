namespace Pyroscope.Context;

/// <summary>Which names a label may have: one that servers do not take would cost a whole profile.</summary>
internal static class LabelName
{
    private static readonly string[] Reserved = ["service_name", "span_id", "span_name", "trace_id", "profile_id"];

    /// <summary>What is wrong with a name, or null.</summary>
    internal static string? Problem(string name)
    {
        if (name.StartsWith("__", StringComparison.Ordinal) || Reserved.Contains(name))
        {
            return $"{name} is not allowed; allowed: other names; {string.Join(", ", Reserved)} and names that start with __ are reserved";
        }

        return name.Length > 0 && !char.IsAsciiDigit(name[0]) && name[0] != '.' && name.All(c => char.IsAsciiLetterOrDigit(c) || c is '_' or '.')
            ? null
            : $"\"{name}\" is not allowed; allowed: names like [A-Za-z_][A-Za-z0-9_.]*";
    }
}
