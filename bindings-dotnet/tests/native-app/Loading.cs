using System.Reflection.Emit;
using System.Runtime.InteropServices;
using Native = Pyroscope.Interop.Interop;

namespace NativeApp;

/// A thread loads a library whose constructor waits for what the program does meanwhile: compile, ask, fork, stop. Whoever
/// waited for ld.so then would wait for ever.
static unsafe class Loading
{
    public static void Run(string[] settings)
    {
        string library = Environment.GetEnvironmentVariable("LOADING_LIBRARY")!, done = Environment.GetEnvironmentVariable("LOADING_DONE")!;
        var fork = (delegate* unmanaged<int>)NativeLibrary.GetExport(NativeLibrary.Load(Environment.GetEnvironmentVariable("LOADING_FORK")!), "loading_fork");
        // Whatever is called below was called before: to look up a native function waits for ld.so, too.
        Everything(done + ".before", fork);
        Span.Stop();
        Span.Start(settings);
        var loader = new Thread(() => NativeLibrary.Load(library));
        loader.Start();
        while (!File.Exists(done + ".began")) Thread.Sleep(1);
        Everything(null, fork);
        Span.Stop();
        File.WriteAllText(done, "");
        loader.Join();
        Console.WriteLine("true loaded 1");
        Span.Start(settings);
    }

    static void Everything(string? file, delegate* unmanaged<int> fork)
    {
        // Samples of native code whose names nobody knows yet are read meanwhile.
        Span.Set(71);
        for (var until = Environment.TickCount64 + 500; Environment.TickCount64 < until;) Chains.Warm();
        Span.Set(0);
        var method = new DynamicMethod("while loading", typeof(int), [typeof(int)]);
        Soak.Body(method.GetILGenerator());
        Chains.Sink += method.CreateDelegate<Func<int, int>>()(10);
        if (Native.spanprof_stats().AsOk().Unwire().numbers.Count == 0) throw new Exception("no statistics");
        if (fork() != 0) throw new Exception("the child failed");
        if (file != null) File.WriteAllText(file, File.Exists(file) ? "again" : "");
    }
}
