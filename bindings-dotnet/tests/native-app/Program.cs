// Drives libspanprof.so without the package around it: what tests/native.rs and the soak look at.
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using NativeApp;
using Pyroscope.Interop;
using Native = Pyroscope.Interop.Interop;

var scenario = args[0];
var seconds = double.Parse(args[1]);
if (scenario == "older") Older.Make();
if (scenario == "older_thread") OlderThread.Make();
Span.Start(args[2..]);
var until = DateTime.UtcNow.AddSeconds(seconds);
Memory? memory = null;
switch (scenario)
{
    case "cpu": Cpu.Run(until); break;
    case "events": Events.Run(until); break;
    case "chains": Chains.Run(until); break;
    case "soak": memory = Soak.Run(seconds); break;
    case "older": Older.Run(until, args[2..]); break;
    case "older_thread": OlderThread.Run(); break;
    case "restart": Restart.Run(until, args[2..]); break;
    default: throw new ArgumentException(scenario);
}
var stats = Span.Stop();
return memory == null || new SoakJudge().Judge(args[2..], stats, memory) ? 0 : 1;

namespace NativeApp
{
    /// The thread's block, as the package writes it.
    static unsafe class Span
    {
        [DllImport("spanprof")] static extern Block* spanprof_block();
        [DllImport("spanprof")] static extern byte* spanprof_name(byte* name, nuint length);

        [ThreadStatic] static Block* own;

        public static void Set(ulong id, string name = "")
        {
            if (own == null) own = spanprof_block();
            var next = own->Active ^ 1;
            var record = next == 0 ? &own->First : &own->Second;
            *record = new SpanRecord { TraceHigh = 1, TraceLow = id, SpanId = id };
            if (name.Length > 0)
            {
                var bytes = System.Text.Encoding.UTF8.GetBytes(name);
                fixed (byte* text = bytes) record->Name = spanprof_name(text, (nuint)bytes.Length);
                if (record->Name != null) record->NameLength = (uint)bytes.Length;
            }
            Volatile.Write(ref own->Active, next);
        }

        public static void Start(string[] settings)
        {
            var values = settings.Select(setting => setting.Split('=', 2)).Select(pair => new Pair { name = pair[0], text = pair[1] }).ToList();
            values.Add(new Pair { name = "runtime_version", text = Environment.Version.ToString() });
            var answer = Native.spanprof_start(new Settings { environment = [], values = values }.Wire()).AsOk().Unwire();
            if (answer.kind != 0) throw new Exception(answer.text);
            CatchUp.Soon();
            foreach (var feature in Native.spanprof_status().AsOk().Unwire().features) Console.WriteLine($"status {feature.name} {feature.is_on} {feature.why}");
        }

        public static Dictionary<string, ulong> Stop()
        {
            Console.WriteLine($"stopped {Native.spanprof_stop(5000).AsOk().Is}");
            var stats = Native.spanprof_stats().AsOk().Unwire();
            foreach (var number in stats.numbers) if (number.number != 0) Console.WriteLine($"stat {number.name} {number.number}");
            if (stats.last_error != "") Console.WriteLine($"error {stats.last_error}");
            foreach (var told in Native.spanprof_take_messages().AsOk().Unwire().messages) Console.WriteLine($"told {told.text}");
            return stats.numbers.ToDictionary(number => number.name, number => number.number);
        }
    }

    /// As the package's.
    sealed class CatchUp
    {
        ~CatchUp() => _ = Native.spanprof_catch_up();
        [MethodImpl(MethodImplOptions.NoInlining)] public static void Soon() => _ = new CatchUp();
    }

    static class Cpu
    {
        public static void Run(DateTime until)
        {
            Span.Set(7, "GET /cart");
            while (DateTime.UtcNow < until) { One(); }
            Span.Set(0);
        }

