using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>Bytes in the allocation profile over the bytes that the program allocated, in total and for each type.</summary>
internal static class AllocationTruth
{
    /// <summary>What the runtime takes as the mean of bytes between two samples.</summary>
    private const double Period = 102_400;

    /// <summary>Each kind is so much of every round.</summary>
    private const int BytesOfKind = 1 << 20;

    private static readonly Kind[] Kinds =
    [
        Kind.Of("Pyroscope.Benchmarks.Small", () => new Small(1)),
        Kind.Of("Pyroscope.Benchmarks.Large", () => new Large(1, 2, 3, 4)),
        Kind.Of("System.String", () => new string('x', 50)),
        Kind.Of("System.Object[]", () => new object[100]),
        Kind.Of("System.Byte[]", () => new byte[4_000]),
        Kind.Of("System.Int32[]", () => new int[5_000]),
        Kind.Of("System.Double[]", () => new double[40_000]),
    ];

    private static volatile object? kept;

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        // They make what is allocated once.
        foreach (var kind in Kinds)
        {
            kind.Allocate();
        }

        using var recording = new Recording(settings => (settings.CpuProfilingEnabled, settings.AllocationProfilingEnabled) = (false, true));
        if (Profiler.Instance.Status["allocations"] is { IsOn: false } off)
        {
            throw new InvalidOperationException(off.Reason);
        }

        var before = GC.GetTotalAllocatedBytes(true);
        var rounds = options.Of(700, 40);
        using (Recording.Source.StartActivity("allocate"))
        {
            for (var round = 0; round < rounds; round++)
            {
                foreach (var kind in Kinds)
                {
                    kind.Allocate();
                }
            }
        }

        var allocated = GC.GetTotalAllocatedBytes(true) - before;
        var samples = recording.Samples("memory");
        var total = samples.Sum(sample => sample.Values[1]) / (double)allocated;
        const string What = "allocated bytes, estimated / true";
        if (Environment.Version.Major < 10)
        {
            // The runtime has no unbiased events there; docs/dotnet/limits.md says what that means.
            yield return new(What, "0.97-1.03 (.NET 10)", FormattableString.Invariant($"{total:0.000}"), null);
            yield break;
        }

        yield return Cell.Within(What, total, 0.97, 1.03) with { Bound = "0.97-1.03 (.NET 10)" };
        var deviations = Kinds.Select(kind => (kind.Name, Sigmas: kind.Deviation(
            samples.Where(sample => sample.Frames[0] == kind.Name).Sum(sample => sample.Values[1]), rounds))).ToArray();
        foreach (var (name, sigmas) in deviations)
        {
            Row.Say($"{name}: {sigmas:0.00} sigma");
        }

        var within = deviations.Count(deviation => Math.Abs(deviation.Sigmas) <= 2);
        // Chance alone puts one in 22 beyond.
        yield return new(
            "the same by type: types within 2 sigma, furthest", $">= {Kinds.Length - 1} of {Kinds.Length}, 3 sigma",
            FormattableString.Invariant($"{within} of {Kinds.Length}, {deviations.Max(deviation => Math.Abs(deviation.Sigmas)):0.0} sigma"),
            within >= Kinds.Length - 1 && deviations.All(deviation => Math.Abs(deviation.Sigmas) <= 3));
    }

    /// <summary>A type of known size.</summary>
    private sealed record Kind(string Name, Func<object> Make, long Size, int Count)
    {
        internal static Kind Of(string name, Func<object> make)
        {
            kept = make();
            var before = GC.GetAllocatedBytesForCurrentThread();
            kept = make();
            var size = GC.GetAllocatedBytesForCurrentThread() - before;
            return new(name, make, size, (int)(BytesOfKind / size));
        }

        internal void Allocate()
        {
            for (var made = 0; made < Count; made++)
            {
                kept = Make();
            }
        }

        /// <summary>By how many standard deviations the estimate of so many rounds is away from the truth.</summary>
        internal double Deviation(double estimate, int rounds)
        {
            // An object is sampled with this probability, and a sample counts as 1 / probability objects.
            var sampled = 1 - Math.Pow(1 - (1 / Period), Size);
            var objects = (double)Count * rounds;
            return (estimate - (objects * Size)) / (Size * Math.Sqrt(objects * (1 - sampled) / sampled));
        }
    }
}

// Not inside of the class, as the runtime leaves out enclosing types where it names what was allocated.
internal sealed record Small(long One);

internal sealed record Large(decimal One, decimal Two, decimal Three, decimal Four);
