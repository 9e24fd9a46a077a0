using System.Collections.Concurrent;
using System.Runtime.CompilerServices;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Tests;

/// <summary>What is in profiles is what the program did.</summary>
public sealed class ProfileTests
{
    private const string Cpu = "process_cpu";

    [Fact]
    public async Task Every_sample_of_code_in_a_span_carries_that_span()
    {
        using var run = new ProfiledRun();
        var ids = new ConcurrentDictionary<string, string>();
        await Task.WhenAll(Enumerable.Range(0, 8).Select(_ => Task.Run(async () =>
        {
            for (var time = 0; time < 4; time++)
            {
                using var root = Named("outer", ids);
                BurnInOuter();
                using (Named("inner", ids))
                {
                    await Task.Yield();
                    BurnInInner();
                }

                await Task.Yield();
                BurnInOuter();
            }
        })));
        var samples = run.End();
        Judge(samples, nameof(BurnInOuter), "outer", ids);
        Judge(samples, nameof(BurnInInner), "inner", ids);
    }

    [Fact]
    public void In_the_scope_root_samples_carry_the_root_with_what_its_children_did()
    {
        using var run = new ProfiledRun(SpanScope.Root);
        var ids = new ConcurrentDictionary<string, string>();
        using (Named("outer", ids))
        using (Named("inner", new()))
        {
            for (var time = 0; time < 40; time++)
            {
                BurnInInner();
            }
        }

        Judge(run.End(), nameof(BurnInInner), "outer", ids);
    }

    [Fact]
    public void A_span_that_is_renamed_has_its_last_name()
    {
        using var run = new ProfiledRun();
        using (var span = TrueSpan.Start("first name"))
        {
            ThreadTime.Burn(200);
            span.Activity!.DisplayName = "GET /cart/{id}";
        }

        var named = run.End().Where(sample => sample.Label("span_id") is not null).Select(sample => sample.Label("span_name")).ToArray();
        Assert.NotEmpty(named);
        Assert.All(named, name => Assert.Equal("GET /cart/{id}", name));
    }

    [Fact]
    public void A_method_that_was_compiled_while_no_profiler_ran_has_its_name()
    {
        BurnEarly(1);
        using var run = new ProfiledRun();
        BurnEarly(500);
        Assert.InRange(Weight(run.End().Where(sample => Has(sample, nameof(BurnEarly)))), 0.3e9, long.MaxValue);
    }

    [Fact]
    public async Task Samples_carry_the_labels_in_force()
    {
        using var run = new ProfiledRun();
        var labels = LabelSet.Empty.BuildUpon().Add("region", "eu").Build();
        await LabelsWrapper.Do(labels, async () =>
        {
            await Task.Yield();
            BurnAlone();
        });
        for (var time = 0; time < 100; time++)
        {
            BurnInOuter();
        }

        var samples = run.End();
        foreach (var (method, region) in new[] { (nameof(BurnAlone), "eu"), (nameof(BurnInOuter), null) })
        {
            var there = samples.Where(sample => Has(sample, method)).ToArray();
            Assert.NotEmpty(there);
            Assert.All(there, sample => Assert.Equal(region, sample.Label("region")));
        }
    }

    [Fact]
    public void The_cpu_time_of_a_span_is_what_its_thread_used()
    {
        using var run = new ProfiledRun();
        var burnt = 0.0;
        var thread = new Thread(() =>
        {
            // What a new thread uses before the profiler knows it is not seen.
            Vectors.BurnUntilThisThreadIsSampled();
            using var span = TrueSpan.Start("alone");
            var before = ThreadTime.Seconds;
            ThreadTime.Burn(1_500);
            burnt = ThreadTime.Seconds - before;
        });
        thread.Start();
        thread.Join();
        var samples = run.End();
        var seen = Weight(samples.Where(sample => sample.Label("span_name") == "alone")) / 1e9;
        // A busy machine's timers are some periods late: what is due as the thread ends is in no span.
        var late = Weight(samples.Where(sample => sample.Frames[0] == "(thread ended)")) / 1e9;
        Assert.True(seen + late > burnt - 0.1 && seen < burnt + 0.05, $"{seen} and {late} of {burnt}");
    }

