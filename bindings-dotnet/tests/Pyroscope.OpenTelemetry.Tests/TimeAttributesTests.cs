// A test that is cancelled may take a moment longer.
#pragma warning disable xUnit1051
using System.Diagnostics;
using System.Net;
using System.Net.Sockets;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Tests;

/// <summary>A span says what its time went to: what each wait took by the program's own clock, and together no more than the span did.</summary>
public sealed class TimeAttributesTests
{
    private const int Milliseconds = 50;
    private const string Variable = "OTEL_PYROSCOPE_TIME_ATTRIBUTES";
    private static readonly string[] AtHome = ["pyroscope.time.cpu", "pyroscope.time.io", "pyroscope.time.lock", "pyroscope.time.sleep", "pyroscope.time.run_queue", "pyroscope.time.runtime"];

    [Theory]
    [InlineData("sleep")]
    [InlineData("lock")]
    [InlineData("io")]
    public void Waits_of_a_thread_are_told_as_long_as_they_were(string state)
    {
        using var pair = new Pair();
        var gate = new object();
        // Who has asked for something may on a busy machine begin to wait for it when it is there.
        var (asks, wait) = state switch
        {
            "sleep" => (() => { }, () => Thread.Sleep(Milliseconds)),
            "lock" => (() => { }, () => WaitFor(gate)),
            _ => ((Action)pair.Ask, (Action)pair.Receive),
        };
        asks();
        wait();
        using var run = new TimeAttributesRun(SpanScope.Root);
        var taken = 0.0;
        using (TrueSpan.Start("waits"))
        {
            for (var time = 0; time < 5; time++)
            {
                asks();
                taken += Took(wait);
            }
        }

        var span = run.Of("waits");
        AssertTold(Math.Min(taken, 5 * Milliseconds), taken, span, state);
        // Nothing that it did not do, and of one thread its CPU time.
        Assert.Empty(span.Times.Keys.Except(AtHome));
        Assert.True(span["cpu"] > 0, span.ToString());
    }

    [Theory]
    [InlineData(SpanScope.Root)]
    [InlineData(SpanScope.All)]
    public async Task What_a_span_awaits_is_told_as_long_as_it_was(SpanScope scope)
    {
        await Task.Delay(1);
        using var run = new TimeAttributesRun(scope);
        var taken = 0.0;
        using (TrueSpan.Start("awaits"))
        {
            // So often that one or two may be over before they are awaited.
            for (var time = 0; time < 12; time++)
            {
                var began = Stopwatch.GetTimestamp();
                await Task.Delay(Milliseconds);
                taken += Stopwatch.GetElapsedTime(began).TotalMilliseconds;
            }
        }

        var span = run.Of("awaits");
        AssertTold(12 * Milliseconds, taken, span, "await");
        // Its thread did other things meanwhile, whichever it ends on.
        Assert.DoesNotContain("pyroscope.time.cpu", span.Times.Keys);
    }

    [Fact]
    public void A_span_within_which_the_profiler_starts_anew_awaits_nothing_while_its_thread_runs_it()
    {
        using var run = new TimeAttributesRun(SpanScope.Root);
        using (TrueSpan.Start("restart"))
        {
            Profiler.Instance.Configure(new ProfilerConfiguration { ApplicationName = "tests", ServerAddress = "none", WallTimeProfilingEnabled = true });
            var context = ExecutionContext.Capture()!;
            // Others come and go meanwhile.
            for (var time = 0; time < 3; time++)
            {
                using var other = new Thread(() => ExecutionContext.Run(context, _ => { }, null)).Do();
                Thread.Sleep(Milliseconds);
            }
        }

        var span = run.Of("restart");
        Assert.True(span["sleep"] >= 3 * Milliseconds, span.ToString());
        Assert.True(span["await"] < Milliseconds, span.ToString());
        Assert.True(span.IsWithin, span.ToString());
    }

    [Fact]
    public void A_local_root_whose_thread_left_it_has_no_CPU_time_whoever_leaves_it_at_once()
    {
        using var run = new TimeAttributesRun(SpanScope.Root);
        for (var time = 0; time < 500; time++)
        {
            using var span = TrueSpan.Start("left");
            var context = ExecutionContext.Capture()!;
            using var together = new Barrier(2);
            using (new Thread(() => ExecutionContext.Run(context, _ => together.SignalAndWait(), null)).Do())
            {
                together.SignalAndWait();
                var here = Activity.Current;
                Activity.Current = null;
                Activity.Current = here;
            }

            span.Dispose();
            Assert.DoesNotContain("pyroscope.time.cpu", run.Of("left").Times.Keys);
        }
    }

