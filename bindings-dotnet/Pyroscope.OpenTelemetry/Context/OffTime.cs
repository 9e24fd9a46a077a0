using System.Diagnostics;
using System.Runtime.CompilerServices;
using Pyroscope.Interop;

namespace Pyroscope.Context;

/// <summary>
/// Of a span: since when no thread runs it, and none that it is the parent of is under way. It awaits something then, or is ready and
/// no thread of the pool took it up yet. When a thread goes on with it the time is told to the library, which may make a sample of it.
/// </summary>
/// <remarks>
/// The rules of <see cref="SpanMirror"/>'s handler hold here: it is called inside of the runtime's switch of contexts. Another thread may end or
/// begin a period at any instant, so each of these reads once which it is.
/// </remarks>
internal struct OffTime
{
    /// <summary>Which time it is that off times are measured; 0: they are not. What was counted at another time does not count.</summary>
    private static volatile int period;

    private static int lastPeriod;

    [ThreadStatic]
    private static SpanContext? running;

    /// <summary>The period in which that was noted.</summary>
    [ThreadStatic]
    private static int noted;

    /// <summary>
    /// The period in which that counts, and in the lower half how many hold the span: threads that run it, and spans under way that it is
    /// the parent of.
    /// </summary>
    private long held;

    /// <summary>When the last of them left, by <see cref="Stopwatch"/>, which is in nanoseconds here; 0 at first.</summary>
    private long since;

    /// <summary>The period since which this span holds its parent; 0: it does not.</summary>
    private int holdsParent;

    /// <summary>Which time it is that off times are measured; 0: they are not.</summary>
    internal static int Period => period;

    /// <summary>Whether off times are measured.</summary>
    internal static bool IsMeasured => period != 0;

    /// <summary>Measures from here on; the new period.</summary>
    internal static int Begin() => period = Interlocked.Increment(ref lastPeriod);

    /// <summary>Measures no more.</summary>
    internal static void End() => period = 0;

    /// <summary>
    /// The calling thread runs this span from now on, if any, and leaves the context <paramref name="before"/>. Hot: a switch there and
    /// back costs 60 ns where it is measured, and 1 ns where it is not.
    /// </summary>
    [MethodImpl(MethodImplOptions.AggressiveInlining)]
    internal static void Switch(SpanContext? before, SpanContext? to)
    {
        if (period is not 0 and var now)
        {
            Change(before, to, now);
        }
    }

    /// <summary>A span begins whose time is not its parent's.</summary>
    internal static void Hold(SpanContext span, SpanContext parent)
    {
        if (period is not 0 and var now)
        {
            span.Off.holdsParent = now;
            parent.Off.Enter(now);
        }
    }

    /// <summary>Whether the calling thread runs the span.</summary>
    internal static bool IsRunBySelf(SpanContext span) => noted == period && ReferenceEquals(running, span);

    /// <summary>How long nobody runs it by now, in nanoseconds; 0: somebody does.</summary>
    internal long Current(long now)
    {
        var holders = Volatile.Read(ref held);
        return period is not 0 and var current && Counts(holders, current) && (int)holders == 0 ? now - Volatile.Read(ref since) : 0;
    }

    /// <summary>A span has ended. Again: nothing.</summary>
    internal static void Release(SpanContext span)
    {
        if (span.Off.holdsParent != 0 && Interlocked.Exchange(ref span.Off.holdsParent, 0) is not 0 and var began && began == period
            && span.Parent is { } parent)
        {
            parent.Off.Leave(Stopwatch.GetTimestamp(), began);
        }
    }

    // On its own: where times were not measured for long the caller is compiled as if they never were, and in what .NET 8 takes for seldom
    // run each thread-static costs 60 ns.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Change(SpanContext? before, SpanContext? to, int current)
    {
        var from = running;
        if (noted == current)
        {
            if (ReferenceEquals(from, to))
            {
                return;
            }
        }
        else
        {
            // It ran that when this period began, which nobody told.
            from = SpanMirror.CarriedIn(before);
            from?.Off.Enter(current);
            noted = current;
        }

        running = to;
        var now = Stopwatch.GetTimestamp();
        if (from is not null)
        {
            if (!ReferenceEquals(from.Root, to?.Root))
            {
                from.Root.Times?.LeaveRoot();
            }

            from.Times?.Leave(now);
            from.Off.Leave(now, current);
        }

        if (to is not null)
        {
            var holders = to.Off.Enter(current);
            to.Times?.Enter(current, now);
            if (holders == 1 && to.Activity is not { IsStopped: true })
            {
                Resumed(now - to.Off.since);
            }
        }

        if (from?.Activity is { IsStopped: true })
        {
            // Now, as its parent is run again: nobody awaited anything in between.
            Release(from);
        }
    }

    // On its own: compiling a method with a call that suppresses the transition loads the library.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Resumed(long time)
    {
        if (time > 0 && HotNative.Resumed((ulong)time) is not 0 and var weight)
        {
            SuspendedMethods.Sample((ulong)time, weight);
        }
    }

    private static long InPeriod(int number) => (long)number << 32;

    private static bool Counts(long held, int current) => PeriodOf(held) == current;

    private static int PeriodOf(long held) => (int)(held >> 32);

    /// <summary>How many hold it now; 0 for the first of this period, and for who comes with one that is over.</summary>
    internal int Enter(int current)
    {
        for (var was = Volatile.Read(ref held); ;)
        {
            if (PeriodOf(was) > current)
            {
                return 0;
            }

            var counts = Counts(was, current);
            var now = (counts ? was : InPeriod(current)) + 1;
            if (Interlocked.CompareExchange(ref held, now, was) is var found && found == was)
            {
                return counts ? (int)now : 0;
            }

            was = found;
        }
    }

    internal void Leave(long now, int current)
    {
        // Before it counts as left, as another thread may come at once. Who was interrupted on its way here may come after a later one, also
        // between these two.
        for (var last = Volatile.Read(ref since); now > last;)
        {
            var found = Interlocked.CompareExchange(ref since, now, last);
            if (found == last)
            {
                break;
            }

            last = found;
        }

        for (var was = Volatile.Read(ref held); Counts(was, current) && (int)was > 0;)
        {
            if (Interlocked.CompareExchange(ref held, was - 1, was) is var found && found == was)
            {
                return;
            }

            was = found;
        }
    }
}
