using System.Diagnostics;
using System.Globalization;
using System.Text.Json;

namespace Pyroscope.Benchmarks;

/// <summary>
/// A run that was profiled: what the profiles of wall time have of its spans by name, all states together, and what its own clock has, in
/// nanoseconds.
/// </summary>
/// <param name="Found">What the profiles have.</param>
/// <param name="True">What the program measured.</param>
/// <param name="Samples">Of waits and awaits.</param>
internal sealed record Closure(Dictionary<string, long> Found, Dictionary<string, long> True, ulong Samples)
{
    /// <summary>What may be run in a process of its own: for so many seconds, with so many flows.</summary>
    private static readonly Dictionary<string, Action<SpanClock, double, int>> Programs = new()
    {
        ["short waits"] = (clock, seconds, _) => ShortWaits.Run(clock, seconds),
        ["flows"] = AwaitsSeen.Run,
    };

    internal static Closure Of(int sampleRate, Action<SpanClock> program)
    {
        var clock = new SpanClock();
        using var recording = new Recording(settings => (settings.WallTimeProfilingEnabled, settings.SampleRate) = (true, sampleRate));
        program(clock);
        var found = recording.Samples("wall").GroupBy(sample => sample.Label("span_name")!).ToDictionary(group => group.Key, group => group.Sum(sample => sample.Values[1]));
        return new(found, clock.Sums.ToDictionary(), Profiler.Instance.Stats.WaitsSampled.Samples);
    }

    /// <summary>The same of processes that run at once: each has samples of its own, of which there are so many a second.</summary>
    internal static Closure[] OfProcesses(int count, string program, double seconds, int flows)
    {
        var processes = Enumerable.Range(0, count).Select(_ => Process.Start(new ProcessStartInfo(Environment.ProcessPath!)
        {
            ArgumentList = { typeof(Closure).Assembly.Location, "closure", program, seconds.ToString(CultureInfo.InvariantCulture), $"{flows}" },
            RedirectStandardOutput = true,
        })!).ToArray();
        return processes.Select(process =>
        {
            using var ends = process;
            var said = process.StandardOutput.ReadToEnd();
            process.WaitForExit();
            return process.ExitCode == 0 ? JsonSerializer.Deserialize<Closure>(said)! : throw new InvalidOperationException($"{program} ended with {process.ExitCode}");
        }).ToArray();
    }

    /// <summary>Such a process.</summary>
    internal static void Child(string program, string seconds, string flows)
    {
        var closure = Of(100, clock => Programs[program](clock, double.Parse(seconds, CultureInfo.InvariantCulture), int.Parse(flows, CultureInfo.InvariantCulture)));
        Console.WriteLine(JsonSerializer.Serialize(closure));
    }

    /// <summary>Found over true of a span's name, of all runs, with the standard deviation that they tell by how they differ.</summary>
    internal static Cell Cell(string what, IReadOnlyCollection<Closure> runs, string span)
    {
        double found = runs.Sum(run => run.Found.GetValueOrDefault(span)), time = runs.Sum(run => run.True[span]);
        var share = found / time;
        var differences = runs.Sum(run => Math.Pow(run.Found.GetValueOrDefault(span) - (share * run.True[span]), 2));
        var deviation = Math.Sqrt(differences * runs.Count / (runs.Count - 1)) / time;
        var samples = runs.Sum(run => (long)run.Samples);
        Row.Say($"{what}: {found / 1e9:0.000} of {time / 1e9:0.000} s, {samples} samples of waits; by run {string.Join(' ', runs.Select(run => FormattableString.Invariant($"{run.Found.GetValueOrDefault(span) / (double)run.True[span]:0.000}")))}");
        return Benchmarks.Cell.Within(what, share, 0.97, 1.03) with { Text = FormattableString.Invariant($"{share:0.000} ± {deviation:0.000} of {samples}") };
    }
}
