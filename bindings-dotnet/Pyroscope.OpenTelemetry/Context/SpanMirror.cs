using System.Diagnostics;
using System.Runtime.CompilerServices;
using Pyroscope.Interop;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Context;

/// <summary>
/// Knows which span is current on each thread at each instant. <c>Activity.Current</c> flows by an AsyncLocal of the
/// runtime's, which nobody can watch; this is one of our own that is set whenever it is set. The runtime calls
/// <see cref="OnSwitched"/> inside of each of its switches of contexts, on the thread that switches, so a thread's
/// block is right before the first instruction of the work that it switched to.
/// </summary>
/// <remarks>
/// <see cref="OnSwitched"/> must not throw (the runtime ends the process), lock, log, or set <see cref="Current"/>
/// (which would call it again).
/// </remarks>
internal static class SpanMirror
{
    // What blocks say.
    private const int NoSpan = 0;
    private const int LocalRoot = 1;
    private const int Innermost = 2;

    // What this thread was in when its program last took Activity.Current away, as who suppresses spans for a while does.
    [ThreadStatic]
    private static SpanContext? taken;

    // A lambda, here and below: a delegate to a static method goes by way of a thunk.
    private static readonly AsyncLocal<SpanContext?> Current = new(static change =>
    {
        try
        {
            OnSwitched(change.PreviousValue, change.CurrentValue);
        }
        catch (OutOfMemoryException)
        {
            // A thread's first thread-static takes some memory.
        }
    });

    private static readonly EventHandler<ActivityChangedEventArgs> CurrentChanged = static (_, change) => Current.Value = Follow(change.Current);
    private static readonly object Gate = new();

    /// <summary>One of the constants above. Contexts that were captured earlier go on calling after the last processor.</summary>
    private static volatile int carried;

    private static bool links = true;

    private static int processors;
    private static int processorsOfAll;

    /// <summary>Whether samples carry spans now, and why not.</summary>
    internal static FeatureStatus Status()
    {
        var reason = NativeLibraryCheck.Problem
            ?? (processors == 0 ? "there is no PyroscopeSpanProcessor" : !links ? "SpanProfileLinkingEnabled is false" : null);
        return new FeatureStatus("spans", reason is null, reason);
    }

    /// <summary>
    /// Begins with the first processor. False where there is no native library to tell. What the calling flow is in is
    /// known from now on; other flows are known from their next start or end of a span.
    /// </summary>
    internal static bool Add(SpanScope scope)
    {
        if (!NativeLibraryCheck.IsUsable)
        {
            return false;
        }

        lock (Gate)
        {
            processorsOfAll += scope == SpanScope.All ? 1 : 0;
            if (processors++ == 0)
            {
                Activity.CurrentChanged += CurrentChanged;
            }

            Decide();
        }

        Current.Value = SpanContext.For(Activity.Current, Current.Value);
        return true;
    }

    /// <summary>Ends with the last processor.</summary>
    internal static void Remove(SpanScope scope)
    {
        lock (Gate)
        {
            processorsOfAll -= scope == SpanScope.All ? 1 : 0;
            processors--;
            Decide();
            if (processors > 0)
            {
                return;
            }

            Activity.CurrentChanged -= CurrentChanged;
        }

        Current.Value = null;
    }

    /// <summary>Whether spans and profiles are linked at all: <see cref="ProfilerConfiguration.SpanProfileLinkingEnabled"/>.</summary>
    internal static bool Links
    {
        get => Volatile.Read(ref links);
        set
        {
            lock (Gate)
            {
                links = value;
                Decide();
            }
        }
    }

    /// <summary>Whether samples carry the innermost span now.</summary>
    internal static bool CarriesInnermost => carried == Innermost;

    /// <summary>Measures from now on how long spans are run by no thread; what the calling flow is in is run by this one.</summary>
    internal static void MeasureOffTime()
    {
        SuspendedMethods.Learn();
        OffTime.Begin();
        OnSwitched(null, Current.Value);
    }

    /// <summary>A span has ended, in the calling flow.</summary>
    internal static void Ended(Activity span)
    {
        // One that this thread runs is left at once.
        if (OffTime.IsMeasured && ContextOf(span) is { } context && !OffTime.IsRunBySelf(context))
        {
            OffTime.Release(context);
        }
    }

    /// <summary>The context of a span that is around the calling flow.</summary>
    internal static SpanContext? ContextOf(Activity span) => SpanContext.Find(span, Current.Value);

    /// <summary>Whether samples carry such a span.</summary>
    internal static bool Carries(bool isLocalRoot) => carried == Innermost || (isLocalRoot && carried == LocalRoot);

    /// <summary>Sets ids by hand for the calling flow; 0 as span id ends that.</summary>
    internal static void Set(ulong spanId, ulong traceHigh, ulong traceLow)
    {
        if (NativeLibraryCheck.IsUsable)
        {
            Current.Value = spanId == 0 ? null : new SpanContext(spanId, traceHigh, traceLow);
        }
    }

    /// <summary>
    /// The context of what is current from now on. A span that comes back on the thread on which it was taken away has the context
    /// that its other flows know: with another one, these would take for awaited what it runs meanwhile.
    /// </summary>
    private static SpanContext? Follow(Activity? current)
    {
        var before = Current.Value;
        if (current is null)
        {
            if (before is not null)
            {
                taken = before.Activity is { IsStopped: true } ? null : before;
            }

            return null;
        }

        before ??= taken;
        taken = null;
        return SpanContext.For(current, before);
    }

    /// <summary>Called with <see cref="Gate"/> held, after what it depends on has changed.</summary>
    private static void Decide() => carried = processors == 0 || !links ? NoSpan : processorsOfAll > 0 ? Innermost : LocalRoot;

    /// <summary>What samples carry in a context.</summary>
    internal static SpanContext? CarriedIn(SpanContext? context) => CarriedIn(context, carried);

    [MethodImpl(MethodImplOptions.AggressiveInlining)]
    private static SpanContext? CarriedIn(SpanContext? context, int now)
    {
        if (context?.Activity is null)
        {
            return context;
        }

        return now switch
        {
            NoSpan => null,
            Innermost => context.Running(),
            _ => context.Running().Root,
        };
    }

    [MethodImpl(MethodImplOptions.AggressiveInlining)]
    private static void OnSwitched(SpanContext? before, SpanContext? context)
    {
        var now = carried;
        context = CarriedIn(context, now);
        if (context is null && now == NoSpan)
        {
            // Another copy of this assembly may go on: in another load context there may be one.
            ThreadBlock.Withdraw();
        }
        else
        {
            ThreadBlock.Publish(context);
        }

        OffTime.Switch(before, context);
    }
}
