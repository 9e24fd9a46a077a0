using System.Diagnostics;
using System.Linq.Expressions;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace NativeApp;

/// Everything at once that has ever disturbed a sampler: garbage collections, exceptions (of the hardware's too), threads
/// that come and go, code that comes and goes, child processes.
static class Soak
{
    static long collections, exceptions, threads, methods, assemblies, processes;
    static long spans;

    /// Everything is done for `seconds`. What memory is resident is noted a hundred times.
    public static Memory Run(double seconds)
    {
        var until = DateTime.UtcNow.AddSeconds(seconds);
        void Keep(Action work)
        {
            if (work == Throw) HearNothingOfChildren();
            while (DateTime.UtcNow < until) { Enter(work.Method.Name); work(); Span.Set(0); }
        }
        Action[] all = [Collect, Throw, Threads, DynamicMethod, CollectibleAssembly, Process, Compile, Tasks];
        var workers = all.Select(work => new Thread(() => Keep(work))).ToList();
        workers.ForEach(worker => worker.Start());
        var memory = new Memory(seconds);
        while (DateTime.UtcNow < until) { Thread.Sleep(TimeSpan.FromSeconds(seconds / 100)); memory.Note(); }
        workers.ForEach(worker => worker.Join());
        Console.WriteLine($"soak server {System.Runtime.GCSettings.IsServerGC} {System.Runtime.GCSettings.LatencyMode} gc {GC.CollectionCount(0)} forced {collections} exceptions {exceptions} threads {threads} methods {methods} assemblies {assemblies} processes {processes}");
        return memory;
    }

    /// SIGCHLD is for other threads. CoreCLR copies registers on the small stack on which a fault of the processor's is told, and a signal that comes
    /// then has no room left there, which ends the process, without a profiler as well. Its own signal, which ours is, it holds back.
    static void HearNothingOfChildren()
    {
        const int Block = 0, Child = 17;
        var signals = new byte[128];
        signals[(Child - 1) / 8] |= 1 << ((Child - 1) % 8);
        if (pthread_sigmask(Block, signals, null) != 0) throw new InvalidOperationException("pthread_sigmask");
    }

    [DllImport("libc")] static extern int pthread_sigmask(int how, byte[] signals, byte[]? before);

    /// The calling thread is in a new span of this name, which is that of the method it calls next.
    static void Enter(string name) => Span.Set((ulong)Interlocked.Increment(ref spans), name);

    static void Collect()
    {
        var kept = new List<object>();
        for (var i = 0; i < 2_000; i++) kept.Add(i % 3 == 0 ? new byte[i] : new string('x', i % 100));
        if (++collections % 4 == 0) GC.Collect(2, GCCollectionMode.Forced, true, collections % 8 == 0);
        GC.KeepAlive(kept);
    }

    static void Throw()
    {
        for (var depth = 0; depth < 20; depth++)
        {
            try { Deep(depth); } catch (Exception error) when (error.Message.Length > 0) { exceptions++; }
            try { Chains.Sink += Null(null); } catch (NullReferenceException) { exceptions++; }
            try { Chains.Sink += 1 / (depth - depth); } catch (DivideByZeroException) { exceptions++; }
        }
    }

    [MethodImpl(MethodImplOptions.NoInlining)] static int Deep(int depth) => depth == 0 ? throw new InvalidOperationException("deep") : Deep(depth - 1) + 1;
    [MethodImpl(MethodImplOptions.NoInlining)] static int Null(string? text) => text!.Length;

    static void OneThread() { Enter(nameof(InThread)); InThread(); }

    static void Threads()
    {
        var some = Enumerable.Range(0, 20).Select(_ => new Thread(OneThread)).ToList();
        some.ForEach(thread => thread.Start());
        some.ForEach(thread => thread.Join());
        threads += some.Count;
    }

    [MethodImpl(MethodImplOptions.NoInlining)] static void InThread() { for (var i = 0; i < 10; i++) Spin(2_000); }
    [MethodImpl(MethodImplOptions.NoInlining)] static void InTask() { for (var i = 0; i < 10; i++) Spin(100); }
    [MethodImpl(MethodImplOptions.NoInlining)] static void Spin(int n) { for (var i = 0; i < n; i++) Chains.Sink += i; }

    internal static void Body(ILGenerator il)
    {
        // var i = 0; do i++; while (i < n); return i;
        var i = il.DeclareLocal(typeof(int));
        var again = il.DefineLabel();
        il.Emit(OpCodes.Ldc_I4_0);
        il.Emit(OpCodes.Stloc, i);
        il.MarkLabel(again);
        il.Emit(OpCodes.Ldloc, i);
        il.Emit(OpCodes.Ldc_I4_1);
        il.Emit(OpCodes.Add);
        il.Emit(OpCodes.Stloc, i);
        il.Emit(OpCodes.Ldloc, i);
        il.Emit(OpCodes.Ldarg_0);
        il.Emit(OpCodes.Blt, again);
        il.Emit(OpCodes.Ldloc, i);
        il.Emit(OpCodes.Ret);
    }

    static void DynamicMethod()
    {
        var method = new DynamicMethod("made" + ++methods, typeof(int), [typeof(int)]);
        Body(method.GetILGenerator());
        Chains.Sink += method.CreateDelegate<Func<int, int>>()(1_000_000);
    }

    static void CollectibleAssembly()
    {
        var assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName("made" + ++assemblies), AssemblyBuilderAccess.RunAndCollect);
        var type = assembly.DefineDynamicModule("made").DefineType("Made.Type" + assemblies, TypeAttributes.Public);
        Body(type.DefineMethod("Loop", MethodAttributes.Public | MethodAttributes.Static, typeof(int), [typeof(int)]).GetILGenerator());
        Chains.Sink += type.CreateType().GetMethod("Loop")!.CreateDelegate<Func<int, int>>()(1_000_000);
    }

    static void Process()
    {
        using var child = System.Diagnostics.Process.Start(new ProcessStartInfo("/bin/true"))!;
        child.WaitForExit();
        processes++;
    }

    static void Compile()
    {
        var n = Expression.Parameter(typeof(int));
        var body = Enumerable.Range(0, 30).Aggregate((Expression)n, (sum, i) => Expression.Add(Expression.Multiply(sum, Expression.Constant(3)), Expression.Constant(i)));
        var compiled = Expression.Lambda<Func<int, int>>(body, n).Compile();
        for (var i = 0; i < 10_000; i++) Chains.Sink += compiled(i);
    }

    static void Tasks() => Task.WhenAll(Enumerable.Range(0, 50).Select(_ => OneTask())).Wait();

    static async Task OneTask() { await Task.Yield(); Enter(nameof(InTask)); InTask(); Span.Set(0); }
}
