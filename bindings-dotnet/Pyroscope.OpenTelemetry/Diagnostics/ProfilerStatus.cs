namespace Pyroscope;

/// <summary>What the profiler does now, and why it does not do the rest.</summary>
/// <param name="IsRunning">Whether a profiler runs in this process.</param>
/// <param name="Reason">Why none runs; null where one runs.</param>
/// <param name="Features">Each part of it: <c>cpu</c>, <c>allocations</c>, <c>locks</c>, <c>exceptions</c>, <c>names</c> (of methods), <c>waits</c> and <c>spans</c>.</param>
public sealed record ProfilerStatus(bool IsRunning, string? Reason, IReadOnlyList<FeatureStatus> Features)
{
    /// <summary>The part of this name.</summary>
    /// <exception cref="ArgumentException">There is none of this name.</exception>
    public FeatureStatus this[string name] =>
        Features.FirstOrDefault(feature => feature.Name == name)
        ?? throw new ArgumentException(
            $"{nameof(name)}: {name} is not allowed; allowed: {string.Join(", ", Features.Select(feature => feature.Name))}", nameof(name));

    /// <summary>Whether it runs, or why not, and each part with why it is off: <c>running; cpu: on; locks: off (switched off)</c>.</summary>
    public override string ToString() =>
        string.Join("; ", Features.Select(feature => feature.ToString()).Prepend(IsRunning ? "running" : $"not running ({Reason})"));
}

/// <summary>A part of the profiler.</summary>
/// <param name="Name">Its name.</param>
/// <param name="IsOn">Whether it works now.</param>
/// <param name="Reason">Why it does not; null where it does.</param>
public sealed record FeatureStatus(string Name, bool IsOn, string? Reason)
{
    /// <summary>Its name, and whether it works or why not.</summary>
    public override string ToString() => IsOn ? $"{Name}: on" : $"{Name}: off ({Reason})";
}
