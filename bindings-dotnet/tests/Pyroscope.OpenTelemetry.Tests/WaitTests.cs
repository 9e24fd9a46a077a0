using System.Diagnostics;
using System.Runtime.CompilerServices;
using Pyroscope.Interop;

namespace Pyroscope.Tests;

/// <summary>What a span waited for is seen: how long, in which state, below which method, and in no other span.</summary>
/// <remarks>
/// What a wait took at most the test knows by its own clock, what it took at least by what it waited for. In between is what .NET does
/// before and after, on a machine that others use too.
/// </remarks>
public sealed class WaitTests
{
    private const int Times = 10;
    private static readonly string[] Starts = ["System.Threading.Thread.StartCore", "System.Threading.Thread.UnsafeStart", "System.Threading.ManualResetEventSlim.Wait"];
    private static object? kept;

    [Fact]
    public void A_start_on_a_thread_that_was_interrupted_measures_waits_and_leaves_the_interruption_to_the_program()
    {
        var started = false;
        using (new Thread(() =>
        {
            Thread.CurrentThread.Interrupt();
            started = Profiler.Instance.Configure(new ProfilerConfiguration { ApplicationName = "tests", ServerAddress = "none", WallTimeProfilingEnabled = true });
            Assert.Throws<ThreadInterruptedException>(() => Thread.Sleep(1));
        }).Do())
        {
        }

        using (Profiler.Instance)
        {
            Assert.True(started);
            Assert.True(Engine.MeasuresWaits());
        }
    }

    [Fact]
    public void A_wait_is_seen_as_long_as_it_was()
    {
        var taken = KnownWaits.All.ToDictionary(way => way.Wait.Method.Name, _ => TimeSpan.Zero);
        // Methods are compiled before they are measured.
        Array.ForEach(KnownWaits.All, way => way.Wait());
        using var run = WallTime.Run();
        // So are those that were compiled ahead of time met by the profiler.
        using (TrueSpan.Start("before"))
        {
            Array.ForEach(KnownWaits.All, way => way.Wait());
        }

        Profiler.Instance.Flush(TimeSpan.FromSeconds(10));
        for (var time = 0; time < Times; time++)
        {
            foreach (var (wait, _) in KnownWaits.All)
            {
                using var span = TrueSpan.Start(wait.Method.Name);
                var began = Stopwatch.GetTimestamp();
                wait();
                taken[wait.Method.Name] += Stopwatch.GetElapsedTime(began);
            }
        }

        var samples = run.End("wall");
        Assert.All(KnownWaits.All, way => Judge(way.Wait.Method.Name, way.Innermost, taken[way.Wait.Method.Name].TotalMilliseconds, samples));
        WallTime.AssertAddsUp();
    }

    [Fact]
    public void A_wait_that_was_inlined_into_a_hot_method_is_what_it_was_for()
    {
        using var run = WallTime.Run();
        using var ways = new HotWaits();
        // The runtime compiles them anew meanwhile.
        for (var time = 0; time < 150; time++)
        {
            foreach (var (way, prepare, wait) in ways.All)
            {
                prepare();
                using var span = TrueSpan.Start(way);
                wait();
            }
        }

        // Who spins first gives its processor away, to whom is the machine's.
        var spans = run.End("wall").Where(sample => sample.Label("state") is not ("cpu" or "run_queue") && sample.Frames[0] != "sched_yield").ToLookup(sample => sample.Label("span_name"));
        Assert.All(ways.All, way =>
        {
            var byState = WallTime.ByState(spans[way.Name]);
            var expected = way.Name[..way.Name.IndexOf(' ')];
            var waited = byState.Values.Sum();
            var said = $"{way.Name}: {WallTime.Said(byState)}\n" + string.Join('\n', spans[way.Name].Where(sample => sample.Label("state") != expected).OrderByDescending(sample => sample.Values[1]).Take(3).Select(sample => $"{sample.Values[1] / 1e6:F1} ms, {string.Join(" < ", sample.Frames.Take(6))}"));
            Assert.True(waited > 10 && byState.GetValueOrDefault(expected) > 0.9 * waited, said);
        });
    }

