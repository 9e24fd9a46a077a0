using System.Collections.Concurrent;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using Pyroscope.Interop;

namespace Pyroscope.Context;

/// <summary>
/// What the time of one span went to, exactly: threads that are in it add their waits, and its flow the time in which no thread ran it.
/// </summary>
/// <remarks>
/// Of threads that are in the span at once one owns it, and what others wait for is not added; nor does the owner's time overlap with that
/// in which none runs it. So the sums are never more than the span's wall time. Native code has the other half: <c>span/times.rs</c>.
/// </remarks>
internal sealed unsafe class SpanTimes
{
    private const int Await = 7;

    /// <summary>So many spans with times there may be at once, with those that ended since the last collection of garbage: 59 MB.</summary>
    private const int Most = 262_144;

    /// <summary>By the number of the state, as the native library names them.</summary>
    private static readonly string[] Tags =
    [
        "pyroscope.time.cpu", "pyroscope.time.io", "pyroscope.time.lock", "pyroscope.time.gil", "pyroscope.time.sleep", "pyroscope.time.child",
        "pyroscope.time.name", "pyroscope.time.await", "pyroscope.time.busy", "pyroscope.time.gvl", "pyroscope.time.run_queue",
        "pyroscope.time.gc", "pyroscope.time.runtime",
    ];

    // Used again and never freed: a thread may have a span's record for as long as it lives, and no reference to the span.
    private static readonly ConcurrentStack<nint> Unused = new();
    private static int made;
    private static int wanted;
    private static volatile bool anyMissed;

    private readonly Times* times;
    private readonly int thread = Environment.CurrentManagedThreadId;
    private readonly ulong cpuSince;
    private readonly int began = OffTime.Period;
    private int period = OffTime.Period;
    private volatile bool left;
    private int tagged;

    private SpanTimes(Times* times, ulong cpuSince)
    {
        this.times = times;
        this.cpuSince = cpuSince;
    }

    ~SpanTimes()
    {
        // A span that another finalizer tells of has none any more.
        tagged = 1;
        try
        {
            Unused.Push((nint)times);
        }
        catch (OutOfMemoryException)
        {
            // What is lost is little; an exception here would end the process.
        }
    }

    /// <summary>Where threads in the span add their waits.</summary>
    internal nint Address => (nint)times;

    /// <summary>One processor more wants them.</summary>
    internal static void Want()
    {
        Interlocked.Increment(ref wanted);
        HotNative.WantTimes(1);
    }

    /// <summary>One fewer does.</summary>
    internal static void Unwant()
    {
        Interlocked.Decrement(ref wanted);
        HotNative.WantTimes(0);
    }

    /// <summary>Those of a span that begins on this thread; null where nobody wants them, no waits are measured, or there are too many.</summary>
    internal static SpanTimes? Of(bool isLocalRoot) =>
        wanted != 0 && OffTime.IsMeasured && SpanMirror.Carries(isLocalRoot) && Take() is var times and not 0
            ? new SpanTimes((Times*)times, isLocalRoot ? OwnCpu() : 0)
            : null;

    /// <summary>A span has ended: it gets its tags, once.</summary>
    internal static void SetTags(Activity span)
    {
        if (SpanContext.Remembered(span) is { Times: { } times } context && Interlocked.Exchange(ref times.tagged, 1) == 0)
        {
            times.SetTags(span, context);
        }
    }

    /// <summary>A thread is in the span now, in this period of measuring.</summary>
    internal void Enter(int current, long now)
    {
        if (period != current && Interlocked.Exchange(ref period, current) != current)
        {
            // Who owned it when the last one ended may have left since, which nobody told.
            times->FreeSince = now;
            Volatile.Write(ref times->Owner, 0);
        }

        Interlocked.CompareExchange(ref times->Owner, (nint)ThreadBlock.Own, 0);
    }

    /// <summary>The calling thread is not any more.</summary>
    internal void Leave(long now)
    {
        if (Volatile.Read(ref times->Owner) == (nint)ThreadBlock.Own)
        {
            times->FreeSince = now;
            Volatile.Write(ref times->Owner, 0);
        }
    }

    /// <summary>The calling thread is in no span any more that is in this local root.</summary>
    internal void LeaveRoot()
    {
        // Others write nothing: what one of them read before this thread wrote it would undo that.
        if (Environment.CurrentManagedThreadId == thread)
        {
            left = true;
        }
    }

    /// <summary>Warns where spans got none, as there were too many.</summary>
    internal static void TellOfMissed()
    {
        if (anyMissed)
        {
            anyMissed = false;
            ProfilerMessages.Note($"Spans got no tags that say their time: more than {Most} were under way, or had ended since the last collection of garbage");
        }
    }

    private static nint Take()
    {
        if (Unused.TryPop(out var times))
        {
            NativeMemory.Clear((void*)times, (nuint)sizeof(Times));
            return times;
        }

        if (Interlocked.Increment(ref made) <= Most)
        {
            return (nint)NativeMemory.AllocZeroed((nuint)sizeof(Times));
        }

        Interlocked.Decrement(ref made);
        anyMissed = true;
        return 0;
    }

    // On its own: compiling a method with a call that suppresses the transition loads the library.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static ulong OwnCpu() => HotNative.OwnCpu();

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void AddCpu(Times* times, ulong cpu, long wall) => HotNative.AddCpu(times, cpu, (ulong)Math.Max(wall, 0));

    private void SetTags(Activity span, SpanContext context)
    {
        var wall = span.Duration.Ticks * (1_000_000_000 / TimeSpan.TicksPerSecond);
        var rest = wall;
        for (var state = 0; state < Times.States; state++)
        {
            rest -= (long)Volatile.Read(ref times->Sums[state]);
        }

        // It ended elsewhere while its own flow awaits something.
        var awaited = Math.Clamp(context.Off.Current(Stopwatch.GetTimestamp()), 0, Math.Max(rest, 0));
        if (cpuSince != 0 && !left && began == OffTime.Period && Environment.CurrentManagedThreadId == thread)
        {
            AddCpu(times, OwnCpu() - cpuSince, wall - awaited);
        }

        for (var state = 0; state < Times.States; state++)
        {
            var sum = (long)Volatile.Read(ref times->Sums[state]) + (state == Await ? awaited : 0);
            if (sum > 0)
            {
                span.SetTag(Tags[state], sum);
            }
        }

        GC.KeepAlive(this);
    }
}
