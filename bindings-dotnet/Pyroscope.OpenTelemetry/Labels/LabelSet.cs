using Pyroscope.Context;

namespace Pyroscope;

/// <summary>
/// Labels for samples, immutable. Each set of values becomes a series in the server, so values should be few: 1,024 sets
/// may be alive at once, further ones are left out and counted (<c>tag_sets_lost</c>).
/// </summary>
public sealed class LabelSet
{
    private readonly Dictionary<string, string> labels;
    private TagSetClaim? claim;

    private LabelSet(Dictionary<string, string> labels) => this.labels = labels;

    /// <summary>No labels.</summary>
    public static LabelSet Empty { get; } = new([]);

    /// <summary>The number that samples carry, once it is <see cref="Hold">held</see>; 0 before. A load.</summary>
    internal uint Number => Volatile.Read(ref claim)?.Number ?? 0;

    /// <summary>
    /// Labels what the calling flow does from now on. <see cref="LabelsWrapper"/> ends it by itself, and is to be preferred.
    /// </summary>
    public void Activate() => LabelFlow.Activate(this);

    /// <summary>Gets the number. The first call takes a lock and some microseconds.</summary>
    internal void Hold()
    {
        if (labels.Count > 0 && Number == 0 && TagSetClaim.Of(labels) is { } held)
        {
            // Of two threads that come here at once one claim is let go by its finalizer.
            Interlocked.CompareExchange(ref claim, held, null);
        }
    }

    /// <summary>A builder that begins with these labels.</summary>
    /// <returns>The builder.</returns>
    public Builder BuildUpon() => new(this);

    /// <summary>Collects labels.</summary>
    public sealed class Builder
    {
        private readonly Dictionary<string, string> labels;

        /// <summary>Begins with the labels of a set.</summary>
        /// <param name="from">The set.</param>
        public Builder(LabelSet from)
        {
            ArgumentNullException.ThrowIfNull(from);
            labels = new(from.labels, StringComparer.Ordinal);
        }

        /// <summary>Adds a label, or replaces its value.</summary>
        /// <param name="name">Name, <c>[A-Za-z_][A-Za-z0-9_.]*</c>. One that servers do not take, or that stands for a span
        /// (<c>span_id</c>), is left out, with one warning.</param>
        /// <param name="value">Value; cut at 2,048 bytes.</param>
        /// <returns>This builder.</returns>
        public Builder Add(string name, string value)
        {
            ArgumentNullException.ThrowIfNull(name);
            ArgumentNullException.ThrowIfNull(value);
            if (LabelName.Problem(name) is { } problem)
            {
                ProfilerMessages.Warn($"LabelSet: {problem}; the tag is left out");
            }
            else
            {
                labels[name] = value;
            }

            return this;
        }

        /// <summary>The set of what was added so far.</summary>
        /// <returns>A set that this builder changes no more.</returns>
        public LabelSet Build() => new(new(labels, StringComparer.Ordinal));
    }
}
