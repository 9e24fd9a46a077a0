using Pyroscope.Interop;

namespace Pyroscope.Context;

/// <summary>The labels in force, which flow as spans do: see <see cref="SpanMirror"/>, whose rules for handlers hold here too.</summary>
internal static class LabelFlow
{
    private static readonly AsyncLocal<LabelSet?> Flow = new(OnSwitched);

    internal static LabelSet? Current => Flow.Value;

    internal static void Activate(LabelSet? labels)
    {
        if (NativeLibraryCheck.IsUsable)
        {
            // Here and not in the handler: the first use of a set takes a lock.
            labels?.Hold();
            Flow.Value = labels;
        }
    }

    private static void OnSwitched(AsyncLocalValueChangedArgs<LabelSet?> change) =>
        ThreadBlock.Publish(change.CurrentValue?.Number ?? 0);
}