    [Fact]
    public void A_lock_that_the_package_waits_for_itself_is_in_no_profile()
    {
        using var run = new ProfiledRun(configure: configuration => configuration.ContentionProfilingEnabled = true);
        using (TrueSpan.Start("learned"))
        {
            // As a kind that there is not.
            Assert.Equal(1, HotNative.LearnWait(uint.MaxValue, 0));
            Contend();
            Assert.Equal(0, HotNative.LearnWait(uint.MaxValue, 1));
        }

        using (TrueSpan.Start("the program's"))
        {
            Contend();
        }

        var samples = run.End("lock");
        Assert.Contains(samples, sample => sample.Label("span_name") == "the program's");
        Assert.DoesNotContain(samples, sample => sample.Label("span_name") == "learned");
    }

    [Fact]
    public void A_file_that_is_synchronized_is_waited_for()
    {
        var path = Path.Combine(AppContext.BaseDirectory, $"synchronized-{Environment.ProcessId}");
        using var run = WallTime.Run();
        var taken = TimeSpan.Zero;
        using (TrueSpan.Start("synchronizes"))
        using (var file = new FileStream(path, FileMode.Create, FileAccess.Write, FileShare.None, 4096, FileOptions.DeleteOnClose))
        {
            // Of so much, which is enough to be seen in samples, or of so many, where a file system has little to do.
            for (var time = 0; time < 40 || (time < 2_000 && taken < TimeSpan.FromMilliseconds(200)); time++)
            {
                var began = Stopwatch.GetTimestamp();
                file.Write(new byte[20_000]);
                file.Flush(true);
                taken += Stopwatch.GetElapsedTime(began);
            }
        }

        var samples = run.End("wall").Where(sample => sample.Label("span_name") == "synchronizes").ToArray();
        // Of waits of a millisecond some stand for others.
        Assert.InRange(WallTime.ByState(samples).GetValueOrDefault("io"), 0, 1.5 * taken.TotalMilliseconds);
        var synchronized = samples.Where(sample => sample.Frames[0] == "fsync").ToArray();
        Assert.NotEmpty(synchronized);
        Assert.All(synchronized, sample => Assert.True(sample.Label("state") == "io" && sample.Frames.Any(frame => frame.StartsWith("Interop.Sys.FSync", StringComparison.Ordinal)), WallTime.Said(sample)));
    }

    [Theory]
    [InlineData("allocates")]
    [InlineData("takes a lock that nobody else wants")]
    [InlineData("sleeps")]
    public void A_wait_for_a_collection_is_the_runtimes_whatever_the_thread_asked_for(string deed)
    {
        using var run = WallTime.Run();
        var times = 0;
        var mine = new object();
        using var collects = new Thread(CollectsAgainAndAgain).Do();
        using (TrueSpan.Start("collected"))
        {
            // It is stopped where it is, and where it comes back from the runtime.
            for (var until = Stopwatch.StartNew(); until.Elapsed < TimeSpan.FromSeconds(2); times++)
            {
                switch (deed)
                {
                    case "allocates":
                        kept = new byte[100];
                        break;
                    case "sleeps":
                        Thread.Sleep(1);
                        break;
                    default:
                        TakesLocks(mine);
                        break;
                }
            }
        }

        var samples = run.End("wall").Where(sample => sample.Label("span_name") == "collected").ToArray();
        var byState = WallTime.ByState(samples);
        var said = $"{WallTime.Said(byState)}, {times} times\n" + string.Join('\n', samples.Where(sample => sample.Label("state") == "lock").OrderByDescending(sample => sample.Values[1]).Take(5).Select(WallTime.Said));
        Assert.True(byState.GetValueOrDefault("runtime") > 20, said);
        Assert.True(byState.GetValueOrDefault("lock") < 0.1 * byState["runtime"], said);
        var method = nameof(A_wait_for_a_collection_is_the_runtimes_whatever_the_thread_asked_for);
        Assert.All(samples.Where(sample => sample.Label("state") == "runtime"), sample => Assert.Contains(sample.Frames, frame => frame.EndsWith(method, StringComparison.Ordinal)));
    }

