using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope;
using Pyroscope.Interop;
using Pyroscope.OpenTelemetry;

namespace Waits;

/// <summary>The program that is profiled.</summary>
static class Play
{
    const int Pairs = 2;
    const int AloneThreads = 3;
    const int Flows = 4;

    public static int Run(double seconds, string folder, int seed)
    {
        var scratch = Directory.CreateTempSubdirectory("waits-");
        var kinds = Alone.Kinds.ToList();
        var hasLibrary = Modules.Build(scratch.FullName);
        if (hasLibrary) kinds.AddRange(Modules.OfLibrary);
        else Console.WriteLine("left out: libraries, forks and signals need a compiler of C");
        var pairs = Enumerable.Range(0, Pairs).Select(_ => new Pair()).ToArray();
        Warm([.. kinds], pairs);
        Profiler.Instance.Configure(new ProfilerConfiguration
        {
            ApplicationName = "waits",
            ServerAddress = $"file://{folder}",
            UploadInterval = TimeSpan.FromSeconds(1),
            WallTimeProfilingEnabled = true,
            EveryWait = true,
        });
        Settle();
        var provider = Sdk.CreateTracerProviderBuilder().AddSource(Spans.Source.Name).AddProcessor(new PyroscopeSpanProcessor(SpanScope.All)).Build()!;
        // Methods that await block threads of the pool, too.
        ThreadPool.SetMinThreads(8, 8);
        Spans.Last(seconds);
        var threads = pairs.SelectMany((pair, number) => Both(pair, () => pair.Lead(new Random(seed + number))))
            .Concat(Enumerable.Range(Pairs, AloneThreads).Select(number => new Thread(() => Alone.Work([.. kinds], new Random(seed + number))))).ToList();
        if (hasLibrary)
        {
            Signals.Prepare();
            var sender = new Thread(Signals.Send);
            threads.Add(new Thread(() => Signals.Receive(sender)));
        }
        threads.ForEach(thread => thread.UnsafeStart());
        var flows = Enumerable.Range(10, Flows).Select(number => Task.Run(() => Awaits.Flow(new Random(seed + number)))).ToArray();
        threads.ForEach(thread => thread.Join());
        Task.WaitAll(flows);
        provider.Dispose();
        Profiler.Instance.Dispose();
        Signals.End();
        Array.ForEach(pairs, pair => pair.Dispose());
        scratch.Delete(true);
        var stats = Profiler.Instance.Stats;
        foreach (var (name, number) in stats.Numbers.Where(pair => pair.Value != 0)) Console.WriteLine($"stat {name} {number}");
        if (stats.LastError != "") Console.WriteLine($"error {stats.LastError}");
        return 0;
    }

    static IEnumerable<Thread> Both(Pair pair, ThreadStart lead) => [new(lead), new(pair.Follow)];

    /// <summary>Each once, so that what the runtime reads from files is read.</summary>
    static void Warm((string Span, Func<int, int> Work)[] kinds, Pair[] pairs)
    {
        foreach (var (_, work) in kinds)
            for (var number = 0; number < 4; number++) work(number);
        var threads = pairs.SelectMany(pair => Both(pair, pair.Warm)).ToList();
        threads.ForEach(thread => thread.Start());
        threads.ForEach(thread => thread.Join());
        Awaits.Warm().Wait();
    }

    /// <summary>The profiler knows the threads, the libraries, what was compiled before it, and how the runtime waits for locks.</summary>
    static void Settle()
    {
        Profiler.Instance.Flush(TimeSpan.FromSeconds(10));
        GC.Collect();
        GC.WaitForPendingFinalizers();
        // Until then nothing tells waits for locks from those for collections.
        if (!Enumerable.Range(0, 20).Any(_ => WaitTest.Learn())) throw new InvalidOperationException("how the runtime waits for a lock was not learned");
    }
}
