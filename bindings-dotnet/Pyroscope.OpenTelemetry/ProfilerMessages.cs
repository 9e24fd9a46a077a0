using Microsoft.Extensions.Logging;
using Pyroscope.Interop;

namespace Pyroscope;

/// <summary>
/// What a user should know, passed on to the EventSource <c>Pyroscope</c> and to the logger, if one was given. Never
/// from a callback of a span's or a context's: a logger runs code of the program.
/// </summary>
internal static class ProfilerMessages
{
    /// <summary>Sentences that wait for a logger; the oldest goes first.</summary>
    private const int Kept = 64;

    private static readonly object Gate = new();
    private static readonly HashSet<string> Told = new(StringComparer.Ordinal);
    private static readonly Queue<Message> Waiting = new();
    private static ILogger? logger;

    /// <summary>Sets the logger, which gets what was said before, too.</summary>
    internal static void PassTo(ILogger to)
    {
        lock (Gate)
        {
            logger = to;
        }

        while (true)
        {
            Message? message;
            lock (Gate)
            {
                if (!Waiting.TryDequeue(out message))
                {
                    return;
                }
            }

            Log(to, message);
        }
    }

    /// <summary>A warning, the first time that it is given.</summary>
    internal static void Warn(string text)
    {
        lock (Gate)
        {
            if (Told.Count >= Kept || !Told.Add(text))
            {
                return;
            }
        }

        Pass(new Message(LogLevel.Warning, text));
    }

    /// <summary>Passes on what the native library has to say.</summary>
    internal static void Deliver()
    {
        if (!NativeLibraryCheck.IsUsable)
        {
            return;
        }

        foreach (var message in Engine.TakeMessages())
        {
            Pass(message);
        }
    }

    private static void Pass(Message message)
    {
        if (message.Level >= LogLevel.Warning)
        {
            ProfilerEventSource.Log.Warned(message.Text);
        }
        else
        {
            ProfilerEventSource.Log.Informed(message.Text);
        }

        ILogger? to;
        lock (Gate)
        {
            to = logger;
            if (to is null)
            {
                Waiting.Enqueue(message);
                if (Waiting.Count > Kept)
                {
                    Waiting.Dequeue();
                }
            }
        }

        if (to is not null)
        {
            Log(to, message);
        }
    }

    private static void Log(ILogger to, Message message)
    {
        try
        {
            to.Log(message.Level, default, message.Text, null, static (text, _) => text);
        }
        catch (Exception)
        {
            // A logger that throws is not ours to report: there is nowhere left to say it.
        }
    }
}

/// <summary>A sentence for the program's logger.</summary>
internal sealed record Message(LogLevel Level, string Text);
