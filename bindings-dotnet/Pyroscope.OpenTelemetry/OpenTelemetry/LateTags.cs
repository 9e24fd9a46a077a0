using System.Diagnostics;
using System.Runtime.CompilerServices;
using Pyroscope.Context;

namespace Pyroscope.OpenTelemetry;

/// <summary>
/// Spans that began while the profiler was starting. If it runs when they end they get the tag then, by the code that ends
/// them: a span must not be changed by two threads.
/// </summary>
internal static class LateTags
{
    // Weak: a span that never ends is not kept.
    private static readonly ConditionalWeakTable<Activity, object> Waiting = [];
    private static readonly object Anything = new();
    private static volatile int count;

    /// <summary>Whether there may be one. A load.</summary>
    internal static bool Any => count != 0;

    /// <summary>A span begins and nobody knows yet whether the profiler will run.</summary>
    internal static void Await(Activity span)
    {
        if (Waiting.TryAdd(span, Anything))
        {
            Interlocked.Increment(ref count);
        }
    }

    /// <summary>A span ends, whether it is one of these or not.</summary>
    internal static void Settle(Activity span)
    {
        if (!Waiting.Remove(span))
        {
            return;
        }

        Interlocked.Decrement(ref count);
        if (Profiler.Instance.IsRunning && SpanMirror.Links)
        {
            span.SetTag(PyroscopeSpanProcessor.ProfileIdTag, span.SpanId.ToHexString());
        }
    }
}
