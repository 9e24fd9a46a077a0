using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using Pyroscope.Tests;

namespace NativeApp;

/// Methods that were compiled before the profiler came: of this program, of an assembly that may go away, and of a generic
/// type of the framework for a type of such an assembly. While there is no garbage collection nobody may ask for any of them.
static class Older
{
    static Func<int, int>? own, collectible, generic;

    public static void Make()
    {
        own = Stays;
        collectible = Collectible(out var type);
        generic = (Func<int, int>)Delegate.CreateDelegate(typeof(Func<int, int>), typeof(Older).GetMethod(nameof(Generic), BindingFlags.NonPublic | BindingFlags.Static)!.MakeGenericMethod(type));
        foreach (var work in new[] { own, collectible, generic }) work(1);
    }

    public static void Run(DateTime until, string[] settings)
    {
        // Nothing is allocated, so nothing is collected, for longer than a look at the same code twice would take.
        Span.Set(51);
        Burn(own!, 300);
        Span.Set(52);
        Burn(collectible!, 1500);
        Span.Set(0);
        Console.WriteLine($"true collections {GC.CollectionCount(0)}");
        GC.Collect();
        GC.WaitForPendingFinalizers();
        foreach (var (work, id) in new[] { (own!, 61ul), (collectible!, 62ul), (generic!, 63ul) })
        {
            Span.Set(id);
            Burn(work, 300);
        }
        Span.Set(0);
    }

    // So much of the thread's time, for so long at least.
    [MethodImpl(MethodImplOptions.NoInlining)] static void Burn(Func<int, int> work, int milliseconds)
    {
        var (until, used) = (Environment.TickCount64 + milliseconds, ThreadTime.Seconds + milliseconds / 1e3);
        while (Environment.TickCount64 < until || ThreadTime.Seconds < used) Chains.Sink += work(200_000);
    }

    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)] static int Stays(int n) { var sum = 0; for (var i = 0; i < n; i++) sum += sum ^ i; return sum; }
    [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)] static int Generic<T>(int n) { var sum = Unsafe.SizeOf<T>(); for (var i = 0; i < n; i++) sum += sum ^ i; return sum; }

    static Func<int, int> Collectible(out Type type)
    {
        var assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName("older"), AssemblyBuilderAccess.RunAndCollect);
        var builder = assembly.DefineDynamicModule("older").DefineType("Made.Older", TypeAttributes.Public | TypeAttributes.Sealed | TypeAttributes.SequentialLayout, typeof(ValueType));
        builder.DefineField("Word", typeof(long), FieldAttributes.Public);
        var loop = builder.DefineMethod("Loop", MethodAttributes.Public | MethodAttributes.Static, typeof(int), [typeof(int)]);
        loop.SetImplementationFlags(MethodImplAttributes.AggressiveOptimization);
        Soak.Body(loop.GetILGenerator());
        type = builder.CreateType();
        return type.GetMethod("Loop")!.CreateDelegate<Func<int, int>>();
    }
}
