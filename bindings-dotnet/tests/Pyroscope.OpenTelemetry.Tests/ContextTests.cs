using System.Diagnostics;
using System.Reflection;
using System.Runtime.Loader;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.Context;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Tests;

/// <summary>At every checkpoint of every scenario the thread's block holds the span that is current there.</summary>
public sealed class ContextTests : IDisposable
{
    public ContextTests() => Profiler.Instance.Configure(new ProfilerConfiguration { ProfilingEnabled = false });

    public static TheoryData<string, SpanScope> Scenarios()
    {
        var data = new TheoryData<string, SpanScope>();
        foreach (var method in typeof(ContextScenarios).GetMethods(BindingFlags.Instance | BindingFlags.NonPublic | BindingFlags.DeclaredOnly))
        {
            if (method.ReturnType == typeof(Task) && method.GetParameters().Length == 0 && !method.Name.Contains('<'))
            {
                data.Add(method.Name, SpanScope.All);
                data.Add(method.Name, SpanScope.Root);
            }
        }

        Assert.Equal(42, data.Count);
        return data;
    }

    [Theory]
    [MemberData(nameof(Scenarios))]
    public async Task The_block_is_right_wherever_code_goes_on(string scenario, SpanScope scope)
    {
        var at = new Checkpoints(scope);
        using (Provider(scope))
        {
            var method = typeof(ContextScenarios).GetMethod(scenario, BindingFlags.Instance | BindingFlags.NonPublic)!;
            await Task.Run(() => (Task)method.Invoke(new ContextScenarios(at), null)!, TestContext.Current.CancellationToken);
        }

        Assert.True(at.Passed >= 100, $"{at.Passed} checkpoints");
        Assert.Empty(at.Wrong);
        // There Activity.Current itself is not what the program means, and samples may carry no worse than that.
        if (scenario is not (nameof(ContextScenarios.AsyncIteratorsThatHoldTheirSpan) or nameof(ContextScenarios.StoppedByAnotherFlow)))
        {
            Assert.Empty(at.WrongAsActivityCurrent);
        }
    }

    [Fact]
    public void A_root_alone_has_the_tag_in_the_scope_root_and_every_span_in_the_scope_all()
    {
        Profiler.Instance.Configure(new ProfilerConfiguration { ApplicationName = "tags", ServerAddress = "none" });
        foreach (var (scope, tagged) in new[] { (SpanScope.Root, false), (SpanScope.All, true) })
        {
            using var provider = Provider(scope);
            using var root = TrueSpan.Start("root");
            using var child = TrueSpan.Start("child", root);
            Assert.Equal(root.Activity!.SpanId.ToHexString(), root.Activity.GetTagItem("pyroscope.profile.id"));
            Assert.Equal(tagged ? child.Activity!.SpanId.ToHexString() : null, child.Activity!.GetTagItem("pyroscope.profile.id"));
        }
    }

    [Fact]
    public void Spans_get_no_tag_where_no_profiler_runs()
    {
        using var provider = Provider(SpanScope.All);
        using var root = TrueSpan.Start("root");
        Assert.Null(root.Activity!.GetTagItem("pyroscope.profile.id"));
    }

    [Fact]
    public void A_span_that_is_current_when_the_processor_comes_is_known_at_once()
    {
        using var early = Sdk.CreateTracerProviderBuilder().AddSource(TrueSpan.Source.Name).Build();
        using var root = TrueSpan.Start("root");
        using var provider = Provider(SpanScope.All);
        Assert.Equal(root.SpanId, ThreadBlock.Current.SpanId);
    }

    [Fact]
    public void After_the_last_processor_no_block_has_a_span_also_in_contexts_captured_before()
    {
        ExecutionContext captured;
        using (var first = Provider(SpanScope.All))
        using (Provider(SpanScope.All))
        {
            using var root = TrueSpan.Start("root");
            captured = ExecutionContext.Capture()!;
            first.Dispose();
            using var child = TrueSpan.Start("child");
            Assert.Equal(child.SpanId, ThreadBlock.Current.SpanId);
        }

        Assert.Equal(0ul, ThreadBlock.Current.SpanId);
        ExecutionContext.Run(captured, _ => Assert.Equal(0ul, ThreadBlock.Current.SpanId), null);
        using (TrueSpan.Start("after"))
        {
            Assert.Equal(0ul, ThreadBlock.Current.SpanId);
        }
    }