    [Fact]
    public void A_method_that_a_thread_comes_back_to_and_is_stopped_there_for_a_collection_is_on_the_stack()
    {
        using (TrueSpan.Start("before"))
        {
            ComesBack(TimeSpan.FromSeconds(0.1));
        }

        using var run = WallTime.Run();
        using (new Thread(CollectsOften).Do())
        using (TrueSpan.Start("comes back"))
        {
            ComesBack(TimeSpan.FromSeconds(2));
        }

        // To start a span compiles methods, and waits for collections, too.
        var samples = run.End("wall").Where(sample => sample.Label("span_name") == "comes back" && sample.Label("state") is "runtime" or "lock" && !sample.Frames.Any(frame => frame.Contains(nameof(TrueSpan), StringComparison.Ordinal))).ToArray();
        Assert.NotEmpty(samples);
        Assert.All(samples, sample => Assert.True(sample.Label("state") == "runtime" && sample.Frames.Any(frame => frame.EndsWith($".{nameof(ComesBack)}", StringComparison.Ordinal)), WallTime.Said(sample)));
    }

    [Fact]
    public void An_exception_out_of_a_wait_leaves_the_wait_and_what_follows_as_they_were()
    {
        using var run = WallTime.Run();
        var taken = TimeSpan.Zero;
        using (TrueSpan.Start("interrupted"))
        {
            for (var time = 0; time < Times; time++)
            {
                var self = Thread.CurrentThread;
                var began = Stopwatch.GetTimestamp();
                using (new Thread(() => InterruptWhenItWaits(self)).Do())
                {
                    Assert.Throws<ThreadInterruptedException>(WaitForEver);
                }

                taken += Stopwatch.GetElapsedTime(began);
            }
        }

        using (TrueSpan.Start("after"))
        {
            KnownWaits.sleep_for_a_time();
        }

        var samples = run.End("wall");
        var interrupted = WallTime.ByState(samples.Where(sample => sample.Label("span_name") == "interrupted"));
        Assert.InRange(interrupted["lock"], 0.9 * Times * KnownWaits.Milliseconds, 1.02 * taken.TotalMilliseconds);
        var after = samples.Where(sample => sample.Label("span_name") == "after").ToArray();
        Assert.True(WallTime.OfSleep(after) >= 0.95 * KnownWaits.Milliseconds, string.Join('\n', after.Select(WallTime.Said)));
        WallTime.AssertAddsUp();
    }

    [Fact]
    public void A_wait_that_outlives_its_profiler_is_of_none()
    {
        using var waits = new AutoResetEvent(false);
        using var goesOn = new AutoResetEvent(false);
        Thread thread;
        using (var run = WallTime.Run())
        {
            thread = new Thread(() =>
            {
                using var span = TrueSpan.Start("outlives");
                waits.Set();
                goesOn.WaitOne();
                KnownWaits.sleep_for_a_time();
            });
            thread.Start();
            waits.WaitOne();
            Assert.DoesNotContain(run.End("wall"), sample => sample.Label("span_name") == "outlives" && sample.Label("state") == "sleep");
        }

        using (var run = WallTime.Run())
        {
            goesOn.Set();
            thread.Join();
            // It began while another profiler ran; its next one did not.
            var samples = run.End("wall").Where(sample => sample.Label("span_name") == "outlives").ToArray();
            Assert.True(WallTime.OfSleep(samples) >= 0.95 * KnownWaits.Milliseconds, string.Join('\n', samples.Select(WallTime.Said)));
        }
    }

