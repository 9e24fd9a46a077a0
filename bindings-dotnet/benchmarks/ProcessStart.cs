using System.Diagnostics;
using System.Globalization;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.OpenTelemetry;
using Pyroscope.Tests;

namespace Pyroscope.Benchmarks;

/// <summary>
/// Time from the start of a process to the end of its first span, which starts the profiler, over the same without one. In
/// turns: without, with, without; the two without are the control.
/// </summary>
internal static class ProcessStart
{
    private const string Ready = "ready ";
    private const string Name = "start";

    internal static IEnumerable<Cell> Measure(Options options, string folder)
    {
        // The first ones read files that no cache has yet.
        Start("off");
        Start("on");
        var rounds = Enumerable.Range(0, options.Of(32, 2)).Select(_ => (Off: Start("off"), On: Start("on"), Control: Start("off"))).ToArray();
        double Median(Func<Took, double> of, bool control) => rounds
            .Select(round => control ? of(round.Control) - of(round.Off) : of(round.On) - ((of(round.Off) + of(round.Control)) / 2))
            .Order().ElementAt(rounds.Length / 2);
        var wall = Median(took => took.Wall, false);
        var cpu = Median(took => took.Cpu, false);
        Row.Say($"without: {rounds.Average(round => round.Off.Wall):0.0} ms, CPU time {rounds.Average(round => round.Off.Cpu):0.0} ms");
        yield return new("start of a process to its first span (control)", "", Text(Median(took => took.Wall, true)), null);
        yield return new("the same with the profiler", "<= +30 ms", Text(wall), wall <= 30);
        yield return new("the same in CPU time of all threads", "", Text(cpu), null);
    }

    /// <summary>The process that starts.</summary>
    internal static void Child(bool profiler)
    {
        var builder = Sdk.CreateTracerProviderBuilder().AddSource(Recording.Source.Name);
        if (profiler)
        {
            builder.AddPyroscope(settings => (settings.ApplicationName, settings.ServerAddress) = (Name, "none"));
        }

        using var provider = builder.Build();
        using (Recording.Source.StartActivity("first"))
        {
        }

        Console.WriteLine(profiler && !Profiler.Instance.IsRunning
            ? Profiler.Instance.Status.Reason
            : Ready + ThreadTime.OfAllThreads.ToString("R", CultureInfo.InvariantCulture));
    }

    private static string Text(double milliseconds) => FormattableString.Invariant($"{milliseconds:+0.0;-0.0} ms");

    private static Took Start(string profiler)
    {
        var since = Stopwatch.GetTimestamp();
        using var process = Process.Start(new ProcessStartInfo(Environment.ProcessPath!)
        {
            ArgumentList = { typeof(ProcessStart).Assembly.Location, "started", profiler },
            // As the profiles are named, or a warning is part of the start.
            Environment = { ["OTEL_SERVICE_NAME"] = Name },
            RedirectStandardOutput = true,
        })!;
        var line = process.StandardOutput.ReadLine();
        var wall = Stopwatch.GetElapsedTime(since).TotalMilliseconds;
        process.WaitForExit();
        return line?.StartsWith(Ready, StringComparison.Ordinal) == true
            ? new Took(wall, double.Parse(line[Ready.Length..], CultureInfo.InvariantCulture) * 1000)
            : throw new InvalidOperationException(line);
    }

    /// <summary>Milliseconds.</summary>
    private sealed record Took(double Wall, double Cpu);
}