    [Fact]
    public void Spans_within_each_other_each_have_their_own_time()
    {
        using var run = new TimeAttributesRun(SpanScope.All);
        double outer, inner;
        using (var parent = TrueSpan.Start("parent"))
        {
            outer = Took(() => Thread.Sleep(Milliseconds));
            using (TrueSpan.Start("child", parent))
            {
                inner = Took(() => Thread.Sleep(2 * Milliseconds));
                ThreadTime.Burn(20);
            }
        }

        var (around, within) = (run.Of("parent"), run.Of("child"));
        AssertTold(Milliseconds, outer, around, "sleep");
        AssertTold(2 * Milliseconds, inner, within, "sleep");
        Assert.Equal(["pyroscope.time.cpu"], around.Times.Keys.Union(within.Times.Keys).Where(name => name.EndsWith("cpu", StringComparison.Ordinal)));
        // A child span that ends is no await, and its CPU time is the local root's.
        Assert.DoesNotContain("pyroscope.time.await", around.Times.Keys);
        Assert.True(around["cpu"] >= 19 && within["cpu"] == 0, $"{around}; {within}");
    }

    [Fact]
    public void A_thread_that_leaves_its_span_and_comes_back_tells_what_it_waited_for_in_it_and_no_cpu_time()
    {
        using var run = new TimeAttributesRun(SpanScope.Root);
        double taken;
        using (var span = TrueSpan.Start("is left"))
        {
            taken = Took(() => Thread.Sleep(Milliseconds));
            Activity.Current = null;
            Thread.Sleep(Milliseconds);
            Activity.Current = span.Activity;
            taken += Took(() => Thread.Sleep(Milliseconds));
        }

        AssertTold(2 * Milliseconds, taken, run.Of("is left"), "sleep");
        Assert.DoesNotContain("pyroscope.time.cpu", run.Of("is left").Times.Keys);
    }

    [Fact]
    public void A_child_that_is_left_for_its_parent_and_comes_back_tells_all_that_it_waited_for()
    {
        using var run = new TimeAttributesRun(SpanScope.All);
        double taken;
        using (var parent = TrueSpan.Start("parent"))
        using (var child = TrueSpan.Start("child", parent))
        {
            taken = Took(() => Thread.Sleep(Milliseconds));
            Activity.Current = parent.Activity;
            Activity.Current = child.Activity;
            taken += Took(() => Thread.Sleep(Milliseconds));
        }

        AssertTold(2 * Milliseconds, taken, run.Of("child"), "sleep");
    }

    [Fact]
    public void A_local_root_has_all_that_happens_in_it_and_alone_says_so()
    {
        using var run = new TimeAttributesRun(SpanScope.Root);
        double taken;
        using (var parent = TrueSpan.Start("parent"))
        using (TrueSpan.Start("child", parent))
        {
            taken = Took(() => Thread.Sleep(Milliseconds));
        }

        AssertTold(Milliseconds, taken, run.Of("parent"), "sleep");
        Assert.Empty(run.Of("child").Times);
    }

    [Theory]
    [InlineData(SpanScope.Root)]
    [InlineData(SpanScope.All)]
    public async Task Tasks_that_run_at_once_tell_no_more_than_the_span_took(SpanScope scope)
    {
        using var run = new TimeAttributesRun(scope);
        using (TrueSpan.Start("at once"))
        {
            ThreadTime.Burn(20);
            await Task.WhenAll(Enumerable.Range(0, 8).Select(_ => Task.Run(async () =>
            {
                Thread.Sleep(Milliseconds);
                await Task.Delay(Milliseconds);
                Thread.Sleep(Milliseconds);
            })));
        }

        var span = run.Of("at once");
        Assert.True(span.IsWithin, span.ToString());
        Assert.True(span["sleep"] > 0, span.ToString());
    }

    [Fact]
    public void Who_waits_for_its_own_tasks_tells_its_own_wait_alone()
    {
        using var run = new TimeAttributesRun(SpanScope.Root);
        double taken;
        using (TrueSpan.Start("waits for others"))
        {
            using var ready = new CountdownEvent(4);
            using var go = new ManualResetEventSlim();
            var tasks = Enumerable.Range(0, 4).Select(_ => Task.Factory.StartNew(
                () =>
                {
                    ready.Signal();
                    go.Wait();
                    Thread.Sleep(5 * Milliseconds);
                },
                CancellationToken.None,
                TaskCreationOptions.LongRunning,
                TaskScheduler.Default)).ToArray();
            ready.Wait();
            go.Set();
            taken = Took(() => Task.WaitAll(tasks));
        }

        var span = run.Of("waits for others");
        // Who spins before it waits yields, on a busy machine for long.
        Assert.True(span.IsWithin && span["lock"] + span["run_queue"] >= 0.7 * Math.Min(taken, 5 * Milliseconds), $"{span}, {taken:F1} ms");
        Assert.DoesNotContain("pyroscope.time.sleep", span.Times.Keys);
    }