    [Fact]
    public void Cpu_time_of_spans_is_in_the_profile_too_and_nothing_outside_of_them()
    {
        using var run = WallTime.Run();
        ThreadTime.Burn(100);
        Thread.Sleep(KnownWaits.Milliseconds);
        using (TrueSpan.Start("burns"))
        {
            ThreadTime.Burn(300);
        }

        var samples = run.End("wall");
        Assert.All(samples, sample => Assert.NotNull(sample.Label("span_id")));
        var cpu = Pprof.ReadFolder(run.Folder, "process_cpu").SelectMany(profile => profile.Samples);
        var inSpans = cpu.Where(sample => sample.Label("span_id") is not null).Sum(sample => sample.Values[0]) / 1e6;
        Assert.Equal(inSpans, WallTime.ByState(samples)["cpu"], 0.001);
    }

    [Fact]
    public void Without_being_asked_there_is_no_such_profile()
    {
        using var run = new ProfiledRun();
        using (TrueSpan.Start("waits"))
        {
            var before = Engine.WaitedNanoseconds();
            KnownWaits.sleep_for_a_time();
            Assert.Equal(before, Engine.WaitedNanoseconds());
            ThreadTime.Burn(100);
        }

        Assert.Empty(run.End("wall"));
        Assert.NotEmpty(Directory.GetFiles(run.Folder));
    }

    private static void Judge(string way, string innermost, double took, PprofSample[] samples)
    {
        var state = way[..way.IndexOf('_')];
        // What a busy machine adds anywhere is no wait.
        var own = samples.Where(sample => sample.Label("span_name") == way && sample.Label("state") is not ("cpu" or "run_queue")).ToArray();
        // To call it for the first time compiles it. What starts and ends its span is compiled anew at any time, which waits for the runtime.
        var beside = own.Where(sample => sample.Label("state") != "runtime" && !sample.Frames.Any(frame => frame.EndsWith(way, StringComparison.Ordinal))).ToArray();
        Assert.All(beside, sample => Assert.True(sample.Frames.Any(frame => frame.StartsWith("System.Diagnostics.Activity", StringComparison.Ordinal)), WallTime.Said(sample)));
        Assert.True(WallTime.ByState(beside).Values.Sum() < 0.1 * took, string.Join('\n', beside.Select(WallTime.Said)));
        var byState = WallTime.ByState(own);
        var said = $"{way}: {WallTime.Said(byState)} of {took:F1} ms\n" + string.Join('\n', own.OrderByDescending(sample => sample.Values[1]).Take(5).Select(WallTime.Said));
        var seen = byState.GetValueOrDefault(state);
        // Of waits that are short beside a millisecond, as of who spins first, some stand for others.
        Assert.True(seen < (state == "lock" ? 1.15 : 1.02) * took, said);
        // What is waited for (another thread's sleep, a child) begins before the wait does, on a busy machine well before: while its
        // thread is waited for, or a method is compiled, or another thread has the processor.
        var before = state == "lock" ? 0 : byState.GetValueOrDefault("lock") + byState.GetValueOrDefault("runtime");
        Assert.True(seen + before > 0.75 * Times * KnownWaits.Milliseconds && seen > 0.6 * Times * KnownWaits.Milliseconds, said);
        // To start a thread is to wait for it, on a busy machine for long, and methods that are compiled anew wait for the runtime.
        Assert.True(byState.Where(pair => pair.Key != state && pair.Key is not ("lock" or "runtime")).Sum(pair => pair.Value) < 0.1 * took, said);
        // So is a thread that is late to start, which is waited for where it is started, or until it says that it is there.
        bool IsRight(PprofSample sample) => Innermost(sample, way).Any(frame => frame.StartsWith(innermost, StringComparison.Ordinal)) || IsStub(sample);
        // What calls native code is a stub of the runtime's where its caller was compiled anew, which has no name if no profiler ran then.
        var native = innermost.Replace("Interop.Sys.", "!SystemNative_", StringComparison.Ordinal);
        bool IsStub(PprofSample sample) => native != innermost && sample.Frames.Any(frame => frame.Contains(native, StringComparison.Ordinal)) && sample.Frames.Any(frame => frame == "(unknown method)" || frame.EndsWith("IL_STUB_PInvoke", StringComparison.Ordinal));
        bool IsStart(PprofSample sample) => Innermost(sample, way).Any(frame => Starts.Any(start => frame.StartsWith(start, StringComparison.Ordinal)));
        var waits = own.Where(sample => sample.Label("state") == state).ToArray();
        var right = WallTime.ByState(waits.Where(IsRight)).GetValueOrDefault(state);
        var starts = WallTime.ByState(waits.Where(sample => IsStart(sample) && !IsRight(sample))).GetValueOrDefault(state);
        Assert.True(right > 0.7 * (seen - starts), said);
    }

