using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Runtime.Loader;
using Pyroscope.Context;
using Pyroscope.Interop;

namespace Pyroscope;

/// <summary>The profiler of this process. All members may be called from any thread.</summary>
public sealed class Profiler : IDisposable
{
    /// <summary>How long a stop may take, all in all.</summary>
    private static readonly TimeSpan StopTimeout = TimeSpan.FromSeconds(5);

    /// <summary>How long the program's logger may take for what the last stop says.</summary>
    private static readonly TimeSpan LastWords = TimeSpan.FromSeconds(1);

    // Kinds of answers, as interface/types.rs numbers them.
    private const uint Done = 0;
    private const uint NotAllowed = 1;
    private const uint AlreadyRunning = 2;
    private const uint SwitchedOff = 3;

    // Who holds it runs no code of the program, such as its logger: that may never come back, and the end of the process waits here.
    private readonly object gate = new();
    private volatile ProfilerConfiguration? configuration;
    private (string User, string Password)? credentials;
    private Timer? messenger;
    private volatile bool running;
    private volatile bool starting;
    private volatile bool wasConfigured;
    private volatile bool isOfSpans;
    private volatile bool ends;
    // What the end of the process has taken before it is this profiler's turn.
    private TimeSpan unloading;
    // Why the last one does not run, or did not before it ran.
    private volatile string reason = "Configure was not called";
    private volatile string? givenName;

    private Profiler()
    {
        // It is raised before the runtime disposes of its EventSources, and ProcessExit after that.
        AssemblyLoadContext.Default.Unloading += _ =>
        {
            if (NativeLibraryCheck.IsUsable)
            {
                unloading = Engine.EndEvents();
            }
        };
        AppDomain.CurrentDomain.ProcessExit += (_, _) =>
        {
            // Before the gate: who gets it afterwards starts nothing.
            ends = true;
            EndWithin(StopTimeout - unloading);
        };
        // Nothing else is raised then. Those who wait for the end of a program that crashed wait no longer than they must. One that
        // raised it by itself (.NET 10) goes on, and may configure again.
        AppDomain.CurrentDomain.UnhandledException += (_, _) => EndWithin(LastWords);
    }

    /// <summary>The one profiler.</summary>
    public static Profiler Instance { get; } = new();

    /// <summary>What runs, and why the rest does not. Some microseconds.</summary>
    public ProfilerStatus Status
    {
        get
        {
            var spans = SpanMirror.Status();
            if (NativeLibraryCheck.Problem is { } problem)
            {
                return new ProfilerStatus(false, problem, [spans]);
            }

            // Without the gate: a stop holds it for seconds.
            var runs = running;
            return new ProfilerStatus(runs, runs ? null : reason, [.. Engine.Features(), spans]);
        }
    }

    /// <summary>What became of every sample: of the profiler that runs, else of the last one, else zeros. Some microseconds.</summary>
    public ProfilerStats Stats =>
        NativeLibraryCheck.IsUsable ? Engine.Stats() : new ProfilerStats(new Dictionary<string, ulong>(), "");

    /// <summary>Whether a profiler runs. A load.</summary>
    internal bool IsRunning => running;

    /// <summary>Whether a start is on its way. A load; before the start is through <see cref="IsRunning"/> says how it went.</summary>
    internal bool IsStarting => starting;

    /// <summary>
    /// Starts the profiler; one that runs already is stopped first, within 5 seconds. It takes milliseconds and never
    /// waits for the server.
    /// </summary>
    /// <param name="configuration">Settings in code, which go before the environment. It is copied.</param>
    /// <returns>
    /// Whether the profiler runs. False where a setting switches it off, or it is not possible here: <see cref="Status"/>
    /// says why, and so do the logger and the EventSource <c>Pyroscope</c>.
    /// </returns>
    /// <exception cref="ArgumentException">
    /// A value is not allowed, in code or in the environment. The message names the property or variable, the value and
    /// what is allowed. Nothing was started.
    /// </exception>
    public bool Configure(ProfilerConfiguration configuration)
    {
        ArgumentNullException.ThrowIfNull(configuration);
        var settings = configuration.Clone();
        try
        {
            lock (gate)
            {
                // Then a span processor starts nothing by itself.
                wasConfigured = true;
                var started = Launch(settings);
                // Unless a value is not allowed, which leaves what runs.
                isOfSpans = false;
                return started;
            }
        }
        finally
        {
            ProfilerMessages.Deliver();
        }
    }

    /// <summary>Uploads what was sampled so far, and waits for it.</summary>
    /// <param name="timeout">How long to wait at most. By default 5 seconds; <see cref="Timeout.InfiniteTimeSpan"/> is an hour.</param>
    /// <returns>True: the server has it, or it was refused or dropped, as <see cref="Stats"/> says. False: no profiler runs, or the time did not suffice.</returns>
    public bool Flush(TimeSpan? timeout = null)
    {
        if (!running)
        {
            return false;
        }

        var flushed = Engine.Flush(timeout ?? StopTimeout);
        ProfilerMessages.Deliver();
        return flushed;
    }

