using System.Diagnostics;
using Pyroscope.Interop;

namespace Pyroscope.Context;

/// <summary>
/// An exported span that is, or was, current, with its ids as numbers and the exported spans around it. It flows with the execution
/// context to wherever the span's work goes on, and nothing but <see cref="Off"/> changes in it.
/// </summary>
internal sealed unsafe class SpanContext
{
    /// <summary>Where a span keeps its context while wall time is measured.</summary>
    private const string Property = "pyroscope.context";

    /// <summary>The span, or null for ids that <see cref="Profiler.SetSpanContext"/> was given.</summary>
    internal readonly Activity? Activity;

    /// <summary>The nearest exported span around it in this process.</summary>
    internal readonly SpanContext? Parent;

    /// <summary>The outermost of them: the local root.</summary>
    internal readonly SpanContext Root;

    /// <summary>What samples carry, with the name at the start; the final one is told when the span ends.</summary>
    internal readonly SpanRecord Record;

    /// <summary>What its time goes to, where that is to be known.</summary>
    internal readonly SpanTimes? Times;

    /// <summary>Since when nobody runs it.</summary>
    internal OffTime Off;

    private SpanContext(Activity activity, SpanContext? parent)
    {
        Activity = activity;
        Parent = parent;
        Root = parent?.Root ?? this;
        Record.SpanId = HexId.Of(activity.SpanId);
        if (parent?.Activity is { } above && above.TraceId == activity.TraceId)
        {
            (Record.TraceHigh, Record.TraceLow) = (parent.Record.TraceHigh, parent.Record.TraceLow);
        }
        else
        {
            (Record.TraceHigh, Record.TraceLow) = HexId.Of(activity.TraceId);
        }

        Times = SpanTimes.Of(parent is null);
        Record.Times = Times?.Address ?? 0;
        if (SpanName.Of(activity.DisplayName) is { } name)
        {
            Record.Name = name.Text;
            Record.NameLength = name.Length;
        }
    }

    internal SpanContext(ulong spanId, ulong traceHigh, ulong traceLow)
    {
        Root = this;
        Record = new SpanRecord { SpanId = spanId, TraceHigh = traceHigh, TraceLow = traceLow };
    }

    /// <summary>
    /// The context of <paramref name="current"/>, given the one in force until now; null where no exported span is
    /// current. A new object only where a span is current for the first time, which is when it starts.
    /// </summary>
    internal static SpanContext? For(Activity? current, SpanContext? before)
    {
        var span = Exported(current);
        if (span is null)
        {
            return null;
        }

        if (before?.Activity is { } activity && ReferenceEquals(span.Parent, activity))
        {
            if (Remembered(span) is { } known)
            {
                return known;
            }

            var context = new SpanContext(span, before);
            if (SpanMirror.CarriesInnermost)
            {
                OffTime.Hold(context, before);
            }

            return context;
        }

        return Known(span, before) ?? (IsLocalRoot(span) ? new SpanContext(span, null) : Rebuild(span, before));
    }

    /// <summary>
    /// A span has started in the calling flow. Where wall time is measured it has this one context wherever it is made current: what it
    /// awaits in one of two would be what a thread runs in the other. 0.1 µs.
    /// </summary>
    internal static void Remember(Activity span)
    {
        if (OffTime.IsMeasured && SpanMirror.ContextOf(span) is { } context && SpanMirror.Carries(context.Parent is null))
        {
            span.SetCustomProperty(Property, context);
        }
    }

    /// <summary>The context of a span that was remembered, if it was.</summary>
    internal static SpanContext? Remembered(Activity span) => span.GetCustomProperty(Property) as SpanContext;

    /// <summary>Whether no exported span of this process is around the span.</summary>
    internal static bool IsLocalRoot(Activity span) => Exported(span.Parent) is null;

    /// <summary>This, or where it has ended its nearest ancestor that still runs, if there is one.</summary>
    internal SpanContext Running()
    {
        if (Activity is null || !Activity.IsStopped)
        {
            return this;
        }

        // It may have ended in a flow that is not its own.
        OffTime.Release(this);
        var context = Parent;
        while (context is not null && context.Activity!.IsStopped)
        {
            OffTime.Release(context);
            context = context.Parent;
        }

        return context ?? this;
    }

    /// <summary>
    /// The nearest span that is exported: sampled, and of a source that somebody listens to. The flag alone is
    /// inherited by an Activity that user code makes with <c>new</c>, and such a one is never exported.
    /// </summary>
    private static Activity? Exported(Activity? activity)
    {
        while (activity is not null && !(activity.Recorded && activity.Source.HasListeners()))
        {
            activity = activity.Parent;
        }

        return activity;
    }

    internal static SpanContext? Find(Activity span, SpanContext? among)
    {
        while (among is not null && !ReferenceEquals(among.Activity, span))
        {
            among = among.Parent;
        }

        return among;
    }

    private static SpanContext? Known(Activity span, SpanContext? among) => Find(span, among) ?? Remembered(span);

    // User code made a span current that is not next to the one before: from the outside in, with what is known reused.
    private static SpanContext Rebuild(Activity span, SpanContext? before)
    {
        var unknown = new Stack<Activity>();
        SpanContext? context = null;
        for (var next = (Activity?)span; next is not null && context is null; next = Exported(next.Parent))
        {
            context = Known(next, before);
            if (context is null)
            {
                unknown.Push(next);
            }
        }

        while (unknown.TryPop(out var next))
        {
            context = new SpanContext(next, context);
        }

        return context!;
    }
}
