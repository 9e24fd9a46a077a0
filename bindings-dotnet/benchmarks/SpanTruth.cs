using System.Diagnostics;
using System.Globalization;
using System.Reflection;
using System.Runtime.CompilerServices;
using OpenTelemetry.Trace;
using Pyroscope.Context;
using Pyroscope.OpenTelemetry;
using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>
/// The tests' scenarios of spans, with CPU time burnt at each checkpoint. The frames of the burning code spell which span
/// the scenario is in, so each sample has the truth in its stack and what the profiler says of it in its labels.
/// </summary>
internal static class SpanTruth
{
    /// <summary>There Activity.Current itself is not what the program means.</summary>
    private static readonly string[] NoBetterThanCurrent = [nameof(ContextScenarios.AsyncIteratorsThatHoldTheirSpan), nameof(ContextScenarios.StoppedByAnotherFlow)];

    /// <summary>CPU time between two samples of a thread: as often as the kernel looks.</summary>
    private const int PeriodMilliseconds = 4;

    private const int MostRounds = 8;

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        var results = typeof(ContextScenarios).GetMethods(BindingFlags.Instance | BindingFlags.NonPublic | BindingFlags.DeclaredOnly)
            .Where(method => method.ReturnType == typeof(Task) && method.GetParameters().Length == 0 && !method.Name.Contains('<'))
            .Select(method => Run(method, options)).ToArray();
        yield return Cell("span of a sample, every context", options, results.Where(result => !NoBetterThanCurrent.Contains(result.Scenario)).ToArray(), result => result.Right);
        yield return Cell("where Activity.Current is wrong: as right as it", options, results.Where(result => NoBetterThanCurrent.Contains(result.Scenario)).ToArray(), result => result.RightOrCurrent);
    }

    private static Cell Cell(string what, Options options, Result[] results, Func<Result, int> right)
    {
        var share = Math.Floor(1e4 * results.Sum(right) / results.Sum(result => result.Known)) / 100;
        var least = results.Min(result => result.Known);
        return new(
            what, "100 %", FormattableString.Invariant($"{share:0.##} % of {results.Length} x {least}+"),
            results.All(result => right(result) == result.Known) && least >= options.Samples);
    }

    private static Result Run(MethodInfo scenario, Options options)
    {
        var result = new Result(scenario.Name, 0, 0, 0, 0);
        // What short threads burn last comes to no sample, so it may take more than one round.
        for (var round = 0; round < MostRounds && result.Known < options.Samples; round++)
        {
            result = Round(scenario, options, result);
        }

        Row.Say($"{result.Scenario}: {result.Right} of {result.Known} samples right, {result.RightOrCurrent} as Activity.Current or right, {result.Unreadable} with a frame of the truth missing");
        return result;
    }

    private static Result Round(MethodInfo scenario, Options options, Result result)
    {
        using var recording = new Recording(settings => (settings.SampleRate, settings.UploadInterval) = (1000 / PeriodMilliseconds, TimeSpan.FromSeconds(1)), new ByName());
        var at = new BurningCheckpoints(options.Of(2_000, 500));
        var enough = (options.Samples - result.Known) * 1.05 * PeriodMilliseconds;
        do
        {
            Task.Run(() => (Task)scenario.Invoke(new ContextScenarios(at), null)!).Wait();
        }
        while (at.BurntMilliseconds < enough);
        foreach (var sample in recording.Samples("process_cpu").Where(sample => sample.Frames.Any(frame => frame.EndsWith(".Digits.Burn", StringComparison.Ordinal))))
        {
            // Samples with equal stacks are one with the sum of their times.
            var count = (int)Math.Round(sample.Values[0] / (PeriodMilliseconds * 1e6));
            result = result.With(Digits.Read(sample.Frames), sample.Label("span_id"), count);
        }

        return result;
    }

    private sealed record Result(string Scenario, int Known, int Right, int RightOrCurrent, int Unreadable)
    {
        internal Result With((ushort Truth, ushort Current)? spelt, string? label, int count)
        {
            if (spelt is not { } known)
            {
                return this with { Unreadable = Unreadable + count };
            }

            var found = label is null ? 0 : ushort.Parse(label[^4..], NumberStyles.HexNumber, CultureInfo.InvariantCulture);
            var isRight = found == known.Truth;
            return this with
            {
                Known = Known + count,
                Right = Right + (isRight ? count : 0),
                RightOrCurrent = RightOrCurrent + (isRight || found == known.Current ? count : 0),
            };
        }
    }

    private sealed class ByName : Sampler
    {
        public override SamplingResult ShouldSample(in SamplingParameters span) =>
            new(span.Name == "unsampled" ? SamplingDecision.Drop : SamplingDecision.RecordAndSample);
    }

    private sealed class BurningCheckpoints(int microseconds) : Checkpoints(SpanScope.All)
    {
        private long burnt;

        internal double BurntMilliseconds => burnt / 1e3;

        internal override void At(TrueSpan expected, [CallerLineNumber] int line = 0)
        {
            var current = Activity.Current is { } activity ? HexId.Of(activity.SpanId) : 0;
            Digits.Spell((uint)((expected.SpanId & 0xffff) << 16 | (current & 0xffff)), microseconds / 1e6);
            Interlocked.Add(ref burnt, microseconds);
        }
    }
}

