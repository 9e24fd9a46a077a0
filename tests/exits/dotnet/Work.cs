using System.Diagnostics;
using System.IO.Pipes;
using System.Net;
using System.Net.Sockets;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.OpenTelemetry;
using Pyroscope.Tests;

namespace Pyroscope.Exits;

/// <summary>What the programs do meanwhile: whatever disturbs a sampler.</summary>
internal static class Work
{
    private const int Wrong = 98;

    private static readonly ActivitySource Source = new("exits");
    private static readonly object Gate = new();
    private static Random chance = new(0);
    private static ProfilerConfiguration configuration = new();
    private static TracerProvider? provider;
    private static long sink;

    internal static readonly Action[] All = [Spans, Collect, Throw, DynamicMethod, CollectibleAssembly, Locks, Tasks, Waits];

    internal static void Begin(int seed)
    {
        chance = new Random(seed);
        var events = chance.Next(2) == 0;
        configuration = new ProfilerConfiguration
        {
            ApplicationName = "exits",
            ServerAddress = chance.Next(3) == 0 ? $"file://{Environment.CurrentDirectory}/profiles" : "none",
            SampleRate = 1000,
            AllocationProfilingEnabled = events,
            ContentionProfilingEnabled = events,
            ExceptionProfilingEnabled = events,
            WallTimeProfilingEnabled = chance.Next(2) == 0,
        };
        provider = Sdk.CreateTracerProviderBuilder().AddSource(Source.Name).AddProcessor(new PyroscopeSpanProcessor()).Build();
    }

    internal static bool Start() => Profiler.Instance.Configure(configuration);

    internal static void Stop() => Profiler.Instance.Dispose();

    internal static void Expect(bool isSo, string words)
    {
        if (!isSo)
        {
            Console.Error.WriteLine($"wrong: {words}");
            Native.LeaveAtOnce(Wrong);
        }
    }

    internal static void Pause(int most = 150) => Thread.Sleep(TimeSpan.FromMilliseconds(Chance() * most));

    internal static double Chance()
    {
        lock (chance)
        {
            return chance.NextDouble();
        }
    }

    /// <summary>Threads that do this until the process ends.</summary>
    internal static void ForEver(int threads, params Action[] deeds)
    {
        for (var number = 0; number < threads; number++)
        {
            new Thread(() =>
            {
                while (true)
                {
                    deeds[(int)(Chance() * deeds.Length)]();
                }
            })
            { IsBackground = true }.Start();
        }
    }

    internal static void UnderLoad(int threads = 3) => UnderLoad(threads, All);

    /// <summary>
    /// By work that starts no thread, as tasks do: while a thread becomes another program the kernel refuses new ones (EAGAIN), and .NET
    /// ends a process whose pool is refused one, "Out of memory.", without a profiler too (2 of 400 processes; 2 of 240 with it).
    /// </summary>
    internal static void UnderLoadWithoutNewThreads() => UnderLoad(3, [.. All.Where(deed => deed != Tasks)]);

    private static void UnderLoad(int threads, Action[] deeds)
    {
        Expect(Start(), $"Configure returned false: {Profiler.Instance.Status.Reason}");
        ForEver(threads, deeds);
        Pause();
    }

    /// <summary>That this process is profiled, through a span and after it.</summary>
    internal static void ExpectSamples()
    {
        var since = Stopwatch.StartNew();
        var before = Profiler.Instance.Stats.Taken.Samples;
        while (Profiler.Instance.Stats.Taken.Samples == before)
        {
            Expect(since.Elapsed < TimeSpan.FromSeconds(10), $"no samples are taken: {string.Join(", ", Profiler.Instance.Stats.Numbers)}");
            Spans();
        }
    }

    internal static void Polls() => GC.KeepAlive(Profiler.Instance.Stats);

    internal static void Flushes() => Profiler.Instance.Flush(TimeSpan.FromMilliseconds(10));

    internal static void StartsAndStops()
    {
        Stop();
        Start();
    }

    internal static void Toggles()
    {
        Profiler.Instance.SetCPUTrackingEnabled(false);
        Profiler.Instance.SetCPUTrackingEnabled(true);
    }

    internal static void Spans()
    {
        using var outer = Source.StartActivity("outer");
        using var inner = Source.StartActivity("inner");
        ThreadTime.Burn(1);
    }