        [MethodImpl(MethodImplOptions.NoInlining)] static int One() => Two(1000) + Two(10) + 1;
        [MethodImpl(MethodImplOptions.NoInlining)] static int Two(int n) { var sum = 0; for (var i = 0; i < n; i++) sum += Leaf(i) + Sorted(i); return sum; }
        [MethodImpl(MethodImplOptions.NoInlining)] static int Leaf(int i) => i * 31 ^ i >> 3;
        static readonly int[] numbers = Enumerable.Range(0, 50).Reverse().ToArray();
        [MethodImpl(MethodImplOptions.NoInlining)] static int Sorted(int i) { var copy = (int[])numbers.Clone(); Array.Sort(copy); return copy[i % copy.Length]; }
    }

    static class Events
    {
        static object? kept;
        static readonly object gate = new();

        public static void Run(DateTime until)
        {
            long rounds = 0, waits = 0, throws = 0;
            var waited = TimeSpan.Zero;
            Span.Set(11, "allocating");
            var third = until - (until - DateTime.UtcNow) * 2 / 3;
            while (DateTime.UtcNow < third) { Small(); Large(); if (++rounds % 10 == 0) Thread.Sleep(1); }
            Span.Set(0);
            third += (until - third) / 2;
            var holder = new Thread(() => { while (DateTime.UtcNow < third) { lock (gate) Thread.Sleep(20); Thread.Sleep(1); } });
            holder.Start();
            Span.Set(12, "waiting");
            var clock = new System.Diagnostics.Stopwatch();
            while (DateTime.UtcNow < third) { Thread.Sleep(1); var contended = Monitor.LockContentionCount; clock.Restart(); Wait(); if (Monitor.LockContentionCount != contended) { waits++; waited += clock.Elapsed; } }
            Span.Set(0);
            holder.Join();
            Span.Set(13, "throwing");
            while (DateTime.UtcNow < until) { Catch(); throws++; Thread.Sleep(1); }
            Span.Set(0);
            Console.WriteLine($"true small_bytes {rounds * 600 * 32} large_bytes {rounds * 20_024} waits {waits} waited_ns {waited.TotalNanoseconds:F0} throws {throws}");
        }

        // A list is three words and a header, an array's content comes after two words and a header.
        [MethodImpl(MethodImplOptions.NoInlining)] static void Small() { for (var i = 0; i < 600; i++) kept = new List<int>(); }
        [MethodImpl(MethodImplOptions.NoInlining)] static void Large() { kept = new byte[20_000]; }
        [MethodImpl(MethodImplOptions.NoInlining)] static void Wait() { lock (gate) { } }
        [MethodImpl(MethodImplOptions.NoInlining)] static void Catch() { try { Throw(); } catch (FormatException) { } }
        [MethodImpl(MethodImplOptions.NoInlining)] static void Throw() => throw new FormatException("expected");
    }

    /// The profiler starts, stops and switches its parts while threads come and go.
    static class Restart
    {
        public static void Run(DateTime until, string[] settings)
        {
            var worker = new Thread(() =>
            {
                while (DateTime.UtcNow < until)
                {
                    var thread = new Thread(() => { Span.Set(31, "restarting"); for (var i = 0; i < 1_000; i++) Chains.Sink += new int[i].Length; });
                    thread.Start();
                    thread.Join();
                }
            });
            worker.Start();
            var rounds = 0;
            for (; DateTime.UtcNow < until; rounds++)
            {
                foreach (var on in new[] { false, true })
                    foreach (var feature in new[] { Feature.Cpu, Feature.Allocations, Feature.Locks, Feature.Exceptions })
                    {
                        var answer = Native.spanprof_set_tracking(feature, on).AsOk().Unwire();
                        if (answer.kind != 0) throw new Exception(answer.text);
                    }
                Span.Stop();
                Span.Start(settings);
            }
            worker.Join();
            Console.WriteLine($"true rounds {rounds}");
        }
    }
}
