using System.Runtime;
using System.Runtime.CompilerServices;
using Native = Pyroscope.Interop.Interop;

namespace Pyroscope.Interop;

/// <summary>
/// Tells the library which methods were compiled before it was there. The runtime says so at any time, but takes code away
/// meanwhile, on the thread of finalizers alone: a finalizer is where it does not.
/// </summary>
internal sealed class CatchUp
{
    private static volatile bool awaited;

    private CatchUp()
    {
    }

    ~CatchUp()
    {
        awaited = false;
        // What it answers is of no use here, where an exception would end the process.
        _ = Native.spanprof_catch_up();
    }

    /// <summary>With the next garbage collection.</summary>
    internal static void Soon()
    {
        awaited = true;
        Leave();
    }

    /// <summary>Where the runtime has let the profiler in only after its start: as at a start.</summary>
    internal static void Late()
    {
        if (Native.spanprof_attach_late().AsOk())
        {
            ProfilerMessages.Note("The runtime has let the profiler in after its start: from now on profiles have what was missing.");
            Soon();
        }
    }

    /// <summary>Not later than now: where there was no collection since, one of the youngest objects has next to nothing to do.</summary>
    internal static void Now()
    {
        if (awaited && GCSettings.LatencyMode != GCLatencyMode.NoGCRegion)
        {
            awaited = false;
            GC.Collect(0);
        }
    }

    // On its own, so that no frame holds it.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Leave() => _ = new CatchUp();
}
