namespace Pyroscope;

/// <summary>The name that both packages have.</summary>
public sealed class Profiler
{
    /// <summary>The one.</summary>
    public static Profiler Instance { get; } = new();
}