    [Fact]
    public async Task A_task_goes_on_for_its_span_when_who_started_it_has_left()
    {
        using var run = new TimeAttributesRun(SpanScope.Root);
        var taken = 0.0;
        using (TrueSpan.Start("hands over"))
        {
            using var left = new ManualResetEventSlim();
            var task = Task.Run(() =>
            {
                // It is in the span before the other thread leaves it.
                left.Wait();
                taken = Took(() => Thread.Sleep(Milliseconds));
            });
            new Thread(() =>
            {
                Thread.Sleep(Milliseconds);
                left.Set();
            }).UnsafeStart();
            await task;
        }

        var span = run.Of("hands over");
        Assert.True(span["sleep"] >= 0.8 * Milliseconds && span["sleep"] <= taken && span.IsWithin, span.ToString());
    }

    [Fact]
    public async Task A_span_that_another_thread_ends_tells_what_it_awaited_and_no_cpu_time()
    {
        using var run = new TimeAttributesRun(SpanScope.Root);
        var awaited = new TaskCompletionSource();
        Activity activity = null!;
        async Task Flow()
        {
            activity = TrueSpan.Start("ends elsewhere").Activity!;
            await awaited.Task;
        }

        var flow = Flow();
        // It is suspended.
        var leaves = Stopwatch.GetTimestamp();
        await Task.Delay(Milliseconds);
        var least = 0.0;
        var ends = new Thread(() =>
        {
            least = Stopwatch.GetElapsedTime(leaves).TotalMilliseconds;
            activity.Stop();
        });
        ends.UnsafeStart();
        ends.Join();
        awaited.SetResult();
        await flow;
        var span = run.Of("ends elsewhere");
        Assert.True(span["await"] >= 0.8 * least && span.IsWithin, $"{span}, {least:F1} ms");
        Assert.DoesNotContain("pyroscope.time.cpu", span.Times.Keys);
    }

    [Fact]
    public async Task By_default_there_are_none_and_the_variable_asks_for_them()
    {
        foreach (var (value, expected) in new[] { (null, false), ("false", false), ("true", true) })
        {
            Environment.SetEnvironmentVariable(Variable, value);
            try
            {
                using var run = new TimeAttributesRun(SpanScope.Root, null);
                using (TrueSpan.Start("asks"))
                {
                    Thread.Sleep(Milliseconds);
                    await Task.Delay(1);
                }

                Assert.Equal(expected, run.Of("asks").Times.Count > 0);
            }
            finally
            {
                Environment.SetEnvironmentVariable(Variable, null);
            }
        }
    }

    [Fact]
    public void Without_wall_time_there_are_none_and_one_message_says_what_they_need()
    {
        var logger = new Listed();
        using var run = new TimeAttributesRun(SpanScope.Root, true, configuration => (configuration.WallTimeProfilingEnabled, configuration.Logger) = (false, logger));
        for (var time = 0; time < 2; time++)
        {
            using (TrueSpan.Start("has none"))
            {
                Thread.Sleep(1);
            }
        }

        Assert.Empty(run.Of("has none").Times);
        ProfilerMessages.Deliver();
        Assert.Single(logger.Messages, message => message.Contains("TimeAttributes needs wall time, WallTimeProfilingEnabled", StringComparison.Ordinal));
    }

    private static double Took(Action wait)
    {
        var began = Stopwatch.GetTimestamp();
        wait();
        return Stopwatch.GetElapsedTime(began).TotalMilliseconds;
    }

    /// <summary>
    /// At least what was waited for, but for a part that may be over before it is waited for; at most what the program saw it take, which is more by what
    /// its thread stood in a run queue for before and after. And no more than the span in all.
    /// </summary>
    private static void AssertTold(double least, double taken, EndedSpan span, string state)
    {
        Assert.True(span[state] >= 0.8 * least && span[state] <= taken, $"{span}, {taken:F1} ms");
        Assert.True(span.IsWithin, span.ToString());
    }

    private static void WaitFor(object gate)
    {
        lock (gate)
        {
            Monitor.Wait(gate, Milliseconds);
        }
    }

    /// <summary>A socket to which another thread sends something a while after that is asked for.</summary>
    private sealed class Pair : IDisposable
    {
        private readonly SemaphoreSlim asked = new(0);
        private readonly Socket ours = new(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
        private readonly Thread sends;
        private volatile bool ends;

        internal Pair()
        {
            using var listener = new TcpListener(IPAddress.Loopback, 0);
            listener.Start();
            ours.Connect(listener.LocalEndpoint);
            var theirs = listener.AcceptSocket();
            sends = new Thread(() =>
            {
                using (theirs)
                {
                    for (asked.Wait(); !ends; asked.Wait())
                    {
                        Thread.Sleep(Milliseconds);
                        theirs.Send([1]);
                    }
                }
            });
            sends.UnsafeStart();
        }

        public void Dispose()
        {
            ends = true;
            asked.Release();
            sends.Join();
            ours.Dispose();
            asked.Dispose();
        }

        internal void Ask() => asked.Release();

        internal void Receive() => ours.Receive(new byte[1]);
    }
}
