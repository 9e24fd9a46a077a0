using System.Diagnostics;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Waits;

/// <summary>Code that comes and goes, and waits: of a library, where there is a compiler of C, and of the runtime's.</summary>
static unsafe class Modules
{
    const MethodImplOptions Apart = MethodImplOptions.NoInlining;
    const int Copies = 4;

    static string[] copies = [];
    static nint kept;
    static int made;

    public static readonly (string Span, Func<int, int> Work)[] OfLibrary = [("library", Library), ("forks", Forks), ("runs a command", RunsACommand)];

    /// <summary>Whether there is a library: its copies are opened and closed, and one stays.</summary>
    public static bool Build(string folder)
    {
        var (source, library) = (Path.Combine(AppContext.BaseDirectory, "waits.c"), Path.Combine(folder, "libwaits.so"));
        try
        {
            if (!Compile(source, library, 0)) return false;
            copies = [.. Enumerable.Range(0, Copies).Select(number => Path.Combine(folder, $"libwaits-{number}.so"))];
            for (var number = 0; number < Copies; number++)
                if (!Compile(source, copies[number], 100 * number)) return false;
        }
        catch (System.ComponentModel.Win32Exception)
        {
            return false;
        }
        kept = NativeLibrary.Load(library);
        return true;
    }

    // Each with other places on the stack, so that what is known of one says nothing of the next at its address.
    static bool Compile(string source, string library, int size)
    {
        using var compiler = Process.Start("cc", ["-shared", "-fPIC", "-O2", $"-DSIZE={size}", "-o", library, source]);
        compiler.WaitForExit();
        return compiler.ExitCode == 0;
    }

    public static nint Function(string name) => NativeLibrary.GetExport(kept, name);

    [MethodImpl(Apart)]
    static int Library(int number)
    {
        for (var time = 0; time < 3; time++)
        {
            var library = NativeLibrary.Load(copies[(number + time) % Copies]);
            var sleep = (delegate* unmanaged<long, int>)NativeLibrary.GetExport(library, "waits_sleep");
            var poll = (delegate* unmanaged<int, int>)NativeLibrary.GetExport(library, "waits_poll");
            number += CallsIt(sleep, poll);
            NativeLibrary.Free(library);
        }
        return number;
    }

    [MethodImpl(Apart)]
    static int CallsIt(delegate* unmanaged<long, int> sleep, delegate* unmanaged<int, int> poll) => sleep(20_000) + sleep(5_000) + poll(1);

    [MethodImpl(Apart)]
    static int Forks(int number)
    {
        var fork = (delegate* unmanaged<int, int>)Function("waits_fork");
        return fork(number % 100) == 1 ? number : throw new InvalidOperationException("a child ended otherwise");
    }

    [MethodImpl(Apart)]
    static int RunsACommand(int number)
    {
        var system = (delegate* unmanaged<int, int>)Function("waits_system");
        return system(3) == 1 ? number : throw new InvalidOperationException("a command ended otherwise");
    }

    // return (Thread.Sleep(1), number).number;
    static void Body(ILGenerator il)
    {
        il.Emit(OpCodes.Ldc_I4_1);
        il.Emit(OpCodes.Call, typeof(Thread).GetMethod(nameof(Thread.Sleep), [typeof(int)])!);
        il.Emit(OpCodes.Ldarg_0);
        il.Emit(OpCodes.Ret);
    }

    [MethodImpl(Apart)]
    public static int Collectible(int number)
    {
        var assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName("made"), AssemblyBuilderAccess.RunAndCollect);
        var type = assembly.DefineDynamicModule("made").DefineType($"Made.Type{Interlocked.Increment(ref made)}", TypeAttributes.Public);
        Body(type.DefineMethod("Rest", MethodAttributes.Public | MethodAttributes.Static, typeof(int), [typeof(int)]).GetILGenerator());
        var rest = type.CreateType().GetMethod("Rest")!.CreateDelegate<Func<int, int>>();
        for (var time = 0; time < 4; time++) number += rest(time);
        return number;
    }

    [MethodImpl(Apart)]
    public static int Dynamic(int number)
    {
        var method = new DynamicMethod($"made{Interlocked.Increment(ref made)}", typeof(int), [typeof(int)]);
        Body(method.GetILGenerator());
        var rest = method.CreateDelegate<Func<int, int>>();
        for (var time = 0; time < 4; time++) number += rest(time);
        return number;
    }
}