    /// <summary>
    /// Stops the profiler and uploads what there is, 5 seconds at most. The end of the process does it too.
    /// <see cref="Configure"/> may be called again afterwards.
    /// </summary>
    public void Dispose() => Stop(StopTimeout);

    /// <summary>Switches CPU profiling off or on while the profiler runs, whatever the configuration says of it. Else one warning says that it has no effect.</summary>
    /// <param name="enabled">Whether it is on from now on.</param>
    public void SetCPUTrackingEnabled(bool enabled) => SetTracking(Feature.Cpu, enabled);

    /// <summary>Switches allocation profiling off or on while the profiler runs, whatever the configuration says of it. Else one warning says that it has no effect.</summary>
    /// <param name="enabled">Whether it is on from now on.</param>
    public void SetAllocationTrackingEnabled(bool enabled) => SetTracking(Feature.Allocations, enabled);

    /// <summary>Switches lock profiling off or on while the profiler runs, whatever the configuration says of it. Else one warning says that it has no effect.</summary>
    /// <param name="enabled">Whether it is on from now on.</param>
    public void SetContentionTrackingEnabled(bool enabled) => SetTracking(Feature.Locks, enabled);

    /// <summary>Switches exception profiling off or on while the profiler runs, whatever the configuration says of it. Else one warning says that it has no effect.</summary>
    /// <param name="enabled">Whether it is on from now on.</param>
    public void SetExceptionTrackingEnabled(bool enabled) => SetTracking(Feature.Exceptions, enabled);

    /// <summary>
    /// Sets the credentials of the uploads from now on, also of profilers that are configured later without their own.
    /// A profiler that runs is started anew, within 5 seconds. Two empty texts: none from now on, and later profilers have
    /// those of their configuration and environment again.
    /// </summary>
    /// <param name="username">User name, without a colon.</param>
    /// <param name="password">Password or token.</param>
    /// <exception cref="ArgumentException">The user name has a colon.</exception>
    public void SetBasicAuth(string username, string password)
    {
        ArgumentNullException.ThrowIfNull(username);
        ArgumentNullException.ThrowIfNull(password);
        if (username.Contains(':'))
        {
            throw new ArgumentException($"{nameof(username)}: {username} is not allowed; allowed: a name without a colon", nameof(username));
        }

        lock (gate)
        {
            credentials = (username, password) is ("", "") ? null : (username, password);
            if (running && configuration is { } current)
            {
                var settings = current.Clone();
                (settings.BasicAuthUser, settings.BasicAuthPassword) = (username, password);
                Launch(settings);
            }
        }

        ProfilerMessages.Deliver();
    }

    /// <summary>Adds a label to what the calling flow does from now on: this thread, and what it awaits or starts.</summary>
    /// <param name="key">Name, <c>[A-Za-z_][A-Za-z0-9_.]*</c>; another one is left out, with one warning.</param>
    /// <param name="value">Value, of which there should be few: each makes a series in the server.</param>
    public void SetDynamicTag(string key, string value) =>
        LabelFlow.Activate((LabelFlow.Current ?? LabelSet.Empty).BuildUpon().Add(key, value).Build());

    /// <summary>Replaces the labels of the calling flow.</summary>
    /// <param name="tags">Names and values, as <see cref="SetDynamicTag"/> takes them.</param>
    public void SetDynamicTags(Dictionary<string, string> tags)
    {
        ArgumentNullException.ThrowIfNull(tags);
        LabelFlow.Activate(tags.Aggregate(LabelSet.Empty.BuildUpon(), (labels, tag) => labels.Add(tag.Key, tag.Value)).Build());
    }

    /// <summary>Removes all labels of the calling flow.</summary>
    public void ClearDynamicTags() => LabelFlow.Activate(null);

    /// <summary>
    /// Says by hand which span the calling flow is in, where no <see cref="OpenTelemetry.PyroscopeSpanProcessor"/> does.
    /// </summary>
    /// <param name="localRootSpanId">The 8 bytes of the id, read as a number in the machine's order (what
    /// <c>ActivitySpanId.CopyTo</c> into a <c>ulong</c> gives); 0 ends it.</param>
    /// <param name="traceIdHi">The first 8 bytes of the trace id, in the same way.</param>
    /// <param name="traceIdLo">The last 8 bytes.</param>
    public void SetSpanContext(ulong localRootSpanId, ulong traceIdHi, ulong traceIdLo) =>
        SpanMirror.Set(HexId.FromMemory(localRootSpanId), HexId.FromMemory(traceIdHi), HexId.FromMemory(traceIdLo));

    /// <summary>The same without a trace id.</summary>
    /// <param name="profileId">The span id, as <see cref="SetSpanContext"/> takes it.</param>
    [Obsolete("Use SetSpanContext(localRootSpanId, traceIdHi, traceIdLo), or a PyroscopeSpanProcessor.")]
    public void SetProfileId(ulong profileId) => SetSpanContext(profileId, 0, 0);

