using System.Diagnostics;
using System.Text.Json.Nodes;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.Context;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Tests;

/// <summary>The vectors that all languages share, of spans, scopes and tags: what samples of code in them carry.</summary>
public sealed class ConformanceSpanTests
{
    /// <summary>The tag by which the samples of a piece of code are found.</summary>
    private const string Node = "node";

    private static readonly JsonNode Spans = Vectors.Read("spans");
    private static readonly JsonNode Scopes = Vectors.Read("scopes");
    private static readonly JsonNode Blocks = Vectors.Read("tags")["blocks"]!;

    [Fact]
    public void Tags_of_blocks()
    {
        using var run = Run();
        foreach (var (each, number) in Blocks.AsArray().Select((each, number) => (each!, number)))
        {
            // Labels replace those in force: to enter some within others is to build upon them.
            var entered = LabelSet.Empty;
            void Enter(IEnumerable<JsonNode?> tags)
            {
                if (!tags.Any())
                {
                    Burn($"{number}");
                    return;
                }

                entered = With(entered, Vectors.Texts(tags.First()));
                LabelsWrapper.Do(entered, () => Enter(tags.Skip(1)));
            }

            Enter(each["enter"]!.AsArray());
        }

        var samples = run.End();
        foreach (var (each, number) in Blocks.AsArray().Select((each, number) => (each!, number)))
        {
            Assert.Equal(Sorted(Vectors.Texts(each["labels"])), LabelsOf(samples, $"{number}"));
        }
    }

    [Fact]
    public void Names_of_spans()
    {
        using var run = Run();
        var ids = new List<Activity>();
        foreach (var (each, number) in Spans["names"]!.AsArray().Select((each, number) => (each!, number)))
        {
            using var span = TrueSpan.Source.StartActivity(Vectors.Text(each["name"]!))!;
            Burn($"name {number}");
            ids.Add(span);
        }

        var samples = run.End();
        foreach (var (each, number) in Spans["names"]!.AsArray().Select((each, number) => (each!, number)))
        {
            Assert.Equal(Carrying(ids[number], Vectors.Text(each["label"]!)), LabelsOf(samples, $"name {number}"));
        }
    }

    /// <summary>By hand, and without names: .NET makes the id of a span itself.</summary>
    [Fact]
    public void Ids_of_spans()
    {
        using var run = Run();
        Span<byte> span = stackalloc byte[8], trace = stackalloc byte[16];
        foreach (var each in Spans["ids"]!.AsArray())
        {
            ActivitySpanId.CreateFromString((string)each!["span_id"]!).CopyTo(span);
            ActivityTraceId.CreateFromString((string)each["trace_id"]!).CopyTo(trace);
            Profiler.Instance.SetSpanContext(BitConverter.ToUInt64(span), BitConverter.ToUInt64(trace), BitConverter.ToUInt64(trace[8..]));
            Burn((string)each["span_id"]!);
        }

        Profiler.Instance.SetSpanContext(0, 0, 0);
        var samples = run.End();
        Assert.All(Spans["ids"]!.AsArray(), each => Assert.Equal(Sorted(Vectors.Texts(each)), LabelsOf(samples, (string)each!["span_id"]!)));
    }

    [Theory]
    [InlineData("root")]
    [InlineData("all")]
    public void Scopes_of_spans(string scope)
    {
        var all = Scopes["spans"]!.AsArray().SelectMany(All).ToArray();
        var unseen = all.Where(span => (bool?)span["sampled"] == false).Select(span => (string)span["name"]!);
        var started = new Dictionary<string, Activity?>();
        PprofSample[] samples;
        using (var source = new ActivitySource("Pyroscope.Tests.Conformance"))
        using (var run = Run())
        using (Sdk.CreateTracerProviderBuilder().AddSource(source.Name).SetSampler(new AllBut(unseen))
            .AddProcessor(new PyroscopeSpanProcessor(Enum.Parse<SpanScope>(scope, true))).Build())
        {
            foreach (var span in Scopes["spans"]!.AsArray())
            {
                Go(span!, source, started);
            }

            samples = run.End();
        }

        foreach (var span in all)
        {
            var (name, carried) = ((string)span["name"]!, (string?)span[scope]);
            Assert.Equal(carried is null ? [] : Carrying(started[carried]!, carried), LabelsOf(samples, name));
            var own = started[name]?.GetTagItem(PyroscopeSpanProcessor.ProfileIdTag);
            Assert.Equal(carried == name ? started[name]!.SpanId.ToHexString() : null, own);
        }
    }

    /// <summary>Runs a span of the vectors, and burns before its first child and after each.</summary>
    private static void Go(JsonNode span, ActivitySource source, Dictionary<string, Activity?> started)
    {
        var (name, around) = ((string)span["name"]!, Activity.Current);
        var remote = new ActivityContext(ActivityTraceId.CreateRandom(), ActivitySpanId.CreateRandom(), ActivityTraceFlags.Recorded, isRemote: true);
        if (span["parent"] is not null)
        {
            // There is no other way to say that what is current is not the parent.
            Activity.Current = null;
        }

        using (started[name] = source.StartActivity(name, ActivityKind.Internal, (string?)span["parent"] == "remote" ? remote : default))
        {
            Burn(name);
            foreach (var child in span["children"]?.AsArray() ?? [])
            {
                Go(child!, source, started);
                Burn(name);
            }
        }

        Activity.Current = around;
    }

    private static IEnumerable<JsonNode> All(JsonNode? span) => (span!["children"]?.AsArray() ?? []).SelectMany(All).Prepend(span);

    private static ProfiledRun Run()
    {
        var run = new ProfiledRun(SpanScope.Root, configuration => configuration.SampleRate = 1000);
        Vectors.BurnUntilThisThreadIsSampled();
        return run;
    }

    private static void Burn(string node)
    {
        LabelsWrapper.Do(With(LabelFlow.Current ?? LabelSet.Empty, new() { [Node] = node }), Vectors.BurnUntilSampled);
    }

    private static LabelSet With(LabelSet labels, Dictionary<string, string?> more)
    {
        var builder = labels.BuildUpon();
        foreach (var (name, value) in more)
        {
            builder.Add(name, value!);
        }

        return builder.Build();
    }

    /// <summary>What each sample of a node carries beside; all carry the same.</summary>
    private static SortedDictionary<string, string?> LabelsOf(PprofSample[] samples, string node)
    {
        var found = samples.Where(sample => sample.Label(Node) == node)
            .Select(sample => Sorted(sample.Labels.Where(label => label.Key != Node).ToDictionary(label => label.Key, label => (string?)label.Value))).ToArray();
        Assert.NotEmpty(found);
        Assert.All(found, labels => Assert.Equal(found[0], labels));
        return found[0];
    }

    private static SortedDictionary<string, string?> Carrying(Activity span, string name) => Sorted(new()
    {
        ["span_id"] = span.SpanId.ToHexString(), ["trace_id"] = span.TraceId.ToHexString(), ["span_name"] = name,
    });

    private static SortedDictionary<string, string?> Sorted(Dictionary<string, string?> labels) => new(labels, StringComparer.Ordinal);

    /// <summary>Leaves out the spans that the vectors say nobody exports.</summary>
    private sealed class AllBut(IEnumerable<string> unseen) : Sampler
    {
        private readonly HashSet<string> unseen = [.. unseen];

        public override SamplingResult ShouldSample(in SamplingParameters parameters) =>
            new(unseen.Contains(parameters.Name) ? SamplingDecision.Drop : SamplingDecision.RecordAndSample);
    }
}
