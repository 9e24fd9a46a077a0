// A test that is cancelled may take a moment longer.
#pragma warning disable xUnit1051
using System.Collections.Concurrent;
using System.Diagnostics;
using System.Net;
using System.Net.Sockets;
using Pyroscope.OpenTelemetry;

namespace Pyroscope.Tests;

/// <summary>How long no thread runs a span is seen: by the program's own clock, around its awaits.</summary>
public sealed class AwaitTests
{
    private const int Milliseconds = 20;

    /// <summary>Ways to await, each of which takes <see cref="Milliseconds"/> at least.</summary>
    private static readonly Dictionary<string, Func<Task>> Ways = new()
    {
        ["delay"] = () => Task.Delay(Milliseconds),
        ["several"] = () => Task.WhenAll(Task.Delay(1), Task.Delay(Milliseconds / 2), Task.Delay(Milliseconds)),
        ["semaphore"] = AwaitSemaphore,
        ["chain"] = AwaitInAChain,
        ["value task"] = async () => await AwaitValueTask(),
        ["socket"] = AwaitSocket,
        ["timeout"] = AwaitTimeout,
        ["canceled"] = AwaitCanceled,
        ["throws"] = AwaitThrows,
        ["iterator"] = AwaitIterator,
        ["without context"] = async () => await Task.Delay(Milliseconds).ConfigureAwait(ConfigureAwaitOptions.ForceYielding),
    };

    [Theory]
    [InlineData(SpanScope.All)]
    [InlineData(SpanScope.Root)]
    public async Task A_span_that_another_thread_makes_current_by_hand_is_run_by_it(SpanScope scope)
    {
        using var run = WallTime.Run(scope);
        var (ran, took, began) = (TimeSpan.Zero, TimeSpan.Zero, Stopwatch.GetTimestamp());
        using (var span = TrueSpan.Start("by hand"))
        {
            var activity = Activity.Current;
            var ended = new TaskCompletionSource();
            var thread = new Thread(() =>
            {
                Activity.Current = activity;
                var since = Stopwatch.GetTimestamp();
                Thread.Sleep(10 * Milliseconds);
                ran = Stopwatch.GetElapsedTime(since);
                Activity.Current = null;
                ended.SetResult();
            });
            thread.UnsafeStart();
            await ended.Task;
            took = Stopwatch.GetElapsedTime(began);
        }

        var own = run.End("wall").Where(sample => sample.Label("span_name") == "by hand").ToArray();
        var byState = WallTime.ByState(own);
        Assert.True(WallTime.OfSleep(own) >= 10 * Milliseconds, WallTime.Said(byState));
        // Awaits of less than a millisecond are none or a millisecond each, and there are two at most.
        Assert.True(byState.GetValueOrDefault("await") <= 2 + (took - ran).TotalMilliseconds, WallTime.Said(byState));
    }

    [Theory]
    [InlineData(SpanScope.All)]
    [InlineData(SpanScope.Root)]
    public async Task What_a_span_awaits_is_seen_as_long_as_it_was(SpanScope scope)
    {
        // Methods are compiled before they are measured.
        await Task.WhenAll(Ways.Values.Select(way => way()));
        var taken = new ConcurrentDictionary<string, double>();
        using var run = WallTime.Run(scope);
        for (var time = 0; time < 5; time++)
        {
            await Task.WhenAll(Ways.Select(way => Task.Run(async () =>
            {
                using var span = TrueSpan.Start(way.Key);
                for (var again = 0; again < 4; again++)
                {
                    var began = Stopwatch.GetTimestamp();
                    await way.Value();
                    var took = Stopwatch.GetElapsedTime(began).TotalMilliseconds;
                    taken.AddOrUpdate(way.Key, took, (_, sum) => sum + took);
                }
            })));
        }

        var samples = run.End("wall");
        Assert.All(Ways.Keys, way =>
        {
            var own = samples.Where(sample => sample.Label("span_name") == way).ToArray();
            var byState = WallTime.ByState(own);
            var said = $"{way}: {WallTime.Said(byState)} of {taken[way]:F1} ms\n" + string.Join('\n', own.Take(5).Select(WallTime.Said));
            // Beside it is what runs before and after, and short awaits, some of which stand for others.
            Assert.InRange(byState.GetValueOrDefault("await"), 0.9 * 20 * Milliseconds, (1.01 * taken[way]) + Milliseconds);
            Assert.All(own.Where(sample => sample.Label("state") == "await"), sample => Assert.Equal("(await)", sample.Frames[0]));
        });
        WallTime.AssertAddsUp();
    }