/// <summary>Calls that spell a number in hexadecimal digits, most significant first, and burn CPU time in the end.</summary>
internal static class Digits
{
    private const int Count = 8;

    internal static void Spell(uint number, double seconds) => Next(number, Count, seconds);

    /// <summary>What the frames of a sample spell, leaf first as they are; null where one is missing.</summary>
    internal static (ushort Truth, ushort Current)? Read(IReadOnlyList<string> frames)
    {
        var spelt = frames.Where(frame => frame.Contains(".Digits.D", StringComparison.Ordinal)).Reverse().Select(frame => frame[^1]).ToArray();
        return spelt.Length == Count
            ? (ushort.Parse(spelt.AsSpan(0, 4), NumberStyles.HexNumber, CultureInfo.InvariantCulture), ushort.Parse(spelt.AsSpan(4), NumberStyles.HexNumber, CultureInfo.InvariantCulture))
            : null;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Burn(double seconds)
    {
        var sum = 0;
        for (var until = ThreadTime.Seconds + seconds; ThreadTime.Seconds < until;)
        {
            for (var number = 0; number < 20_000; number++)
            {
                sum = (sum * 31) ^ number;
            }
        }

        return sum | 1;
    }

    // Each adds to what it is given: a call in the last place of a method would leave no frame behind.
    private static int Next(uint number, int left, double seconds) => left == 0 ? Burn(seconds) : (number >> 28) switch
    {
        0x0 => D0(number << 4, left - 1, seconds),
        0x1 => D1(number << 4, left - 1, seconds),
        0x2 => D2(number << 4, left - 1, seconds),
        0x3 => D3(number << 4, left - 1, seconds),
        0x4 => D4(number << 4, left - 1, seconds),
        0x5 => D5(number << 4, left - 1, seconds),
        0x6 => D6(number << 4, left - 1, seconds),
        0x7 => D7(number << 4, left - 1, seconds),
        0x8 => D8(number << 4, left - 1, seconds),
        0x9 => D9(number << 4, left - 1, seconds),
        0xa => DA(number << 4, left - 1, seconds),
        0xb => DB(number << 4, left - 1, seconds),
        0xc => DC(number << 4, left - 1, seconds),
        0xd => DD(number << 4, left - 1, seconds),
        0xe => DE(number << 4, left - 1, seconds),
        _ => DF(number << 4, left - 1, seconds),
    };

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D0(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D1(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D2(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D3(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D4(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D5(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D6(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D7(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D8(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int D9(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int DA(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int DB(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int DC(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int DD(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int DE(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int DF(uint rest, int left, double seconds) => Next(rest, left, seconds) + 1;
}
