using System.Text.Json.Nodes;
using Microsoft.Extensions.Logging;

namespace Pyroscope.Clients;

/// <summary>Keeps what the profiler tells its logger, and says it with the statistics.</summary>
internal sealed class Report : ILogger
{
    private readonly List<string> messages = [];

    internal string[] Messages
    {
        get
        {
            lock (messages)
            {
                return [.. messages];
            }
        }
    }

    public IDisposable? BeginScope<TState>(TState state)
        where TState : notnull => null;

    public bool IsEnabled(LogLevel level) => true;

    public void Log<TState>(LogLevel level, EventId id, TState state, Exception? error, Func<TState, Exception?, string> text)
    {
        lock (messages)
        {
            messages.Add(text(state, error));
        }
    }

    /// <summary>Prints one line: statistics as the other languages write them, messages, and more.</summary>
    internal void Print(params (string Name, double Value)[] more)
    {
        var (now, stats) = (Profiler.Instance.Stats, new JsonObject());
        foreach (var (name, value) in now.Numbers)
        {
            if (name.EndsWith("_samples", StringComparison.Ordinal))
            {
                var tally = name[..^"_samples".Length];
                stats[tally] = new JsonObject { ["samples"] = value, ["weight"] = now.Numbers[$"{tally}_weight"] };
            }
            else if (!name.EndsWith("_weight", StringComparison.Ordinal))
            {
                stats[name] = value;
            }
        }

        stats["last_error"] = now.LastError;
        var line = new JsonObject { ["stats"] = stats, ["messages"] = new JsonArray([.. Messages.Select(message => JsonValue.Create(message))]) };
        foreach (var (name, value) in more)
        {
            line[name] = value;
        }

        Console.WriteLine(line.ToJsonString());
    }
}
