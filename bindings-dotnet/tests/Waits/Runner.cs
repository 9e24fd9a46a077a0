using System.Collections.Concurrent;
using System.Diagnostics;
using System.Globalization;

namespace Waits;

/// <summary>Runs the program in a process of its own and judges what it leaves.</summary>
static class Runner
{
    static readonly TimeSpan Patience = TimeSpan.FromSeconds(120);

    public static int Run(string seconds, string folder, string seed)
    {
        Directory.CreateDirectory(folder);
        var stats = new ConcurrentDictionary<string, long>();
        var judge = new Judge();
        using var program = Start("play", seconds, folder, seed);
        program.OutputDataReceived += (_, line) =>
        {
            if (line.Data?.Split(' ') is ["stat", var name, var number]) stats[name] = long.Parse(number, CultureInfo.InvariantCulture);
            else if (line.Data is { Length: > 0 } text) Console.WriteLine(text);
        };
        program.BeginOutputReadLine();
        var until = DateTime.UtcNow + TimeSpan.FromSeconds(double.Parse(seconds, CultureInfo.InvariantCulture)) + Patience;
        while (!program.WaitForExit(500))
        {
            judge.LookAt(folder);
            if (DateTime.UtcNow < until) continue;
            Console.WriteLine($"{program.Id} does not end");
            return 1;
        }
        // Of the output, too.
        program.WaitForExit();
        judge.LookAt(folder);
        return Say(judge, stats, program.ExitCode);
    }

    static Process Start(params string[] arguments)
    {
        var dotnet = Environment.ProcessPath is { } path && Path.GetFileName(path) == "dotnet" ? path : "dotnet";
        return Process.Start(new ProcessStartInfo(dotnet, [typeof(Runner).Assembly.Location, .. arguments]) { RedirectStandardOutput = true })!;
    }

    static int Say(Judge judge, ConcurrentDictionary<string, long> stats, int exit)
    {
        long Of(params string[] names) => names.Sum(name => stats.GetValueOrDefault($"{name}_samples"));
        var pending = Of("waits_pending");
        var dropped = Of("waits_dropped_ring", "waits_dropped_busy", "waits_dropped_thread");
        var lost = Of("waits_taken") - Of("waits_sampled") - Of("waits_outside") - dropped - pending;
        // Of what was lost later nobody counts which were waits.
        var later = Of("dropped_window", "refused", "dropped_queue", "dropped_old", "discarded");
        if (later == 0) lost += Math.Abs(Of("waits_sampled") - judge.Waits);
        foreach (var (what, count) in judge.Seen.OrderBy(pair => pair.Key, StringComparer.Ordinal)) Console.WriteLine($"seen {what} {count}");
        foreach (var (name, number) in stats.OrderBy(pair => pair.Key, StringComparer.Ordinal)) Console.WriteLine($"stat {name} {number}");
        Console.WriteLine($"row {judge.Waits,10}{judge.Wrong,8}{dropped,10}{lost,8}");
        foreach (var (what, count) in judge.Mistakes.OrderByDescending(pair => pair.Value).Take(20)) Console.WriteLine($"  {count} × {what}");
        if (pending != 0) Console.WriteLine($"  {pending} waits are pending at the end");
        if (later != 0) Console.WriteLine($"  {later} samples were lost after they were taken");
        if (exit != 0) Console.WriteLine($"  the program ended with {exit}");
        return judge.Waits > 0 && judge.Wrong == 0 && lost == 0 && pending == 0 && later == 0 && exit == 0 ? 0 : 1;
    }
}
