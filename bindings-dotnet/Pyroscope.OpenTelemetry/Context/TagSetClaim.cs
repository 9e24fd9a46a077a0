namespace Pyroscope.Context;

/// <summary>
/// Holds a set of labels in the native table. Whoever is labelled has the <see cref="LabelSet"/> in its execution context,
/// and that has this, so no thread's block has the number any more when this is finalized.
/// </summary>
internal sealed class TagSetClaim
{
    internal TagSetClaim(IEnumerable<KeyValuePair<string, string>> labels) => Number = Engine.HoldTags(labels);

    ~TagSetClaim()
    {
        if (Number != 0)
        {
            Engine.ReleaseTags(Number);
        }
    }

    internal uint Number { get; }
}
