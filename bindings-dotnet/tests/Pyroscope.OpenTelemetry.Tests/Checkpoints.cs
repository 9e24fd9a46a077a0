using System.Collections.Concurrent;
using System.Diagnostics;
using Pyroscope.Context;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Tests;

/// <summary>A span of a scenario, as the scenario's own code knows it: the truth that blocks are compared with.</summary>
internal sealed record TrueSpan(Activity? Activity, TrueSpan? Root) : IDisposable
{
    internal static readonly ActivitySource Source = new("Pyroscope.Tests");

    /// <summary>No span at all.</summary>
    internal static readonly TrueSpan None = new(null, null);

    internal ulong SpanId => Activity is null ? 0 : HexId.Of(Activity.SpanId);

    internal static TrueSpan Start(string name, TrueSpan? parent = null) => Of(Source.StartActivity(name)!, parent);

    internal static TrueSpan Of(Activity activity, TrueSpan? parent = null) => new(activity, parent is null ? null : parent.Root ?? parent);

    /// <summary>What samples carry in a scope.</summary>
    internal TrueSpan In(SpanScope scope) => scope == SpanScope.Root && Root is not null ? Root : this;

    public void Dispose() => Activity?.Dispose();
}

/// <summary>Compares the block of the calling thread, which is what a sample would carry here, with the truth.</summary>
internal class Checkpoints(SpanScope scope)
{
    private int passed;

    internal ConcurrentQueue<string> Wrong { get; } = new();

    /// <summary>Wrong, where Activity.Current itself said the same.</summary>
    internal ConcurrentQueue<string> WrongAsActivityCurrent { get; } = new();

    internal int Passed => passed;

    internal virtual void At(TrueSpan expected, [System.Runtime.CompilerServices.CallerLineNumber] int line = 0)
    {
        Interlocked.Increment(ref passed);
        var truth = expected.In(scope);
        var found = ThreadBlock.Current;
        var (high, low) = truth.Activity is null ? (0, 0) : HexId.Of(truth.Activity.TraceId);
        if (found.SpanId == truth.SpanId && (found.SpanId == 0 || (found.TraceHigh == high && found.TraceLow == low)))
        {
            return;
        }

        var current = Activity.Current;
        var text = $"line {line}: {found.SpanId:x16} of {found.TraceHigh:x16}{found.TraceLow:x16} for {truth.Activity?.OperationName ?? "none"} {truth.SpanId:x16}";
        (found.SpanId == (current is null ? 0 : HexId.Of(current.SpanId)) ? WrongAsActivityCurrent : Wrong).Enqueue(text);
    }
}
