using System.Text.Json;

namespace Pyroscope.Benchmarks;

/// <summary>How much is measured.</summary>
internal sealed class Options(string[] arguments)
{
    /// <summary>Shows that everything runs, not what is measured.</summary>
    internal bool Quick { get; } = arguments.Contains("--quick");

    /// <summary>Samples in each scenario of spans, at least.</summary>
    internal int Samples { get; } = arguments.Contains("--quick") ? 10 : int.Parse(arguments.SkipWhile(word => word != "--samples").Skip(1).FirstOrDefault("5000"));

    /// <summary>A number of rounds, of seconds, of anything that is repeated: less of it with <c>--quick</c>.</summary>
    internal int Of(int full, int quick) => Quick ? quick : full;
}

/// <summary>One number beside its bound.</summary>
/// <param name="What">What was measured.</param>
/// <param name="Bound">What it is to be.</param>
/// <param name="Text">What it is.</param>
/// <param name="Passed">Whether that is within the bound; null where there is none on this runtime.</param>
internal sealed record Cell(string What, string Bound, string Text, bool? Passed)
{
    internal static Cell Within(string what, double value, double least, double most) =>
        new(what, FormattableString.Invariant($"{least:0.00}-{most:0.00}"), FormattableString.Invariant($"{value:0.000}"), value >= least && value <= most);
}

/// <summary>The measurements by name, in the order of the table.</summary>
internal static class Row
{
    internal static readonly Dictionary<string, Func<Options, string, IEnumerable<Cell>>> All = new()
    {
        ["spans"] = SpanTruth.Measure,
        ["chains"] = ChainTruth.Measure,
        ["cpu"] = CpuSeen.Measure,
        ["cost"] = SpanCost.Measure,
        ["overhead"] = Overhead.Measure,
        ["allocations"] = AllocationTruth.Measure,
        ["contention"] = ContentionTruth.Measure,
        ["time"] = Time,
        ["start"] = ProcessStart.Measure,
    };

    internal static void Measure(string name, string folder, Options options)
    {
        if (!All.TryGetValue(name, out var measure))
        {
            throw new ArgumentException($"row: {name} is not allowed; allowed: {string.Join(", ", All.Keys)}");
        }

        Directory.CreateDirectory(folder);
        File.WriteAllText(Path.Combine(folder, $"{name}.json"), JsonSerializer.Serialize(measure(options, folder).ToArray()));
    }

    /// <summary>How much is found of where the time goes, and what that costs. The last one keeps this process to one processor.</summary>
    private static IEnumerable<Cell> Time(Options options, string folder) =>
        new Func<Options, string, IEnumerable<Cell>>[] { WaysSeen.Measure, ThreadsSeen.Measure, ShortWaits.Measure, AwaitsSeen.Measure, AwaitChains.Measure, WaitCost.Measure, WebCost.Measure }
            .SelectMany(measure => measure(options, folder));

    /// <summary>A line of progress, told by its beginning from what BenchmarkDotNet prints.</summary>
    internal static void Say(FormattableString text) => Console.WriteLine("  - " + FormattableString.Invariant(text));
}

/// <summary>The mean of numbers and its 95 % interval.</summary>
internal sealed class Interval
{
    internal Interval(IEnumerable<double> numbers)
    {
        var all = numbers.ToArray();
        Mean = all.Average();
        var deviation = Math.Sqrt(all.Sum(number => (number - Mean) * (number - Mean)) / (all.Length - 1));
        // Student's t for 95 % and 29 to 40 degrees of freedom is 2.02 to 2.05.
        Half = 2.04 * deviation / Math.Sqrt(all.Length);
    }

    internal double Mean { get; }

    internal double Low => Mean - Half;

    internal double High => Mean + Half;

    internal double Half { get; }

    /// <summary>Of shares, as a percentage.</summary>
    internal string Percent => FormattableString.Invariant($"{Mean * 100:+0.00;-0.00} % [{Low * 100:+0.00;-0.00}, {High * 100:+0.00;-0.00}]");
}