    [Fact]
    public void A_flush_without_end_waits_until_all_is_settled()
    {
        using var run = new ProfiledRun();
        Vectors.BurnUntilThisThreadIsSampled();
        Assert.True(Profiler.Instance.Flush(Timeout.InfiniteTimeSpan));
        Assert.True(Profiler.Instance.Stats.Uploaded.Samples > 0);
    }

    [Fact]
    public void Statistics_add_up_and_reach_the_files()
    {
        using var run = new ProfiledRun();
        Vectors.BurnUntilThisThreadIsSampled();
        ThreadTime.Burn(300);
        Assert.True(Profiler.Instance.Flush(TimeSpan.FromSeconds(10)));
        Assert.True(Profiler.Instance.Stats.Uploaded.Samples > 0);
        var samples = run.End();
        var stats = Profiler.Instance.Stats;
        Assert.Equal(stats.Taken.Weight, stats.DroppedRing.Weight + stats.DroppedWindow.Weight + stats.Pending.Weight + stats.Encoded.Weight);
        Assert.Equal(stats.Encoded.Weight, stats.Queued.Weight + stats.Uploaded.Weight + stats.Refused.Weight + stats.DroppedQueue.Weight + stats.DroppedOld.Weight + stats.Discarded.Weight);
        Assert.Equal((long)stats.Uploaded.Weight, Weight(samples));
        Assert.Equal("", stats.LastError);
    }

    [Fact]
    public void Every_part_that_is_on_says_so_and_every_other_says_why_not()
    {
        using var run = new ProfiledRun();
        var status = Profiler.Instance.Status;
        Assert.True(status.IsRunning);
        Assert.True(status["cpu"].IsOn, status["cpu"].Reason);
        Assert.True(status["spans"].IsOn, status["spans"].Reason);
        Assert.All(status.Features, feature => Assert.NotEqual(feature.IsOn, feature.Reason is { Length: > 0 }));
        var error = Assert.Throws<ArgumentException>(() => status["gpu"]);
        Assert.Contains("gpu is not allowed; allowed: cpu, ", error.Message);
    }

    // Not optimized, nor are the next ones: what they call at their end would take their place on the stack.
    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.NoOptimization)]
    private static void BurnInOuter() => ThreadTime.Burn(10);

    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.NoOptimization)]
    private static void BurnInInner() => ThreadTime.Burn(10);

    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.NoOptimization)]
    private static void BurnAlone() => ThreadTime.Burn(1_000);

    // Optimized at once, so that there is no second compilation that is told.
    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
    private static void BurnEarly(int milliseconds) => ThreadTime.Burn(milliseconds);

    private static TrueSpan Named(string name, ConcurrentDictionary<string, string> ids)
    {
        var span = TrueSpan.Start(name);
        ids[span.Activity!.SpanId.ToHexString()] = span.Activity.TraceId.ToHexString();
        return span;
    }

    private static bool Has(PprofSample sample, string method) => sample.Frames.Any(frame => frame.EndsWith($".{method}", StringComparison.Ordinal));

    private static long Weight(IEnumerable<PprofSample> samples) => samples.Sum(sample => sample.Values[0]);

    private static void Judge(PprofSample[] samples, string method, string span, ConcurrentDictionary<string, string> ids)
    {
        var there = samples.Where(sample => Has(sample, method)).ToArray();
        Assert.True(Weight(there) >= 0.1e9, $"{Weight(there) / 1e9} s of CPU in {method}");
        Assert.All(there, sample =>
        {
            Assert.Equal(span, sample.Label("span_name"));
            Assert.Equal(ids[sample.Label("span_id")!], sample.Label("trace_id"));
        });
    }
}
