using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>
/// Stacks of awaits: async methods that await each other in an order of chance, each of which then awaits something itself, in a span whose
/// name is the whole chain down to the handler. Each await is a sample.
/// </summary>
internal static class AwaitChains
{
    /// <summary>Each has names of spans of its own, of which a profile has room for 2,048.</summary>
    private const int Chains = 200;

    private const int MostMethods = 12;

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        using var recording = new Recording(settings => (settings.WallTimeProfilingEnabled, settings.EveryWait) = (true, true));
        var random = new Random(1);
        var made = Enumerable.Range(0, Chains).Select(_ => Enumerable.Range(0, random.Next(MostMethods + 1)).Select(_ => random.Next(8)).ToArray()).ToArray();
        for (var round = 0; round < options.Of(8, 1); round++)
        {
            Run(made.Select(methods => new Chain(methods)).ToArray());
        }

        var seen = recording.Samples("wall").Where(sample => sample.Label("state") == "await").GroupBy(sample => (Made: sample.Label("span_name")!, Seen: Said(sample)))
            .ToDictionary(group => group.Key, group => group.Sum(sample => sample.Values[0]));
        var wrong = seen.Where(chain => chain.Key.Made != chain.Key.Seen).ToArray();
        foreach (var (chain, times) in wrong.OrderByDescending(chain => chain.Value).Take(10))
        {
            Row.Say($"{times} times {chain.Seen}, in {chain.Made}");
        }

        var (all, wrongs) = (seen.Values.Sum(), wrong.Sum(chain => chain.Value));
        yield return new(
            "chains of awaits, leaf to handler, right", "100 % of >= 5,000", FormattableString.Invariant($"{Math.Floor(1e4 * (all - wrongs) / all) / 100:0.##} % of {all}, {wrongs} wrong"),
            wrongs == 0 && all >= options.Of(5_000, 50));
    }

    /// <summary>A sample's frames without what the methods are in.</summary>
    private static string Said(PprofSample sample) =>
        string.Join(" < ", sample.Frames.Select(frame => frame.Replace($"{typeof(AwaitChains).FullName}.", "", StringComparison.Ordinal)));

    /// <summary>What the innermost method awaits comes when all are suspended: before that a method that goes on is awaited by none.</summary>
    private static void Run(Chain[] chains)
    {
        var flows = chains.Select(Handler).ToArray();
        Thread.Sleep(5);
        Array.ForEach(chains, chain => chain.Suspended.SetResult());
        Task.WaitAll(flows);
    }

    private static async Task Handler(Chain chain)
    {
        using var root = Recording.Source.StartActivity(nameof(Handler));
        var here = chain.Begin(nameof(Handler));
        await Next(chain);
        using var span = Recording.Source.StartActivity(here);
        await chain.Something();
    }

    private static Task Next(Chain chain) => chain.Next() switch
    {
        0 => Plain(chain),
        1 => Returns(chain),
        2 => Value(chain).AsTask(),
        3 => ReturnsValue(chain).AsTask(),
        4 => Generic("x", chain),
        5 => Generic(1, chain),
        6 => Detached(chain),
        7 => Guards(chain),
        _ => Task.CompletedTask,
    };

    private static async Task Plain(Chain chain)
    {
        var here = chain.Begin(nameof(Plain));
        await Next(chain);
        using var span = Recording.Source.StartActivity(here);
        await chain.Something();
    }

    private static async Task<int> Returns(Chain chain)
    {
        var here = chain.Begin(nameof(Returns));
        await Next(chain);
        using var span = Recording.Source.StartActivity(here);
        await chain.Something();
        return await Later.IsRead(2);
    }

    private static async ValueTask Value(Chain chain)
    {
        var here = chain.Begin(nameof(Value));
        await Next(chain);
        using var span = Recording.Source.StartActivity(here);
        await chain.Something();
    }

    private static async ValueTask<string> ReturnsValue(Chain chain)
    {
        var here = chain.Begin(nameof(ReturnsValue));
        await Next(chain);
        using var span = Recording.Source.StartActivity(here);
        await chain.Something();
        return here;
    }

    private static async Task<T> Generic<T>(T value, Chain chain)
    {
        var here = chain.Begin(nameof(Generic));
        await Next(chain);
        using var span = Recording.Source.StartActivity(here);
        await chain.Something();
        return value;
    }

    private static async Task Detached(Chain chain)
    {
        var here = chain.Begin(nameof(Detached));
        await Next(chain).ConfigureAwait(false);
        using var span = Recording.Source.StartActivity(here);
        await chain.Something().ConfigureAwait(false);
    }

    private static async Task Guards(Chain chain)
    {
        var here = chain.Begin(nameof(Guards));
        try
        {
            await Next(chain);
            throw new FormatException("expected");
        }
        catch (FormatException)
        {
            using var span = Recording.Source.StartActivity(here);
            await chain.Something();
        }
    }

    /// <summary>Which method awaits which, by their numbers.</summary>
    private sealed class Chain(int[] methods)
    {
        private string begun = "";
        private int depth;
        private int waits;

        internal TaskCompletionSource Suspended { get; } = new(TaskCreationOptions.RunContinuationsAsynchronously);

        internal int Next() => depth < methods.Length ? methods[depth++] : -1;

        /// <summary>A method begins. The chain from it down to the handler, as a sample has it.</summary>
        internal string Begin(string method)
        {
            begun = begun.Length == 0 ? method : $"{method} < {begun}";
            return $"(await) < {begun}";
        }

        internal Task Something() => waits++ switch
        {
            0 => Suspended.Task,
            var wait => Later.Comes(wait % Later.Ways, 1 + (wait % 4)),
        };
    }
}
