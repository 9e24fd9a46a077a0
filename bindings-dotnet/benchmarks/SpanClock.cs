using System.Collections.Concurrent;
using System.Diagnostics;

namespace Pyroscope.Benchmarks;

/// <summary>What the program itself measures in spans, by their names, in nanoseconds: so does <see cref="Stopwatch"/> count here.</summary>
internal sealed class SpanClock
{
    internal ConcurrentDictionary<string, long> Sums { get; } = new();

    internal static long Now => Stopwatch.GetTimestamp();

    /// <summary>An instant so many seconds from now.</summary>
    internal static long In(double seconds) => Now + (long)(seconds * Stopwatch.Frequency);

    internal void Add(string span, long nanoseconds) => Sums.AddOrUpdate(span, nanoseconds, (_, sum) => sum + nanoseconds);
}
