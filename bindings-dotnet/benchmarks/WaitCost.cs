using System.Diagnostics;
using System.Net.Sockets;

namespace Pyroscope.Benchmarks;

/// <summary>
/// What calls that could wait, and awaits, cost more where wall time is measured: in a span, in a process that is profiled either way,
/// in turns, the least of many short rounds each.
/// </summary>
internal static class WaitCost
{
    private static readonly byte[] Buffer = new byte[64];

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        using var sockets = new SocketPair();
        var (client, server) = (sockets.One, sockets.Other);
        using var file = File.OpenHandle("/proc/self/exe");
        using var nowhere = File.OpenHandle("/dev/null", access: FileAccess.Write);
        var gate = new object();
        Load[] loads =
        [
            // Of these many take the 2 µs that make a wait.
            new("send and receive of a byte, each", null, 2_000, 2, Repeat(() => client.Send(Buffer, 1, SocketFlags.None), () => server.Receive(Buffer, 1, SocketFlags.None))),
            new("write of 64 bytes to /dev/null", 75, 5_000, 1, Repeat(() => RandomAccess.Write(nowhere, Buffer, 0))),
            new("read of 64 bytes of a file", 75, 5_000, 1, Repeat(() => RandomAccess.Read(file, Buffer, 0))),
            new("lock that is free", 8, 100_000, 1, Repeat(() =>
            {
                lock (gate)
                {
                }
            })),
            new("await that leaves the thread", 100, 10_000, 1, times => Task.Run(() => Yields(times)).Wait()),
        ];
        var least = loads.Select(_ => new double[] { double.MaxValue, double.MaxValue, double.MaxValue }).ToArray();
        for (var round = 0; round < options.Of(40, 3); round++)
        {
            for (var arm = 0; arm < 3; arm++)
            {
                // The third is as the first: the control.
                using var recording = new Recording(settings => settings.WallTimeProfilingEnabled = arm == 1);
                using var span = Recording.Source.StartActivity("cost");
                for (var load = 0; load < loads.Length; load++)
                {
                    for (var again = 0; again < 5; again++)
                    {
                        least[load][arm] = Math.Min(least[load][arm], loads[load].Nanoseconds());
                    }
                }
            }
        }

        for (var load = 0; load < loads.Length; load++)
        {
            var (off, on) = (Math.Min(least[load][0], least[load][2]), least[load][1]);
            Row.Say($"{loads[load].What}: {least[load][0]:0.0} ns, measured {on:0.0}, control {least[load][2]:0.0}");
            var bound = loads[load].Most is { } most ? FormattableString.Invariant($"<= +{most} ns") : "";
            yield return new($"{loads[load].What}, wall time", bound, FormattableString.Invariant($"{off:0} ns {on - off:+0.0;-0.0} ns"), loads[load].Most is { } allowed ? on - off <= allowed : null);
        }
    }

    private static Action<int> Repeat(params Action[] actions) => times =>
    {
        for (var time = 0; time < times; time++)
        {
            foreach (var action in actions)
            {
                action();
            }
        }
    };

    private static async Task Yields(int times)
    {
        for (var time = 0; time < times; time++)
        {
            await Task.Yield();
        }
    }

    /// <summary>What is repeated so many times, and how many calls each of them has.</summary>
    private sealed record Load(string What, double? Most, int Times, int Calls, Action<int> Run)
    {
        internal double Nanoseconds()
        {
            var began = Stopwatch.GetTimestamp();
            Run(Times);
            return Stopwatch.GetElapsedTime(began).TotalNanoseconds / Times / Calls;
        }
    }
}
