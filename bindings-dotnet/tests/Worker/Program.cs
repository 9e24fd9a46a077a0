// Some spans that burn CPU, allocate, wait and throw, on whatever day it is. The environment says what the profiler does.
// Prints one line of JSON: how it went. Ends without disposing anything, as programs do.
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Text.Json.Nodes;
using Microsoft.Extensions.Logging;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope;
using Pyroscope.Tests;
using Pyroscope.OpenTelemetry;

if (Environment.GetEnvironmentVariable("WORKER_ENDS") is { } how)
{
    Ending.Run(how);
    return;
}

var logger = new Collecting();
var signal = Environment.GetEnvironmentVariable("WORKER_RESETS_SIGNAL") is null ? null : new RuntimeSignal();
var source = new ActivitySource("Worker");
var meanwhile = Environment.GetEnvironmentVariable("WORKER_SPAN_MEANWHILE") is null ? null : new SpanMeanwhile(source);
var before = Environment.GetEnvironmentVariable("WORKER_CONFIGURES_BEFORE");
if (before is not null)
{
    Profiler.Instance.Configure(new ProfilerConfiguration { SampleRate = 50 });
}

var provider = Sdk.CreateTracerProviderBuilder().AddSource(source.Name).AddPyroscope(settings =>
{
    settings.Logger = logger;
    settings.Tags = meanwhile?.Labels ?? settings.Tags;
    if (before is not null)
    {
        settings.ApplicationName = before.Length > 0 ? before : null;
        (settings.SampleRate, settings.WallTimeProfilingEnabled) = (50, true);
    }
}).Build();
var another = Environment.GetEnvironmentVariable("WORKER_HAS_ANOTHER_PROVIDER") is null ? null : new ActivitySource("Another");
if (another is not null)
{
    using var ofAnother = Sdk.CreateTracerProviderBuilder().AddSource(another.Name).AddPyroscope().Build();
    // It starts the profiler, which the other provider's first span meets.
    another.StartActivity("first")?.Dispose();
    source.StartActivity("second")?.Dispose();
}

var gate = new object();
int spans = 0, tagged = 0, caught = 0;
if (signal is not null)
{
    // The first span starts the profiler, whose handler is then taken away.
    source.StartActivity("start")?.Dispose();
    signal.PutBack();
    for (var time = 0; time < 1000 && Profiler.Instance.Status["cpu"].IsOn; time++)
    {
        Thread.Sleep(20);
    }
}

if (meanwhile is not null)
{
    source.StartActivity("first")?.Dispose();
    meanwhile.End();
}

await Task.WhenAll(Enumerable.Range(0, 4).Select(number => Task.Run(async () =>
{
    for (var time = 0; time < 10; time++)
    {
        using var span = source.StartActivity("work");
        Interlocked.Increment(ref spans);
        Interlocked.Add(ref tagged, span?.GetTagItem("pyroscope.profile.id") is string ? 1 : 0);
        await Task.Yield();
        // By its own clock: on a busy machine a thread may not run at all in 10 ms.
        ThreadTime.Burn(10);
        lock (gate)
        {
            GC.KeepAlive(Numbers.Allocate());
            Thread.Sleep(1);
        }

        try
        {
            throw new InvalidOperationException($"{number}");
        }
        catch (InvalidOperationException)
        {
            Interlocked.Increment(ref caught);
        }

        try
        {
            _ = Numbers.LengthOf(null!);
        }
        catch (NullReferenceException)
        {
            Interlocked.Increment(ref caught);
        }
    }
})));
// On a busy machine none of those may have met another one at the lock.
using (source.StartActivity("work"))
{
    var waiting = new Thread(() =>
    {
        lock (gate)
        {
        }
    });
    lock (gate)
    {
        waiting.Start();
        while (!waiting.ThreadState.HasFlag(System.Threading.ThreadState.WaitSleepJoin))
        {
            Thread.Yield();
        }
    }

    waiting.Join();
}

Profiler.Instance.Flush(TimeSpan.FromSeconds(2));
var status = Profiler.Instance.Status;
if (another is not null)
{
    provider.Dispose();
    // No profiler runs any more.
    Profiler.Instance.SetContentionTrackingEnabled(true);
}

// By hand, as a trimmed program may not ask what an object has.
Console.WriteLine(new JsonObject
{
    ["spans"] = spans,
    ["tagged"] = tagged,
    ["meanwhileAtFirst"] = meanwhile?.TagAtFirst ?? "",
    ["meanwhile"] = meanwhile?.Tag ?? "",
    ["caught"] = caught,
    ["running"] = status.IsRunning,
    ["reason"] = status.Reason ?? "",
    ["features"] = new JsonObject(status.Features.Select(feature => KeyValuePair.Create(feature.Name, (JsonNode?)(feature.Reason ?? "")))),
    ["warnings"] = new JsonArray([.. logger.Warnings.Select(warning => JsonValue.Create(warning))]),
    ["ended"] = !Profiler.Instance.Status.IsRunning,
    ["taken"] = Profiler.Instance.Stats.Taken.Samples,
}.ToJsonString());
GC.KeepAlive(provider);

internal static class Numbers
{
    /// Known to nobody who compiles the caller, such as a trimmer.
    [MethodImpl(MethodImplOptions.NoInlining)]
    internal static int LengthOf(string text) => text.Length;

    internal static object Allocate() => Enumerable.Range(0, 1000).Select(number => new string('x', number % 100)).ToArray();
}

/// What the runtime's own signal, SIGRTMIN, does when this is made.
internal sealed partial class RuntimeSignal
{
    private const int Number = 34;
    private readonly byte[] action = new byte[152];

    internal RuntimeSignal() => _ = Action(Number, null, action);

    internal void PutBack() => _ = Action(Number, action, null);

    [LibraryImport("libc", EntryPoint = "sigaction")]
    private static partial int Action(int signal, byte[]? set, [In, Out] byte[]? before);
}

internal sealed class Collecting : ILogger
{
    internal List<string> Warnings { get; } = [];

    public IDisposable? BeginScope<TState>(TState state)
        where TState : notnull => null;

    public bool IsEnabled(LogLevel level) => true;

    public void Log<TState>(LogLevel level, EventId id, TState state, Exception? error, Func<TState, Exception?, string> text)
    {
        lock (Warnings)
        {
            if (level >= LogLevel.Warning)
            {
                Warnings.Add(text(state, error));
            }
        }
    }
}
