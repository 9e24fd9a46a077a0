using System.Diagnostics;
using System.Runtime.CompilerServices;
using OpenTelemetry;
using OpenTelemetry.Resources;
using Pyroscope.Context;
using Pyroscope.Interop;

namespace Pyroscope.OpenTelemetry;

/// <summary>
/// Labels profiles with spans and spans with their profile. From its construction to its disposal samples know the
/// current span at the very instant, over <c>await</c>, in tasks, timers and threads.
/// </summary>
/// <remarks>
/// If <see cref="Profiler.Configure"/> was never called the first span starts the profiler, from the environment and with
/// the resource's <c>service.name</c>; <c>OTEL_PYROSCOPE_START_PROFILING=false</c> or
/// <c>PYROSCOPE_PROFILING_ENABLED=false</c> prevent that. A root span allocates about 430 bytes more; the benchmarks
/// beside this project measure what spans and switches of contexts cost.
/// </remarks>
public class PyroscopeSpanProcessor : BaseProcessor<Activity>
{
    /// <summary>The tag that makes Grafana show a flame graph button: the span's id, 16 hexadecimal digits.</summary>
    public const string ProfileIdTag = "pyroscope.profile.id";

    // Whether the first span was seen.
    private const int NotYet = 0;
    private const int Beginning = 1;
    private const int Begun = 2;

    // Whether it counts among those at work.
    private const int NotThere = 0;
    private const int AtWork = 1;
    private const int Left = 2;

    /// <summary>Processors that have seen a span and were not shut down. Others see their first one yet, and it starts the profiler anew.</summary>
    private static int atWork;

    private readonly ProfilerConfiguration? configuration;
    private readonly bool startProfiling;
    private readonly bool added;
    private readonly bool timeAttributes;
    private volatile int began;
    private int disposed;
    private int membership;

    /// <summary>With the scope that <c>OTEL_PYROSCOPE_ROOT_SPAN_ONLY</c> says, by default <see cref="SpanScope.Root"/>.</summary>
    public PyroscopeSpanProcessor()
        : this(null, null)
    {
    }

    /// <summary>With a scope.</summary>
    /// <param name="scope">Which span samples carry.</param>
    /// <exception cref="ArgumentException"><paramref name="scope"/> is none of its values.</exception>
    public PyroscopeSpanProcessor(SpanScope scope)
        : this(scope, null)
    {
    }

    /// <summary>For code that says whether stacks of awaited methods are put together.</summary>
    /// <param name="stitchAsyncStacks">Without effect: samples of a continuation carry their span in any case.</param>
    public PyroscopeSpanProcessor(bool stitchAsyncStacks)
        : this(null, null) => _ = stitchAsyncStacks;

    internal PyroscopeSpanProcessor(SpanScope? scope, ProfilerConfiguration? configuration, bool? timeAttributes = null)
    {
        Scope = scope ?? (BooleanVariable.Read("OTEL_PYROSCOPE_ROOT_SPAN_ONLY", true) ? SpanScope.Root : SpanScope.All);
        if (Scope is not (SpanScope.Root or SpanScope.All))
        {
            throw new ArgumentException($"{nameof(scope)}: {Scope} is not allowed; allowed: Root, All", nameof(scope));
        }

        startProfiling = BooleanVariable.Read("OTEL_PYROSCOPE_START_PROFILING", true);
        var chosen = timeAttributes ?? BooleanVariable.Read("OTEL_PYROSCOPE_TIME_ATTRIBUTES", false);
        this.configuration = configuration;
        added = SpanMirror.Add(Scope);
        TimeAttributes = chosen;
        ProfilerMessages.Deliver();
    }

    /// <summary>Which span samples carry.</summary>
    public SpanScope Scope { get; }

    /// <summary>
    /// Whether each span that samples carry says at its end what its time went to, in nanoseconds, as tags:
    /// <c>pyroscope.time.io</c>, <c>pyroscope.time.lock</c>, <c>pyroscope.time.await</c> and so on, exactly and not sampled, and a
    /// local root that begins and ends on one thread, which does nothing else meanwhile, also <c>pyroscope.time.cpu</c>. It takes
    /// <see cref="ProfilerConfiguration.WallTimeProfilingEnabled"/>. By default what <c>OTEL_PYROSCOPE_TIME_ATTRIBUTES</c> says,
    /// else false.
    /// </summary>
    public bool TimeAttributes
    {
        get => timeAttributes;
        init
        {
            if (added && value != timeAttributes)
            {
                Want(value);
            }

            timeAttributes = value;
        }
    }

    /// <summary>Called by the SDK when a span starts. Never throws.</summary>
    /// <param name="data">The span.</param>
    public override void OnStart(Activity data)
    {
        if (began == NotYet)
        {
            Begin();
        }

        if (added && data.Recorded)
        {
            SpanContext.Remember(data);
        }

        if (Profiler.Instance.IsRunning)
        {
            if (SpanMirror.Links && Carries(data))
            {
                data.SetTag(ProfileIdTag, data.SpanId.ToHexString());
            }
        }
        else if ((began == Beginning || Profiler.Instance.IsStarting || Profiler.Instance.IsRunning) && Carries(data))
        {
            // Nothing is waited for. Asked again at last, as the start may have ended between the questions.
            LateTags.Await(data);
        }
    }