    [Fact]
    public void A_span_that_another_flow_ended_gives_way_to_its_nearest_running_ancestor()
    {
        using var provider = Provider(SpanScope.All);
        using var root = TrueSpan.Start("root");
        var child = TrueSpan.Start("child", root);
        var inChild = ExecutionContext.Capture()!;
        var other = new Thread(child.Dispose);
        other.UnsafeStart();
        other.Join();
        Activity.Current = null;
        ExecutionContext.Run(inChild, _ => Assert.Equal(root.SpanId, ThreadBlock.Current.SpanId), null);
        root.Dispose();
        // Nothing runs around it any more: what it does late is its own.
        ExecutionContext.Run(inChild, _ => Assert.Equal(child.SpanId, ThreadBlock.Current.SpanId), null);
    }

    [Fact]
    public async Task A_copy_of_the_assembly_in_another_load_context_takes_no_span_away_once_its_processor_is_gone()
    {
        using var provider = Provider(SpanScope.All);
        var copy = new AssemblyLoadContext("copy").LoadFromAssemblyPath(typeof(Profiler).Assembly.Location);
        Assert.NotSame(typeof(Profiler).Assembly, copy);
        var other = (IDisposable)Activator.CreateInstance(copy.GetType(typeof(PyroscopeSpanProcessor).FullName!)!)!;
        using var root = TrueSpan.Start("root");
        await Task.Yield();
        var elsewhere = new Thread(other.Dispose);
        elsewhere.UnsafeStart();
        elsewhere.Join();
        for (var time = 0; time < 20; time++)
        {
            await Task.Yield();
            Assert.Equal(root.SpanId, ThreadBlock.Current.SpanId);
        }
    }

    [Fact]
    public void Without_linking_blocks_and_spans_stay_as_they_are()
    {
        Profiler.Instance.Configure(new ProfilerConfiguration { ApplicationName = "apart", ServerAddress = "none", SpanProfileLinkingEnabled = false });
        using var provider = Provider(SpanScope.All);
        using var root = TrueSpan.Start("root");
        Assert.Equal(0ul, ThreadBlock.Current.SpanId);
        Assert.Null(root.Activity!.GetTagItem("pyroscope.profile.id"));
        Assert.Contains("SpanProfileLinkingEnabled", Profiler.Instance.Status["spans"].Reason);
    }

    [Fact]
    public async Task Ids_set_by_hand_flow_and_are_read_in_the_machines_order()
    {
        var id = ActivitySpanId.CreateFromString("0102030405060708");
        var bytes = new byte[8];
        id.CopyTo(bytes);
        Profiler.Instance.SetSpanContext(BitConverter.ToUInt64(bytes), 0, 0);
        await Task.Yield();
        Assert.Equal(0x0102030405060708ul, ThreadBlock.Current.SpanId);
        Profiler.Instance.SetSpanContext(0, 0, 0);
        Assert.Equal(0ul, ThreadBlock.Current.SpanId);
    }

    [Fact]
    public void A_root_span_allocates_at_most_440_bytes_more_than_with_the_sdk_alone()
    {
        long alone;
        using (Sdk.CreateTracerProviderBuilder().AddSource(TrueSpan.Source.Name).AddProcessor(new Idle()).Build())
        {
            alone = BytesOfARoot();
        }

        Profiler.Instance.Configure(new ProfilerConfiguration { ApplicationName = "bytes", ServerAddress = "none" });
        using (Provider(SpanScope.Root))
        {
            Assert.InRange(BytesOfARoot() - alone, 1, 440);
        }
    }

    [Theory]
    [InlineData("0123456789abcdef", 0x0123456789abcdeful)]
    [InlineData("FEDCBA9876543210", 0xfedcba9876543210ul)]
    [InlineData("ffffffffffffffff", ulong.MaxValue)]
    [InlineData("123", 0ul)]
    public void Hexadecimal_digits_are_read(string digits, ulong value) => Assert.Equal(value, HexId.Parse(digits, 0));

    public void Dispose() => Profiler.Instance.Dispose();

    // The least of many, as what is done for the first time allocates more.
    private static long BytesOfARoot() => Enumerable.Range(0, 100).Min(_ =>
    {
        var before = GC.GetAllocatedBytesForCurrentThread();
        for (var time = 0; time < 10; time++)
        {
            TrueSpan.Source.StartActivity("root")!.Dispose();
        }

        return (GC.GetAllocatedBytesForCurrentThread() - before) / 10;
    });

    private static TracerProvider Provider(SpanScope scope) => Sdk.CreateTracerProviderBuilder()
        .AddSource(TrueSpan.Source.Name, "Microsoft.AspNetCore", "System.Net.Http")
        .SetSampler(new ByName())
        .AddProcessor(new PyroscopeSpanProcessor(scope))
        .Build()!;

    private sealed class Idle : BaseProcessor<Activity>;

    private sealed class ByName : Sampler
    {
        public override SamplingResult ShouldSample(in SamplingParameters span) =>
            new(span.Name == "unsampled" ? SamplingDecision.Drop : SamplingDecision.RecordAndSample);
    }
}