    [Fact]
    public async Task What_a_span_ran_waited_and_awaited_is_its_wall_time()
    {
        var walls = new ConcurrentDictionary<string, double>();
        using var run = WallTime.Run();
        await Task.WhenAll(Enumerable.Range(0, 8).Select(number => Task.Run(async () =>
        {
            for (var time = 0; time < 10; time++)
            {
                using var span = TrueSpan.Start("request");
                await Task.Delay(Milliseconds + number);
                Thread.Sleep(5);
                await AwaitInAChain();
                using (TrueSpan.Start("query", span))
                {
                    var began = Stopwatch.GetTimestamp();
                    await Task.Delay(Milliseconds);
                    var took = Stopwatch.GetElapsedTime(began).TotalMilliseconds;
                    walls.AddOrUpdate("query's await", took, (_, sum) => sum + took);
                    Thread.Sleep(1);
                }

                await AwaitSemaphore();
                span.Activity!.Stop();
                walls.AddOrUpdate("request", span.Activity.Duration.TotalMilliseconds, (_, sum) => sum + span.Activity.Duration.TotalMilliseconds);
            }
        })));
        var samples = run.End("wall");
        var (request, query) = (WallTime.ByState(samples.Where(sample => sample.Label("span_name") == "request")), WallTime.ByState(samples.Where(sample => sample.Label("span_name") == "query")));
        var said = $"request {WallTime.Said(request)}; query {WallTime.Said(query)}; {walls["request"]:F1} ms";
        // CPU time, and the time in which a thread was ready and another one ran, go by few samples; that may also be while what it goes
        // on with was awaited.
        var queued = request.GetValueOrDefault("run_queue") + query.GetValueOrDefault("run_queue");
        Assert.True(request.Values.Sum() + query.Values.Sum() - queued < 1.04 * walls["request"], said);
        Assert.True(request.Values.Sum() + query.Values.Sum() > 0.9 * walls["request"], said);
        Assert.InRange(query["await"], 80 * 0.9 * Milliseconds, 1.01 * walls["query's await"]);
    }

    [Fact]
    public async Task The_next_await_of_a_span_is_seen_after_a_restart_within_it()
    {
        using var run = WallTime.Run();
        // With other credentials it is started anew.
        var least = await Suspended("goes on", () => Profiler.Instance.SetBasicAuth("", ""));
        var byState = WallTime.ByState(run.End("wall").Where(sample => sample.Label("span_name") == "goes on"));
        Assert.True(byState.GetValueOrDefault("await") > 0.95 * least, WallTime.Said(byState));
    }

    [Fact]
    public async Task Thousands_of_flows_at_once_are_seen_in_sum()
    {
        const int Flows = 5_000;
        long awaited = 0;
        using var run = WallTime.Run();
        await Task.WhenAll(Enumerable.Range(0, Flows).Select(_ => Task.Run(async () =>
        {
            using var span = TrueSpan.Start("one of many");
            for (var time = 0; time < 4; time++)
            {
                var began = Stopwatch.GetTimestamp();
                await Task.Delay(100);
                Interlocked.Add(ref awaited, Stopwatch.GetTimestamp() - began);
            }
        })));
        var samples = run.End("wall").Where(sample => sample.Label("span_name") == "one of many").ToArray();
        var seen = WallTime.ByState(samples)["await"] * 1e6;
        var stats = Profiler.Instance.Stats;
        // A thousand samples stand for all, most of them for few: their sum has a standard deviation of a tenth. What rings did not hold is
        // counted.
        Assert.InRange(seen / awaited, 0.6, 1.6);
        Assert.True(samples.Sum(sample => sample.Values[0]) > Flows, $"{samples.Length} samples, {stats.DroppedRing.Samples} dropped");
        WallTime.AssertAddsUp();
    }

