using System.Reflection;
using System.Runtime.CompilerServices;
using System.Text;
using Pyroscope.Interop;

namespace Pyroscope.Context;

/// <summary>
/// The async methods that await each other, from the one that goes on up. The library reads them from the objects in which the runtime
/// keeps what is suspended, while no collection can move these; here it is told what those are.
/// </summary>
internal static unsafe class SuspendedMethods
{
    // What the library takes types for.
    private const uint Other = 0;
    private const uint Box = 1;
    private const uint List = 2;
    private const uint Forgotten = 3;

    /// <summary>How many types may be explained for one sample; what else is met ends its chain.</summary>
    private const int MostAtOnce = 64;

    private static bool isLearned;
    private static uint target;
    private static uint items;
    private static uint continuation;

    /// <summary>Learns where the runtime has things in its objects. Where that cannot be told, stacks are those of threads.</summary>
    internal static void Learn()
    {
        if (isLearned)
        {
            return;
        }

        var state = new object();
        var task = new Task(static _ => { }, state);
        var goesOn = new Action(new Held().Nothing);
        task.ConfigureAwait(false).GetAwaiter().UnsafeOnCompleted(goesOn);
        var list = new List<object>(1);
        var array = typeof(List<object>).GetField("_items", BindingFlags.Instance | BindingFlags.NonPublic)?.GetValue(list);
        continuation = Offset(task, goesOn);
        target = Offset(goesOn, goesOn.Target);
        items = Offset(list, array);
        var context = Offset(task, state);
        if (context == 0 || continuation == 0 || target == 0 || items == 0)
        {
            return;
        }

        Span<nint> tables = [typeof(object).TypeHandle.Value, typeof(string).TypeHandle.Value, typeof(Task).TypeHandle.Value, typeof(ExecutionContext).TypeHandle.Value];
        fixed (nint* first = tables)
        {
            isLearned = HotNative.LearnBoxes(context, continuation, first, (nuint)tables.Length) != 0;
        }
    }

    /// <summary>
    /// A sample of the span that the calling thread goes on with. Called inside of the runtime's switch of contexts, so the box of the
    /// method that goes on is on the stack, and all that it leads to is alive. Nothing is allocated but where it is caught: an exception here
    /// ends the process.
    /// </summary>
    internal static void Sample(ulong nanoseconds, ulong weight)
    {
        var context = ExecutionContext.Capture();
        var mayGo = stackalloc nint[MostAtOnce];
        var count = 0;
        for (var explained = 0; ; explained++)
        {
            var table = HotNative.SampleResumed(nanoseconds, weight, Unsafe.AsPointer(ref context), explained < MostAtOnce ? 0u : 1u);
            if (table == 0)
            {
                break;
            }

            if (Explain(table) && count < MostAtOnce)
            {
                mayGo[count++] = table;
            }
        }

        while (count > 0)
        {
            HotNative.ExplainType(mayGo[--count], null, 0, 0, Forgotten);
        }
    }

    /// <summary>Explains a type. True: it may be unloaded, and another one be where it is.</summary>
    private static bool Explain(nint table)
    {
        try
        {
            var type = Type.GetTypeFromHandle(RuntimeTypeHandle.FromIntPtr(table));
            var (name, next, kind) = Meaning(type);
            var bytes = Encoding.UTF8.GetBytes(name ?? "");
            fixed (byte* text = bytes)
            {
                HotNative.ExplainType(table, text, (nuint)bytes.Length, next, kind);
            }

            return type?.IsCollectible ?? false;
        }
        catch (Exception error)
        {
            // Where it is called one would end the process.
            HotNative.ExplainType(table, null, 0, 0, Other);
            if (error is ThreadInterruptedException)
            {
                // Meant for the program's next wait.
                Thread.CurrentThread.Interrupt();
            }

            return false;
        }
    }

    private static (string? Name, uint Next, uint Kind) Meaning(Type? type)
    {
        if (type == typeof(Action))
        {
            return (null, target, Other);
        }

        if (type == typeof(List<object>))
        {
            return (null, items, List);
        }

        for (var above = type; above is not null; above = above.BaseType)
        {
            // The last argument is the state machine that the compiler made of a method.
            if (above.Name == "AsyncStateMachineBox`1" && above.GetGenericArguments() is [.., var machine])
            {
                return ((machine.IsGenericType ? machine.GetGenericTypeDefinition() : machine).FullName, 0, Box);
            }
        }

        return (null, typeof(Task).IsAssignableFrom(type) ? continuation : 0, Other);
    }

    private static uint Offset(object holder, object? held) =>
        held is null ? 0 : HotNative.OffsetOf(Unsafe.AsPointer(ref holder), Unsafe.AsPointer(ref held));

    /// <summary>What a delegate holds.</summary>
    private sealed class Held
    {
        internal void Nothing()
        {
        }
    }
}
