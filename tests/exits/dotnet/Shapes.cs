using System.Diagnostics;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Pyroscope.Exits;

/// <summary>How programs end. A method's name is the shape's.</summary>
internal static class Shapes
{
    internal static void Run(string shape, int seed)
    {
        var method = typeof(Shapes).GetMethod(shape, BindingFlags.NonPublic | BindingFlags.Static)
            ?? throw new ArgumentException($"shape: {shape} is not allowed; allowed: a name of shapes.json");
        Work.Begin(seed);
        // Not by Invoke, which would wrap what is thrown.
        method.CreateDelegate<Action>()();
    }

    private static void TheEnd() => Work.UnderLoad();

    private static void ThreadsPollStats()
    {
        Work.UnderLoad(1);
        Work.ForEver(2, Work.Polls);
        Work.Pause(100);
    }

    private static void ThreadsFlush()
    {
        Work.UnderLoad(1);
        Work.ForEver(2, Work.Flushes);
        Work.Pause(100);
    }

    private static void ThreadsStartAndStop()
    {
        Work.UnderLoad(2);
        Work.ForEver(2, Work.StartsAndStops);
        Work.Pause(200);
    }

    private static void ThreadsToggle()
    {
        Work.UnderLoad(2);
        Work.ForEver(2, Work.Toggles);
        Work.Pause(200);
    }

    private static void ThreadsDoItAll()
    {
        Work.UnderLoad(1);
        Work.ForEver(4, Work.Polls, Work.Flushes, Work.Spans, Work.Toggles, Work.StartsAndStops);
        Work.Pause(200);
    }

    private static void ThreadsWaitForEver()
    {
        Work.UnderLoad(1);
        Work.WaitForEver();
        Work.Pause(20);
    }

    private static void StopsUnderThreadsThatWait()
    {
        Work.UnderLoad(2);
        Work.WaitForEver();
        Work.StartsAndStops();
        Work.Pause(50);
        Work.Stop();
        Work.Pause(50);
    }

    private static void ExitInMain()
    {
        Work.UnderLoad();
        Environment.Exit(3);
    }

    private static void ExitInAThread()
    {
        Work.UnderLoad();
        new Thread(() => Environment.Exit(4)).Start();
        Thread.Sleep(Timeout.Infinite);
    }

    private static void ExitInThreadsAtOnce()
    {
        Work.UnderLoad();
        for (var number = 0; number < 3; number++)
        {
            new Thread(() => Environment.Exit(4)).Start();
        }

        Work.Pause(5);
        Environment.Exit(4);
    }

    private static void ExitInATask()
    {
        Work.UnderLoad();
        _ = Task.Run(() => Environment.Exit(5));
        Thread.Sleep(Timeout.Infinite);
    }

    private static void NativeExitInAThread()
    {
        Work.UnderLoad();
        new Thread(() => Native.Exit(6)).Start();
        Thread.Sleep(Timeout.Infinite);
    }

    private static void LeaveAtOnceInAThread()
    {
        Work.UnderLoad();
        new Thread(() => Native.LeaveAtOnce(5)).Start();
        Thread.Sleep(Timeout.Infinite);
    }

    private static void ExitCode()
    {
        Work.UnderLoad();
        Environment.ExitCode = 9;
    }

    private static void UnhandledInMain()
    {
        Work.UnderLoad();
        throw new InvalidOperationException("expected");
    }

    private static void UnhandledInAThread()
    {
        Work.UnderLoad();
        new Thread(() => throw new InvalidOperationException("expected")).Start();
        Thread.Sleep(Timeout.Infinite);
    }

    private static void FailFast()
    {
        Work.UnderLoad();
        Environment.FailFast("expected");
    }

    private static void FailFastInAThread()
    {
        Work.UnderLoad();
        new Thread(() => Environment.FailFast("expected")).Start();
        Thread.Sleep(Timeout.Infinite);
    }

    private static void NativeAbort()
    {
        Work.UnderLoad();
        Native.Abort();
    }

    private static void EndlessRecursion()
    {
        Work.UnderLoad(1);
        Environment.Exit(Dive(1));
    }

    private static void Terminated() => IsSentASignal();

    private static void Interrupted() => IsSentASignal();

    private static void Killed() => IsSentASignal();

    private static void SignalHandlerExits()
    {
        using var registration = PosixSignalRegistration.Create(PosixSignal.SIGTERM, _ => Environment.Exit(7));
        IsSentASignal();
    }

    private static void SignalIsCancelled()
    {
        using var told = new ManualResetEventSlim();
        using var registration = PosixSignalRegistration.Create(PosixSignal.SIGTERM, context =>
        {
            context.Cancel = true;
            told.Set();
        });
        Work.UnderLoad();
        Console.WriteLine("ready");
        told.Wait();
        Environment.ExitCode = 8;
    }