    [Fact]
    public async Task A_parent_does_not_await_while_its_children_are_under_way()
    {
        // Methods are compiled before they are measured.
        await Child(TrueSpan.None);
        using var run = WallTime.Run();
        var most = 0.0;
        for (var time = 0; time < 5; time++)
        {
            using var parent = TrueSpan.Start("parent");
            var ends = await Task.WhenAll(Enumerable.Range(0, 5).Select(_ => Child(parent)));
            await Task.Delay(Milliseconds);
            most += Stopwatch.GetElapsedTime(ends.Max()).TotalMilliseconds;
        }

        var samples = run.End("wall");
        double Awaits(string span) => WallTime.ByState(samples.Where(sample => sample.Label("span_name") == span)).GetValueOrDefault("await");
        Assert.True(Awaits("child") > 0.9 * 25 * Milliseconds, $"{Awaits("child")} ms");
        // A timer runs before it is awaited, on a busy machine maybe to its end.
        Assert.InRange(Awaits("parent"), 0.7 * 5 * Milliseconds, 1.01 * most);
    }

    [Fact]
    public async Task A_child_that_ends_in_another_flow_holds_its_parent_no_longer()
    {
        using var run = WallTime.Run();
        using (var parent = TrueSpan.Start("parent"))
        {
            var child = TrueSpan.Start("child", parent);
            await Task.Run(async () =>
            {
                await Task.Yield();
                child.Dispose();
            });
            await Task.Delay(1);
            for (var time = 0; time < 5; time++)
            {
                await Task.Delay(Milliseconds);
            }
        }

        var awaited = WallTime.ByState(run.End("wall").Where(sample => sample.Label("span_name") == "parent"));
        Assert.True(awaited.GetValueOrDefault("await") > 0.7 * 5 * Milliseconds, WallTime.Said(awaited));
    }

    [Fact]
    public async Task The_first_await_after_a_start_is_seen_and_none_after_a_stop()
    {
        using (TrueSpan.Start("around"))
        {
            using var run = WallTime.Run();
            var least = await Suspended("first", () => { });
            var samples = run.End("wall");
            await Task.Delay(Milliseconds);
            var awaited = WallTime.ByState(samples.Where(sample => sample.Label("span_name") == "first"));
            Assert.True(awaited.GetValueOrDefault("await") > 0.95 * least, WallTime.Said(awaited));
            Assert.False(Context.OffTime.IsMeasured);
        }
    }

    [Fact]
    public async Task A_stack_is_the_chain_of_methods_that_await_each_other()
    {
        // So few that each is a sample, at first.
        const int Flows = 10, Times = 8;
        using var run = WallTime.Run();
        var collects = true;
        using (new Thread(() =>
        {
            // Objects move meanwhile.
            for (var kept = new List<byte[]>(); Volatile.Read(ref collects); kept = kept.Count > 1_000 ? [] : kept)
            {
                kept.Add(new byte[1_000]);
                if (kept.Count % 100 == 0)
                {
                    GC.Collect(1);
                }
            }
        }).Do())
        {
            await Task.WhenAll(Enumerable.Range(0, Flows).Select(_ => Task.Run(async () =>
            {
                using var span = TrueSpan.Start("chain");
                for (var time = 0; time < Times; time++)
                {
                    await Handler();
                }
            })));
            Volatile.Write(ref collects, false);
        }

        var samples = run.End("wall").Where(sample => sample.Label("state") == "await").ToArray();
        // Of two that are awaited at once one goes on while the other does, and the flow awaits for some microseconds: few of these are
        // sampled, and each stands for thousands.
        static bool IsLong(PprofSample sample) => sample.Values[1] > sample.Values[0] * Milliseconds * 1e6 / 4;
        var own = $"{typeof(AwaitTests).FullName}.";
        string Chain(PprofSample sample) => string.Join(" < ", sample.Frames.Select(frame => frame.Replace(own, "", StringComparison.Ordinal)));
        string[] awaited = ["(await) < Third < Second < AwaitInAChain", "(await) < Leaf < Generic", "(await) < Leaf", "(await) < AwaitValueTask", "(await)"];
        var chains = samples.GroupBy(Chain).ToDictionary(group => group.Key, group => group.Where(IsLong).Sum(sample => sample.Values[0]));
        var said = string.Join('\n', chains.OrderByDescending(pair => pair.Value).Select(pair => $"{pair.Value} {pair.Key}"));
        var right = awaited.Select(methods => chains.Where(pair => pair.Key.StartsWith($"{methods} < Handler < {nameof(A_stack_is_the_chain_of_methods_that_await_each_other)}", StringComparison.Ordinal)).Sum(pair => pair.Value)).ToArray();
        // Of one of them the two at once are awaited once or twice.
        Assert.All(right, times => Assert.InRange(times, 0.75 * Flows * Times, 2.25 * Flows * Times));
        // Rarely a method has ended when its caller is not there yet, which then goes on by itself.
        Assert.True(right.Sum() >= 0.95 * chains.Values.Sum(), said);
        string[] methods = ["(await)", "Third", "Second", "AwaitInAChain", "Generic", "Leaf", "AwaitValueTask"];
        // Where the objects could not be looked at, the stack is the thread's.
        Assert.All(chains.Keys.Where(chain => !chain.StartsWith("(await) < System.", StringComparison.Ordinal)), chain => Assert.All(chain.Split(" < ").TakeWhile(frame => frame is not ("Handler" or nameof(A_stack_is_the_chain_of_methods_that_await_each_other))), frame => Assert.Contains(frame, methods)));
    }

