namespace Pyroscope.Context;

/// <summary>
/// Holds a set of labels in the native table. Whoever is labelled has the <see cref="LabelSet"/> in its execution context,
/// and that has this, so no thread's block has the number any more when this is finalized.
/// </summary>
internal sealed class TagSetClaim
{
    private TagSetClaim(uint number) => Number = number;

    ~TagSetClaim() => Engine.ReleaseTags(Number);

    internal uint Number { get; }

    /// <summary>Null where too many sets are alive.</summary>
    internal static TagSetClaim? Of(IEnumerable<KeyValuePair<string, string>> labels) =>
        Engine.HoldTags(labels) is var number and not 0 ? new TagSetClaim(number) : null;
}