    private static void StartsLate()
    {
        Work.ForEver(3, Work.All);
        Work.Pause();
        new Thread(() => Work.Start()) { IsBackground = true }.Start();
        Work.Pause(10);
    }

    private static void ExitsDuringStart()
    {
        Work.ForEver(2, Work.All);
        new Thread(() => Work.Start()) { IsBackground = true }.Start();
        Work.Pause(30);
        Environment.Exit(3);
    }

    private static void ProcessExitWorks()
    {
        AppDomain.CurrentDomain.ProcessExit += (_, _) => Works();
        Work.UnderLoad();
        AppDomain.CurrentDomain.ProcessExit += (_, _) => Works();

        static void Works()
        {
            Work.Spans();
            Work.Polls();
            Work.Flushes();
        }
    }

    private static void ProcessExitStartsAgain()
    {
        AppDomain.CurrentDomain.ProcessExit += (_, _) => Work.Start();
        Work.UnderLoad();
        AppDomain.CurrentDomain.ProcessExit += (_, _) => Work.StartsAndStops();
    }

    private static void ProcessExitStops()
    {
        AppDomain.CurrentDomain.ProcessExit += (_, _) => Work.Stop();
        Work.UnderLoad();
        Work.ForEver(1, Work.Spans);
    }

    private static void DisposeAndConfigure()
    {
        Work.UnderLoad(1);
        for (var time = 0; time < 5; time++)
        {
            var stopping = new Thread(Work.Stop);
            stopping.Start();
            Work.Pause(4);
            Work.Start();
            stopping.Join();
        }

        Work.Stop();
        Work.Expect(Work.Start(), $"Configure returned false after all of them: {Profiler.Instance.Status.Reason}");
        Work.ExpectSamples();
    }

    private static void TogglesAtOnce()
    {
        Work.UnderLoad(1);
        var threads = Enumerable.Range(0, 2).Select(_ => new Thread(() =>
        {
            for (var time = 0; time < 20; time++)
            {
                Work.Toggles();
            }
        })).ToList();
        threads.ForEach(thread => thread.Start());
        Work.Pause(20);
        Work.StartsAndStops();
        threads.ForEach(thread => thread.Join());
        Work.Stop();
        Work.Expect(!Profiler.Instance.Status.IsRunning, "a profiler runs that nobody can stop");
        Work.Expect(Work.Start(), $"Configure returned false after all of them: {Profiler.Instance.Status.Reason}");
        Work.ExpectSamples();
    }

    private static void CodeFromBeforeTheStartGoes()
    {
        for (var time = 0; time < 5; time++)
        {
            Work.CollectibleAssembly();
        }

        Work.ForEver(2, Work.CollectibleAssembly);
        Work.Pause(100);
        Work.Expect(Work.Start(), "Configure returned false");
        Work.ForEver(1, Work.CollectibleAssembly);
        Work.Pause(900);
    }

    private static void CodeComesAndGoes()
    {
        Work.UnderLoad(1);
        Work.ForEver(3, Work.CollectibleAssembly, Work.DynamicMethod);
        Work.Pause(300);
    }

    private static void ExceptionsAndCollections()
    {
        Work.UnderLoad(1);
        Work.ForEver(3, Work.Throw, Work.Collect);
        Work.Pause(200);
    }

    private static void ShortThreads()
    {
        Work.UnderLoad(1);
        Work.ForEver(2, () =>
        {
            var thread = new Thread(Work.Spans, 64 * 1024);
            thread.Start();
            thread.Join();
        });
        Work.Pause(200);
    }

    private static void FinalizersWork()
    {
        Work.UnderLoad(1);
        Work.ForEver(2, () => GC.KeepAlive(new Last()), Work.Collect);
        Work.Pause(100);
    }

    private static void Spawns()
    {
        Work.UnderLoad(2);
        for (var number = 0; number < 4; number++)
        {
            using var process = Process.Start("sh", ["-c", $"exit {number}"]);
            process.WaitForExit();
            Work.Expect(process.ExitCode == number, $"sh ended with {process.ExitCode}");
        }
    }

    private static void SpawnsWhileItEnds()
    {
        Work.UnderLoad(1);
        Work.ForEver(2, () =>
        {
            using var process = Process.Start("true");
            process.WaitForExit();
        });
        Work.Pause(100);
    }

    private static void Becomes()
    {
        Work.UnderLoadWithoutNewThreads();
        Native.Become("/bin/sh", ["sh", "-c", "sleep 0.02; exit 7", null]);
    }

    private static void BecomesInAThread()
    {
        Work.UnderLoadWithoutNewThreads();
        new Thread(Becomes).Start();
        Thread.Sleep(Timeout.Infinite);
    }

    private static void IsSentASignal()
    {
        Work.UnderLoad();
        Console.WriteLine("ready");
        Thread.Sleep(Timeout.Infinite);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Dive(int depth) => depth == 0 ? 0 : Dive(depth + 1) + 1;

    private sealed class Last
    {
        ~Last() => Work.Spans();
    }
}
