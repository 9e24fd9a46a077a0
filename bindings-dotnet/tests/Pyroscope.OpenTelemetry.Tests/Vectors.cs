using System.Collections.Concurrent;
using System.Diagnostics.Tracing;
using System.Runtime.CompilerServices;
using System.Text.Json;
using System.Text.Json.Nodes;
using Pyroscope.Context;
using Pyroscope.Interop;

namespace Pyroscope.Tests;

/// <summary>What must be the same in every language: tests/conformance, as it was copied beside this program.</summary>
internal static class Vectors
{
    private static ulong spans;

    internal static JsonNode Read(string name) =>
        JsonNode.Parse(File.ReadAllText(Path.Combine(AppContext.BaseDirectory, "conformance", $"{name}.json")))!;

    /// <summary>A text, as it is or as a list of [text, times].</summary>
    internal static string Text(JsonNode value) => value is JsonArray parts
        ? string.Concat(parts.SelectMany(part => Enumerable.Repeat((string)part![0]!, (int)part[1]!)))
        : (string)value!;

    /// <summary>Names and values, or nothing.</summary>
    internal static Dictionary<string, string?> Texts(JsonNode? pairs) =>
        pairs is null ? [] : pairs.AsObject().ToDictionary(pair => pair.Key, pair => pair.Value is null ? null : Text(pair.Value));

    /// <summary>A setting's or a statistic's name as C# writes it.</summary>
    internal static string InPascalCase(string name) =>
        string.Concat(name.Split('_').Select(word => char.ToUpperInvariant(word[0]) + word[1..]));

    /// <summary>Uses CPU time until this thread is one of those that are sampled; then some of each piece of it is.</summary>
    internal static void BurnUntilThisThreadIsSampled()
    {
        // Another each time: a span is known to be sampled for longer than a test.
        var span = Interlocked.Increment(ref spans);
        Profiler.Instance.SetSpanContext(span, 0, 0);
        for (var time = 0; time < 1_000 && HotNative.IsSampled(HexId.FromMemory(span)) == 0; time++)
        {
            ThreadTime.Burn(5);
        }

        Profiler.Instance.SetSpanContext(0, 0, 0);
    }

    /// <summary>
    /// Uses CPU time until there is a sample of it, which a busy machine may put off: until more were kept than other threads can
    /// have at 1,000 a second of their CPU time.
    /// </summary>
    internal static void BurnUntilSampled()
    {
        static double OfOthers() => ThreadTime.OfAllThreads - ThreadTime.Seconds;
        static double Kept() => Profiler.Instance.Stats.Taken.Samples - Profiler.Instance.Stats.DroppedRing.Samples;
        var (before, others) = (Kept(), OfOthers());
        for (var time = 0; time == 0 || (Kept() - before < 2 + (1_000 * (OfOthers() - others)) && time < 100); time++)
        {
            // At least two of the kernel's ticks, by which it looks at timers.
            ThreadTime.Burn(25);
        }
    }
}

/// <summary>All that was told since the process started: a sentence about a label comes once a process.</summary>
internal sealed class Told : EventListener
{
    private static readonly ConcurrentQueue<string> Sentences = new();
    private static Told? listener;

    internal static string[] All => [.. Sentences];

    [ModuleInitializer]
    internal static void Listen() => listener = new Told();

    protected override void OnEventSourceCreated(EventSource source)
    {
        if (source.Name == "Pyroscope")
        {
            EnableEvents(source, EventLevel.Informational);
        }
    }

    protected override void OnEventWritten(EventWrittenEventArgs written) => Sentences.Enqueue((string)written.Payload![0]!);
}
