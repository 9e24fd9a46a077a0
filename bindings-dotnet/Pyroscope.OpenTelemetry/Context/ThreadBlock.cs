using System.Runtime.CompilerServices;
using Pyroscope.Interop;

namespace Pyroscope.Context;

/// <summary>
/// The block of the calling thread. Only that thread writes it, and only a signal handler on that thread reads it, so
/// program order is all the order that is needed.
/// </summary>
internal static unsafe class ThreadBlock
{
    // Dies with the thread, as the block's place among the recycled ones begins then: no other thread has this pointer.
    [ThreadStatic]
    private static Block* own;

    // What the block's count was after this copy of the assembly wrote to it last; another one may be in the process.
    [ThreadStatic]
    private static uint published;

    /// <summary>The block, fetched with the first use on a thread. Only where the native library is there.</summary>
    internal static Block* Own
    {
        [MethodImpl(MethodImplOptions.AggressiveInlining)]
        get
        {
            var block = own;
            return block != null ? block : Fetch();
        }
    }

    /// <summary>
    /// Publishes what samples are to carry from now on. Hot: `span switch` in the benchmarks. The record that does not
    /// count is filled, then made to count, so the handler finds the one or the other and never a mixture.
    /// </summary>
    [MethodImpl(MethodImplOptions.AggressiveInlining)]
    internal static void Publish(SpanContext? context)
    {
        var block = Own;
        var next = block->Active + 1;
        var record = &block->First + (next & 1);
        if (context is null)
        {
            record->SpanId = 0;
        }
        else
        {
            *record = context.Record;
        }

        // Pairs with the handler's load of `active`: on x86-64 and for a handler on this thread it keeps the compiler
        // from moving the stores above below it.
        Volatile.Write(ref block->Active, next);
        published = next;
    }

    /// <summary>Publishes that there is no span, if what is there now was published here.</summary>
    internal static void Withdraw()
    {
        if (Own->Active == published)
        {
            Publish(null);
        }
    }

    /// <summary>The same for labels.</summary>
    internal static void Publish(uint tags) => Volatile.Write(ref Own->Tags, tags);

    /// <summary>The record that counts now.</summary>
    internal static SpanRecord Current => (Own->Active & 1) == 0 ? Own->First : Own->Second;

    // Not inlined, and no exception: it may run inside of the runtime's switch of contexts, where one ends the process.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static Block* Fetch() => own = HotNative.OwnBlock();
}