    /// <summary>Starts what a span processor found in the environment and in the spans' resource.</summary>
    /// <param name="settings">All of it.</param>
    /// <param name="given">What of it the program set, which is told if that has no effect.</param>
    internal void StartUnlessConfigured(ProfilerConfiguration settings, ProfilerConfiguration? given)
    {
        try
        {
            // A span waits for nobody else's start.
            if (!wasConfigured && !running && !starting)
            {
                lock (gate)
                {
                    if (!wasConfigured && !running)
                    {
                        isOfSpans = true;
                        Launch(settings);
                        return;
                    }
                }
            }

            given?.NoteBeyond(configuration);
        }
        finally
        {
            ProfilerMessages.Deliver();
        }
    }

    /// <summary>The name that profiles have, as far as code or PYROSCOPE_APPLICATION_NAME say it.</summary>
    internal string? GivenName() => givenName ?? Environment.GetEnvironmentVariable("PYROSCOPE_APPLICATION_NAME");

    /// <summary>Ends the profiler. True: one ran, and all that it still had was delivered.</summary>
    internal bool Stop(TimeSpan timeout)
    {
        var all = StopSilently(timeout);
        ProfilerMessages.Deliver();
        return all;
    }

    /// <summary>Ends the profiler if a first span started it. True: all was delivered, or there is none of spans.</summary>
    internal bool StopOfSpans(TimeSpan timeout)
    {
        var all = StopSilently(timeout, ofSpans: true);
        ProfilerMessages.Deliver();
        return all;
    }

    private void EndWithin(TimeSpan timeout)
    {
        StopSilently(timeout);
        ProfilerMessages.DeliverWithin(LastWords);
    }

    private bool StopSilently(TimeSpan timeout, bool ofSpans = false)
    {
        var began = Stopwatch.GetTimestamp();
        if (!Monitor.TryEnter(gate, timeout))
        {
            return false;
        }

        try
        {
            if (ofSpans && !(running && isOfSpans))
            {
                return true;
            }

            return End(timeout - Stopwatch.GetElapsedTime(began));
        }
        finally
        {
            Monitor.Exit(gate);
        }
    }

    /// <summary>Under the gate. As the other languages' stop: false where no profiler ran.</summary>
    private bool End(TimeSpan timeout)
    {
        if (!running)
        {
            return false;
        }

        reason = "the profiler was stopped";
        running = false;
        OffTime.End();
        messenger?.Dispose();
        messenger = null;
        return Engine.Stop(timeout);
    }

    private bool Launch(ProfilerConfiguration settings)
    {
        starting = true;
        try
        {
            return Start(settings);
        }
        finally
        {
            starting = false;
        }
    }

    private bool Start(ProfilerConfiguration settings)
    {
        if (settings.Logger is { } logger)
        {
            ProfilerMessages.PassTo(logger);
        }

        if (!NativeLibraryCheck.IsUsable)
        {
            return false;
        }

        if (ends)
        {
            // Nobody would stop it.
            reason = "the process ends";
            return false;
        }

        if (credentials is { } given && settings.BasicAuthUser is null && settings.BasicAuthPassword is null)
        {
            (settings.BasicAuthUser, settings.BasicAuthPassword) = given;
        }

        var answer = Engine.Start(settings.Settings());
        if (answer.kind == AlreadyRunning)
        {
            End(StopTimeout);
            answer = Engine.Start(settings.Settings());
        }

        if (answer.kind == NotAllowed)
        {
            reason = ProfilerConfiguration.Named(answer.text).Text;
            throw ProfilerConfiguration.Refusal(answer.text);
        }

        if (answer.kind == SwitchedOff)
        {
            End(StopTimeout);
        }

        configuration = settings;
        SpanMirror.Links = settings.SpanProfileLinkingEnabled ?? true;
        givenName = settings.ApplicationName;
        if (answer.kind != Done)
        {
            reason = answer.text;
        }

        running = answer.kind == Done;
        if (running)
        {
            CatchUp.Soon();
            if (WaitTest.Passes())
            {
                SpanMirror.MeasureOffTime();
            }

            messenger = Messenger.Start();
            OtherPackage.Check();
        }
        else if (answer.kind != SwitchedOff)
        {
            ProfilerMessages.Note($"No profiles are taken, spans go on working: {answer.text}");
        }

        return running;
    }

    private void SetTracking(Feature feature, bool enabled, [CallerMemberName] string method = "")
    {
        lock (gate)
        {
            var answer = running ? Engine.SetTracking(feature, enabled) : new Answer { kind = SwitchedOff, text = "no profiler runs" };
            if (answer.kind != Done)
            {
                ProfilerMessages.Note($"{method} has no effect: {answer.text}");
            }
        }

        ProfilerMessages.Deliver();
    }
}