    /// <summary>Short waits of several kinds, in a span.</summary>
    internal static void Waits()
    {
        using var span = Source.StartActivity("waits");
        Thread.Sleep(1);
        using var set = new AutoResetEvent(false);
        set.WaitOne(1);
        lock (Gate)
        {
            Monitor.Wait(Gate, 1);
        }
    }

    /// <summary>Threads that wait, in spans, until the process ends.</summary>
    internal static void WaitForEver()
    {
        var gate = new object();
        var listener = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
        listener.Bind(new IPEndPoint(IPAddress.Loopback, 0));
        listener.Listen();
        var pipe = new AnonymousPipeServerStream(PipeDirection.In);
        Action[] ways =
        [
            () => Thread.Sleep(Timeout.Infinite), () => new ManualResetEventSlim().Wait(), () => new AutoResetEvent(false).WaitOne(), () => listener.Accept(),
            () => pipe.ReadByte(), () => new TaskCompletionSource().Task.Wait(), () => listener.Poll(-1, SelectMode.SelectRead), () => Thread.CurrentThread.Join(),
            () => { lock (gate) { Monitor.Wait(gate); } },
        ];
        using var waiting = new CountdownEvent(ways.Length);
        foreach (var way in ways)
        {
            new Thread(() =>
            {
                using var span = Source.StartActivity("for ever");
                waiting.Signal();
                way();
            })
            { IsBackground = true }.Start();
        }

        waiting.Wait();
    }

    internal static void Collect()
    {
        var kept = new List<object>();
        for (var number = 0; number < 500; number++)
        {
            kept.Add(number % 3 == 0 ? new byte[number] : new string('x', number % 100));
        }

        GC.Collect(Chance() < 0.1 ? 2 : 0, GCCollectionMode.Forced, true, Chance() < 0.5);
        GC.KeepAlive(kept);
    }

    internal static void Throw()
    {
        try
        {
            Deep(10);
        }
        catch (InvalidOperationException)
        {
            sink++;
        }

        try
        {
            sink += Length(null);
        }
        catch (NullReferenceException)
        {
            sink++;
        }
    }

    internal static void DynamicMethod()
    {
        var method = new DynamicMethod("made", typeof(int), [typeof(int)]);
        Body(method.GetILGenerator());
        sink += method.CreateDelegate<Func<int, int>>()(100_000);
    }

    internal static void CollectibleAssembly()
    {
        Load();
        GC.Collect();
    }

    internal static void Locks()
    {
        lock (Gate)
        {
            ThreadTime.Burn(1);
        }
    }

    internal static void Tasks() =>
        Task.WhenAll(Enumerable.Range(0, 4).Select(async _ =>
        {
            using var span = Source.StartActivity("task");
            await Task.Yield();
            sink++;
        })).Wait();

    /// <summary>Two calls of its method, so that it is met again; then nothing holds it.</summary>
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Load()
    {
        var assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName("made"), AssemblyBuilderAccess.RunAndCollect);
        var type = assembly.DefineDynamicModule("made").DefineType("Made", TypeAttributes.Public);
        Body(type.DefineMethod("Run", MethodAttributes.Public | MethodAttributes.Static, typeof(int), [typeof(int)]).GetILGenerator());
        var run = type.CreateType()!.GetMethod("Run")!.CreateDelegate<Func<int, int>>();
        sink += run(300_000) + run(300_000);
    }

    /// <summary>do i++; while (i is less than the argument); return i;</summary>
    private static void Body(ILGenerator code)
    {
        var local = code.DeclareLocal(typeof(int));
        var again = code.DefineLabel();
        code.MarkLabel(again);
        code.Emit(OpCodes.Ldloc, local);
        code.Emit(OpCodes.Ldc_I4_1);
        code.Emit(OpCodes.Add);
        code.Emit(OpCodes.Stloc, local);
        code.Emit(OpCodes.Ldloc, local);
        code.Emit(OpCodes.Ldarg_0);
        code.Emit(OpCodes.Blt, again);
        code.Emit(OpCodes.Ldloc, local);
        code.Emit(OpCodes.Ret);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Deep(int depth) => depth == 0 ? throw new InvalidOperationException("expected") : Deep(depth - 1) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Length(string? text) => text!.Length;
}
