using System.Diagnostics;
using System.Runtime.InteropServices;
using OpenTelemetry;
using OpenTelemetry.Trace;
using Pyroscope.OpenTelemetry;
using Pyroscope.Tests;

namespace Pyroscope.Clients;

/// <summary>A program that does to its own process what its argument names; see ../hazards.json.</summary>
internal static partial class Hazards
{
    private const int Usr1 = 10;
    private const int Term = 15;
    private const int Kill = 9;
    private const int FileSize = 1;
    private const int OpenFiles = 7;
    private const int PendingSignals = 11;

    private static readonly ActivitySource Source = new("hazards");
    private static readonly Report Said = new();
    private static readonly List<Thread> Threads = [];
    private static volatile bool ends;

    internal static void Run(string hazard)
    {
        using var provider = Sdk.CreateTracerProviderBuilder().AddSource(Source.Name).AddProcessor(new PyroscopeSpanProcessor()).Build();
        var restoreSignals = hazard == "no_pending_signals_are_left" ? Lower(PendingSignals, 0) : null;
        Start();
        for (var number = 0; number < 2; number++)
        {
            using var began = new ManualResetEventSlim();
            Threads.Add(new Thread(() => Load(began)) { IsBackground = true });
            Threads[^1].Start();
            began.Wait();
        }

        switch (hazard)
        {
            case "leave_at_once":
                Burn(0.03);
                LeaveAtOnce(5);
                break;
            case "exit_from_a_signal_handler":
                using (PosixSignalRegistration.Create((PosixSignal)Usr1, _ => Environment.Exit(6)))
                {
                    Burn(0.03);
                    Send(Environment.ProcessId, Usr1);
                    Thread.Sleep(Timeout.Infinite);
                }

                break;
            case "abort":
                Burn(0.03);
                Abort();
                break;
            case "fail_fast":
                Burn(0.03);
                Environment.FailFast("expected");
                break;
            case "exit":
                Burn(0.03);
                Environment.Exit(4);
                break;
            case "killed_by_a_signal":
            case "killed_at_once":
                Burn(0.03);
                Send(Environment.ProcessId, hazard == "killed_at_once" ? Kill : Term);
                Thread.Sleep(Timeout.Infinite);
                break;
            case "spawn_and_system":
                SpawnAndSystem();
                break;
            case "start_and_stop_again_and_again":
                StartAndStopAgainAndAgain();
                break;
            case "no_files_are_left":
                var restoreFiles = Lower(OpenFiles, (ulong)Files() - 1);
                BurnUntilTold("/proc/self/task");
                restoreFiles();
                Burn(0.03);
                StopAndReport();
                break;
            case "no_pending_signals_are_left":
                BurnUntilTold("ulimit -i");
                restoreSignals!();
                Burn(0.03);
                StopAndReport();
                break;
            case "a_file_may_not_grow":
                var restoreSize = Lower(FileSize, 64);
                Burn(0.03);
                Profiler.Instance.Flush(TimeSpan.FromSeconds(5));
                restoreSize();
                Burn(0.03);
                StopAndReport();
                break;
            default:
                throw new ArgumentException($"hazard: {hazard} is not allowed; allowed: a name of hazards.json");
        }
    }

    private static void Start() => Require(Profiler.Instance.Configure(new ProfilerConfiguration { Logger = Said }), Profiler.Instance.Status.Reason);

    private static void Require(bool isSo, string? otherwise)
    {
        if (!isSo)
        {
            throw new InvalidOperationException(otherwise);
        }
    }

    /// <summary>CPU time of this thread, in a span.</summary>
    private static void Burn(double seconds)
    {
        using (Source.StartActivity("burn"))
        {
            ThreadTime.Burn((int)(seconds * 1_000));
        }
    }

    private static void Load(ManualResetEventSlim began)
    {
        Burn(0.001);
        began.Set();
        while (!ends)
        {
            Burn(0.001);
        }
    }

    private static void StopAndReport()
    {
        ends = true;
        Profiler.Instance.Dispose();
        Said.Print();
    }

    private static void BurnUntilTold(string words)
    {
        var since = Stopwatch.StartNew();
        while (!Said.Messages.Any(message => message.Contains(words, StringComparison.Ordinal)) && since.Elapsed < TimeSpan.FromSeconds(20))
        {
            Burn(0.02);
        }
    }

    private static void SpawnAndSystem()
    {
        for (var time = 0; time < 10; time++)
        {
            foreach (var (program, arguments, code) in new[] { ("true", Array.Empty<string>(), 0), ("sh", ["-c", "exit 3"], 3) })
            {
                using var process = Process.Start(program, arguments);
                process.WaitForExit();
                Require(process.ExitCode == code, $"{program}: {process.ExitCode}");
            }
        }

        StopAndReport();
    }

    private static void StartAndStopAgainAndAgain()
    {
        ends = true;
        Threads.ForEach(thread => thread.Join());
        var before = (Files: 0, Ours: 0, Timers: 0);
        for (var number = 0; number < 50; number++)
        {
            Profiler.Instance.Dispose();
            if (number == 10)
            {
                before = Left();
            }

            Start();
        }

        Profiler.Instance.Dispose();
        var after = Left();
        // A thread that has just been joined may be listed for an instant.
        for (var times = 0; times < 1_000 && after.Ours > before.Ours; times++)
        {
            Thread.Yield();
            after = Left();
        }

        Require(after.Files <= before.Files && after.Ours <= before.Ours && after.Timers <= before.Timers, $"{before} {after}");
        StopAndReport();
    }

    /// <summary>Files, threads of the profiler and timers. The runtime's own threads come and go as it likes.</summary>
    private static (int Files, int Ours, int Timers) Left()
    {
        var ours = Directory.GetDirectories("/proc/self/task").Count(task => NameOf(task).StartsWith("spanprof", StringComparison.Ordinal));
        return (Files(), ours, File.ReadAllText("/proc/self/timers").Split("ID:").Length - 1);
    }

    /// <summary>A thread's name, nothing if it has ended meanwhile.</summary>
    private static string NameOf(string task)
    {
        try
        {
            return File.ReadAllText($"{task}/comm");
        }
        catch (IOException)
        {
            return "";
        }
    }

    private static int Files() => Directory.GetFiles("/proc/self/fd").Length;

    /// <summary>Sets a limit of this process; returns what restores it.</summary>
    private static Action Lower(int resource, ulong soft)
    {
        Require(GetLimit(resource, out var before) == 0, "getrlimit failed");
        var lower = before with { Soft = soft };
        Require(SetLimit(resource, in lower) == 0, "setrlimit failed");
        return () => Require(SetLimit(resource, in before) == 0, "setrlimit failed");
    }

    private record struct Limit(ulong Soft, ulong Hard);

    [LibraryImport("libc", EntryPoint = "_exit")]
    private static partial void LeaveAtOnce(int code);

    [LibraryImport("libc", EntryPoint = "abort")]
    private static partial void Abort();

    [LibraryImport("libc", EntryPoint = "kill")]
    private static partial int Send(int process, int signal);

    [LibraryImport("libc", EntryPoint = "getrlimit")]
    private static partial int GetLimit(int resource, out Limit limit);

    [LibraryImport("libc", EntryPoint = "setrlimit")]
    private static partial int SetLimit(int resource, in Limit limit);
}