    private static async Task Handler()
    {
        await AwaitInAChain();
        await Generic<string>();
        await AwaitValueTask();
        await Task.WhenAll(Leaf<int>(), Leaf<string>());
        // What is over before it is awaited is not awaited.
        await Task.Delay(Milliseconds).ConfigureAwait(false);
    }

    private static async Task<T?> Generic<T>() => await Leaf<T>();

    private static async Task<T?> Leaf<T>()
    {
        await Task.Delay(Milliseconds);
        return default;
    }

    /// <summary>When its span is about to end.</summary>
    private static async Task<long> Child(TrueSpan parent)
    {
        using var span = TrueSpan.Start("child", parent);
        await Task.Delay(Milliseconds);
        return Stopwatch.GetTimestamp();
    }

    /// <summary>A span that is suspended for so many milliseconds at least, from the instant on at which it is.</summary>
    private static async Task<double> Suspended(string name, Action first)
    {
        var goesOn = new TaskCompletionSource(TaskCreationOptions.RunContinuationsAsynchronously);
        async Task Flow()
        {
            using var span = TrueSpan.Start(name);
            first();
            await goesOn.Task;
        }

        var flow = Flow();
        var began = Stopwatch.GetTimestamp();
        await Task.Delay(5 * Milliseconds);
        var least = Stopwatch.GetElapsedTime(began).TotalMilliseconds;
        goesOn.SetResult();
        await flow;
        return least;
    }

    private static async Task AwaitSemaphore()
    {
        using var semaphore = new SemaphoreSlim(0);
        var released = Task.Delay(Milliseconds).ContinueWith(_ => semaphore.Release(), TaskScheduler.Default);
        await semaphore.WaitAsync();
        await released;
    }

    private static async Task<int> AwaitInAChain() => await Second() + 1;

    private static async Task<int> Second()
    {
        await Third();
        return 1;
    }

    private static async Task Third() => await Task.Delay(Milliseconds);

    private static async ValueTask<string> AwaitValueTask()
    {
        await Task.Delay(Milliseconds);
        return "x";
    }

    private static async Task AwaitSocket()
    {
        using var listener = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
        listener.Bind(new IPEndPoint(IPAddress.Loopback, 0));
        listener.Listen();
        using var ours = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
        await ours.ConnectAsync(listener.LocalEndPoint!);
        using var theirs = await listener.AcceptAsync();
        var sent = Task.Delay(Milliseconds).ContinueWith(_ => theirs.Send([1]), TaskScheduler.Default);
        await ours.ReceiveAsync(new byte[1]);
        await sent;
    }

    private static async Task AwaitTimeout()
    {
        try
        {
            await new TaskCompletionSource().Task.WaitAsync(TimeSpan.FromMilliseconds(Milliseconds));
        }
        catch (TimeoutException)
        {
        }
    }

    private static async Task AwaitCanceled()
    {
        using var cancels = new CancellationTokenSource(Milliseconds);
        try
        {
            await Task.Delay(Timeout.Infinite, cancels.Token);
        }
        catch (OperationCanceledException)
        {
        }
    }

    private static async Task AwaitThrows()
    {
        try
        {
            await Throws();
        }
        catch (InvalidOperationException)
        {
        }
    }

    private static async Task Throws()
    {
        await Task.Delay(Milliseconds);
        throw new InvalidOperationException();
    }

    private static async Task AwaitIterator()
    {
        await foreach (var _ in Numbers())
        {
        }
    }

    private static async IAsyncEnumerable<int> Numbers()
    {
        for (var number = 0; number < 2; number++)
        {
            await Task.Delay(Milliseconds / 2);
            yield return number;
        }
    }
}