    /// <summary>Called by the SDK when a span has ended. Never throws. Only spans that have samples cost more than 10 ns.</summary>
    /// <param name="data">The span.</param>
    public override void OnEnd(Activity data)
    {
        if (LateTags.Any)
        {
            LateTags.Settle(data);
        }

        if (added && data.Recorded)
        {
            SpanMirror.Ended(data);
            ReportFinalName(data);
            if (timeAttributes)
            {
                SpanTimes.SetTags(data);
            }
        }
    }

    /// <summary>Uploads what was sampled so far.</summary>
    /// <param name="timeoutMilliseconds">How long to wait at most; -1 is for ever.</param>
    /// <returns>Whether it is uploaded. True without a profiler.</returns>
    protected override bool OnForceFlush(int timeoutMilliseconds) =>
        !Profiler.Instance.IsRunning || Profiler.Instance.Flush(Time(timeoutMilliseconds));

    /// <summary>Ends the profiler if a first span started it and this is the last processor that saw any, of all providers.</summary>
    /// <param name="timeoutMilliseconds">How long that may take; -1 is 5 seconds.</param>
    /// <returns>Whether everything was uploaded. True where the profiler goes on, and without one.</returns>
    protected override bool OnShutdown(int timeoutMilliseconds) =>
        !Leave() || Profiler.Instance.StopOfSpans(timeoutMilliseconds < 0 ? TimeSpan.FromSeconds(5) : Time(timeoutMilliseconds));

    /// <summary>Ends the labelling of samples, if no other processor goes on with it.</summary>
    /// <param name="disposing">Whether it is called by code, not by a finalizer.</param>
    protected override void Dispose(bool disposing)
    {
        if (added && Interlocked.Exchange(ref disposed, 1) == 0)
        {
            if (timeAttributes)
            {
                Want(false);
            }

            SpanMirror.Remove(Scope);
        }

        if (disposing && Leave())
        {
            Profiler.Instance.StopOfSpans(TimeSpan.FromSeconds(5));
        }

        base.Dispose(disposing);
    }

    // On its own: compiling a method with a call that suppresses the transition loads the library, and where there is none
    // it ends in a deadlock of the runtime's, even if the call is never made.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static unsafe void ReportFinalName(Activity span)
    {
        var id = HexId.Of(span.SpanId);
        if (HotNative.IsSampled(id) != 0)
        {
            SpanName.WithUtf8(span.DisplayName, id, &ReportEnd);
        }
    }

    // On its own, for the same reason.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Want(bool wanted)
    {
        if (wanted)
        {
            SpanTimes.Want();
        }
        else
        {
            SpanTimes.Unwant();
        }
    }

    private static unsafe nint ReportEnd(ulong id, byte* name, nuint length)
    {
        HotNative.SpanEnded(id, name, length);
        return 0;
    }

    /// <summary>Whether samples may carry this span.</summary>
    private bool Carries(Activity span) => span.Recorded && (Scope == SpanScope.All || SpanContext.IsLocalRoot(span));

    private static TimeSpan Time(int milliseconds) =>
        milliseconds < 0 ? TimeSpan.FromHours(1) : TimeSpan.FromMilliseconds(milliseconds);

    /// <summary>True: this was the last processor at work.</summary>
    private bool Leave() => Interlocked.Exchange(ref membership, Left) == AtWork && Interlocked.Decrement(ref atWork) == 0;

    /// <summary>False: it was shut down already.</summary>
    private bool Join()
    {
        Interlocked.Increment(ref atWork);
        var joined = Interlocked.CompareExchange(ref membership, AtWork, NotThere) == NotThere;
        if (!joined)
        {
            Interlocked.Decrement(ref atWork);
        }

        return joined;
    }

    /// <summary>The first span, whose resource says under which name its traces are filed.</summary>
    private void Begin()
    {
        if (Interlocked.CompareExchange(ref began, Beginning, NotYet) != NotYet)
        {
            return;
        }

        try
        {
            var resource = ResourceOfSpans.Read(ParentProvider?.GetResource());
            if (Join() && startProfiling)
            {
                Profiler.Instance.StartUnlessConfigured(resource.Complete(configuration), configuration);
                if (Volatile.Read(ref membership) == Left && Volatile.Read(ref atWork) == 0)
                {
                    // It was shut down meanwhile, by who saw no profiler yet.
                    Profiler.Instance.StopOfSpans(TimeSpan.Zero);
                }
            }

            resource.Compare();
            if (timeAttributes && Profiler.Instance.IsRunning && !OffTime.IsMeasured)
            {
                ProfilerMessages.Warn("Spans get no tags that say their time: TimeAttributes needs wall time, WallTimeProfilingEnabled or PYROSCOPE_PROFILING_WALLTIME_ENABLED=true");
            }
        }
        catch (Exception error)
        {
            // A span must start, whatever the environment says.
            ProfilerMessages.Warn($"No profiles are taken, spans go on working: {error.Message}");
        }

        began = Begun;
    }
}
