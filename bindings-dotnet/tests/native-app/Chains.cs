using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Text.Json;

namespace NativeApp;

/// Every method here is called by one other alone, whose name is the start of its own: C_1_2 is called by C_1. So a
/// sample's frames of this class tell by themselves whether one is missing or wrong.
static class Chains
{
    public static volatile int Sink;
    static readonly Func<int, int> byDelegate = C_4_1;
    static readonly IShape shape = new Square();
    static readonly int[] unsorted = Enumerable.Range(0, 64).Select(i => i * 7919 % 64).ToArray();
    static readonly Dictionary<string, int> words = Enumerable.Range(0, 100).ToDictionary(i => "word" + i, i => i);

    public static void Run(DateTime until)
    {
        Span.Set(21, "chains");
        while (DateTime.UtcNow < until) Sink += C(50);
        Span.Set(0);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int C(int n) => C_1(n) + C_2(n) + C_3(n) + C_4(n) + C_5(n) + C_6(n) + C_7(n) + C_8(n) + C_9(n);

    // Leaves without a frame, and one that calls.
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_1(int n) { var sum = 0; for (var i = 0; i < n; i++) sum += C_1_1(i) + C_1_2(i); return sum; }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_1_1(int i) => i * 31 ^ i >> 3;
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_1_2(int i) => C_1_2_1(i) + 1;
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_1_2_1(int i) => C_1_2_1_1(i) + C_1_2_1_2(i);
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_1_2_1_1(int i) => i / 3 + i % 7;
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_1_2_1_2(int i) { Span<byte> bytes = stackalloc byte[64]; bytes.Fill((byte)i); return bytes[i & 63]; }

    // Into the system and out again.
    [DllImport("libc")] static extern int getppid();
    [DllImport("libc"), SuppressGCTransition] static extern int getpid();
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_2(int n) { var sum = 0; for (var i = 0; i < n; i++) sum += C_2_1() + C_2_2(); return sum; }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_2_1() => getppid() & 1;
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_2_2() => getpid() & 1;

    // Memory and strings.
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_3(int n) => C_3_1(n) + C_3_2(n) + C_3_3(n);
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_3_1(int n) { var sum = 0; for (var i = 0; i < n; i++) sum += new int[i + 1].Length; return sum; }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_3_2(int n) => string.Concat("a", n.ToString(), "b").Length;
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_3_3(int n) { var copy = (int[])unsorted.Clone(); Array.Sort(copy); return copy[n & 63]; }

    // By delegate, interface, generic code and comparison from within the framework.
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_4(int n) { var sum = 0; for (var i = 0; i < n; i++) sum += byDelegate(i); return sum; }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_4_1(int i) => (int)Math.Sqrt(i) + (i << 3) % 11;
    interface IShape { int Area(int i); }
    class Square : IShape { public int Area(int i) => C_5_1(i); }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_5(int n) { var sum = 0; for (var i = 0; i < n; i++) sum += shape.Area(i); return sum; }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_5_1(int i) => C_5_1_1<string>(i) + C_5_1_2<long>(i);
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_5_1_1<T>(int i) => typeof(T).Name.Length + i;
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_5_1_2<T>(int i) => Unsafe.SizeOf<T>() * i;
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_6(int n) { var copy = (int[])unsorted.Clone(); Array.Sort(copy, C_6_1); return copy[n & 63]; }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_6_1(int one, int other) => C_6_1_1(one) - C_6_1_1(other);
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_6_1_1(int i) => i ^ 21;

    // Framework code.
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_7(int n) => C_7_1(n) + C_7_2(n);
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_7_1(int n) => JsonSerializer.Serialize(words).Length + n;
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_7_2(int n) => words.Where(pair => pair.Value % 3 == n % 3).OrderBy(pair => pair.Key, StringComparer.Ordinal).Count();

    // Loops, recursion, exceptions with their handlers.
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_8(int n) => C_8_1(n * 4) + C_8_2(12);
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_8_1(int n) { var sum = 0; for (var i = 0; i < n; i++) for (var j = 0; j < 8; j++) sum += i * j ^ sum; return sum; }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_8_2(int depth) => depth == 0 ? 1 : C_8_2(depth - 1) * 3 + depth;
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_9(int n) { try { return C_9_1(n); } finally { Sink += C_9_2(n); } }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_9_1(int n) { var sum = 0; for (var i = 0; i < n; i++) sum += i & n; return sum; }
    [MethodImpl(MethodImplOptions.NoInlining)] static int C_9_2(int n) { var sum = 0; for (var i = 0; i < n; i++) sum += i | n; return sum; }
}
