using System.Diagnostics.Tracing;
using System.Runtime.InteropServices;
using System.Runtime.Loader;
using System.Text.Json.Nodes;
using Microsoft.Extensions.Logging;
using Pyroscope;
using Pyroscope.Tests;

/// Programs that end in their own way, and print a line as the other one does.
internal static partial class Ending
{
    private static readonly ProfilerConfiguration Settings = new() { ApplicationName = "worker" };

    internal static void Run(string how)
    {
        switch (how)
        {
            case "while its logger never comes back":
                WhileItsLoggerNeverComesBack();
                break;
            case "and configures":
                AndConfigures();
                break;
            case "and switches events on":
                AndSwitchesEventsOn();
                break;
            case "by an exception under the lock of listeners":
                ByAnExceptionUnderTheLockOfListeners();
                break;
            case "by an exception":
                LeaveNoCore();
                Burn();
                throw new InvalidOperationException("expected");
            default:
                throw new ArgumentException(how);
        }
    }

    private static void WhileItsLoggerNeverComesBack()
    {
        using var logger = new Blocking();
        Settings.Logger = logger;
        new Thread(() => Profiler.Instance.Configure(Settings)) { IsBackground = true }.Start();
        logger.WaitUntilCalled();
        Say();
        ThreadTime.Burn(100);
    }

    private static void AndConfigures()
    {
        Profiler.Instance.Configure(Settings);
        AppDomain.CurrentDomain.ProcessExit += (_, _) =>
        {
            Profiler.Instance.Configure(Settings);
            Say();
        };
    }

    private static void AndSwitchesEventsOn()
    {
        Settings.ExceptionProfilingEnabled = true;
        Profiler.Instance.Configure(Settings);
        // After the profiler's own, which is there since it was configured.
        AssemblyLoadContext.Default.Unloading += _ =>
        {
            Profiler.Instance.SetExceptionTrackingEnabled(true);
            Say();
        };
    }

    private static void ByAnExceptionUnderTheLockOfListeners()
    {
        LeaveNoCore();
        Settings.ExceptionProfilingEnabled = true;
        Profiler.Instance.Configure(Settings);
        Say();
        using var listener = new Throwing();
    }

    private static void LeaveNoCore()
    {
        const int Core = 4;
        if (SetLimit(Core, default) != 0)
        {
            throw new InvalidOperationException("setrlimit");
        }
    }

    private static void Burn()
    {
        Profiler.Instance.Configure(Settings);
        ThreadTime.Burn(100);
        Say();
    }

    private static void Say()
    {
        var status = Profiler.Instance.Status;
        var features = new JsonObject { ["cpu"] = status["cpu"].Reason ?? "", ["exceptions"] = status["exceptions"].Reason ?? "" };
        Console.WriteLine(new JsonObject { ["running"] = status.IsRunning, ["reason"] = status.Reason ?? "", ["features"] = features }.ToJsonString());
    }

    [LibraryImport("libc", EntryPoint = "setrlimit")]
    private static partial int SetLimit(int resource, in Limit limit);

    private struct Limit
    {
        public ulong Soft;
        public ulong Hard;
    }

    private sealed class Throwing : EventListener
    {
        // Called by the constructor of what this derives from.
        protected override void OnEventSourceCreated(EventSource eventSource) => throw new InvalidOperationException("expected");
    }

    private sealed class Blocking : ILogger, IDisposable
    {
        private readonly ManualResetEventSlim called = new();

        internal void WaitUntilCalled() => called.Wait();

        public void Dispose() => called.Dispose();

        public IDisposable? BeginScope<TState>(TState state)
            where TState : notnull => null;

        public bool IsEnabled(LogLevel level) => true;

        public void Log<TState>(LogLevel level, EventId id, TState state, Exception? error, Func<TState, Exception?, string> text)
        {
            called.Set();
            Thread.Sleep(Timeout.Infinite);
        }
    }
}
