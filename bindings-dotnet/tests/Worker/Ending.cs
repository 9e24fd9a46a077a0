using System.Text.Json.Nodes;
using Microsoft.Extensions.Logging;
using Pyroscope;
using Pyroscope.Tests;

/// Programs that end in their own way, and print a line as the other one does.
internal static class Ending
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

    private static void Say() => Console.WriteLine(new JsonObject { ["running"] = Profiler.Instance.Status.IsRunning, ["reason"] = Profiler.Instance.Status.Reason ?? "" }.ToJsonString());

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