    /// <summary>Its methods below the way, innermost first, and the way's name.</summary>
    private static IEnumerable<string> Innermost(PprofSample sample, string way) =>
        sample.Frames.Skip(1).TakeWhile(frame => !frame.EndsWith($".{way}", StringComparison.Ordinal)).Where(frame => !frame.Contains(".so")).Append(way);

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void WaitForEver()
    {
        using var never = new AutoResetEvent(false);
        never.WaitOne();
    }

    /// <summary>Waits for a lock, also where the machine is so busy that who holds it is done before.</summary>
    private static void Contend()
    {
        for (var before = Monitor.LockContentionCount; Monitor.LockContentionCount == before;)
        {
            KnownWaits.lock_an_object();
        }
    }

    private static void InterruptWhenItWaits(Thread thread)
    {
        // It may begin to wait late, on a busy machine.
        Assert.True(SpinWait.SpinUntil(() => thread.ThreadState.HasFlag(System.Threading.ThreadState.WaitSleepJoin), TimeSpan.FromSeconds(30)));
        Thread.Sleep(KnownWaits.Milliseconds);
        thread.Interrupt();
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static double ComesBack(TimeSpan after)
    {
        var number = 2.0;
        for (var until = Stopwatch.StartNew(); until.Elapsed < after;)
        {
            for (var time = 0; time < 1_000; time++)
            {
                number = Straight(number);
            }
        }

        return number;
    }

    /// <summary>Calls nothing and has no loop: the runtime cannot stop a thread in it, so it has it come back to the runtime.</summary>
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static double Straight(double of)
    {
        of = Math.Sqrt(of) + Math.Sqrt(of + 1);
        of = Math.Sqrt(of) + Math.Sqrt(of + 2);
        of = Math.Sqrt(of) + Math.Sqrt(of + 3);
        of = Math.Sqrt(of) + Math.Sqrt(of + 4);
        of = Math.Sqrt(of) + Math.Sqrt(of + 5);
        of = Math.Sqrt(of) + Math.Sqrt(of + 6);
        of = Math.Sqrt(of) + Math.Sqrt(of + 7);
        return Math.Sqrt(of) + Math.Sqrt(of + 8);
    }

    // Hot from the start, so that the thread is stopped where the runtime looks whether it is to stop: in the lock.
    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
    private static void TakesLocks(object mine)
    {
        for (var time = 0; time < 1_000; time++)
        {
            lock (mine)
            {
            }
        }
    }

    private static void CollectsOften()
    {
        for (var until = Stopwatch.StartNew(); until.Elapsed < TimeSpan.FromSeconds(2);)
        {
            GC.Collect(0);
            Thread.Sleep(1);
        }
    }

    private static void CollectsAgainAndAgain()
    {
        for (var until = Stopwatch.StartNew(); until.Elapsed < TimeSpan.FromSeconds(2);)
        {
            var much = new object[100_000];
            for (var each = 0; each < much.Length; each++)
            {
                much[each] = new object();
            }

            GC.Collect();
            GC.KeepAlive(much);
        }
    }
}
