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
    private static readonly HashSet<string> Reported = new(StringComparer.Ordinal);
    private static readonly Queue<Message> Unsaid = new();
    private static readonly Queue<Message> Waiting = new();
    private static ILogger? logger;

    /// <summary>Sets the logger, which gets what was said before, too, with the next delivery.</summary>
    internal static void PassTo(ILogger to)
    {
        lock (Gate)
        {
            logger = to;
        }
    }

    /// <summary>The same of a logger that gives way to one that was set before.</summary>
    internal static void PassToIfNone(ILogger to)
    {
        lock (Gate)
        {
            logger ??= to;
        }
    }

    /// <summary>Keeps a warning for the next delivery, the first time that it is given. True: it is new.</summary>
    internal static bool Note(string text)
    {
        lock (Gate)
        {
            if (Reported.Count >= Kept || !Reported.Add(text))
            {
                return false;
            }

            Unsaid.Enqueue(new Message(LogLevel.Warning, text));
            return true;
        }
    }

    /// <summary>A warning, the first time that it is given. As <see cref="Deliver"/> not for who holds a lock of ours.</summary>
    internal static void Warn(string text)
    {
        if (Note(text))
        {
            Deliver();
        }
    }

    /// <summary>
    /// Passes on what is noted and what the native library has to say. It runs code of the program, which may never come
    /// back: nobody calls it who holds a lock.
    /// </summary>
    internal static void Deliver()
    {
        Collect();
        while (NextUnsaid() is { } message)
        {
            if (message.Level >= LogLevel.Warning)
            {
                ProfilerEventSource.Log.Warned(message.Text);
            }
            else
            {
                ProfilerEventSource.Log.Informed(message.Text);
            }

            lock (Gate)
            {
                Waiting.Enqueue(message);
                if (Waiting.Count > Kept)
                {
                    Waiting.Dequeue();
                }
            }
        }

        while (NextForLogger() is var (to, message))
        {
            Log(to, message);
        }
    }

    /// <summary>The same where the process ends, and for so long at most: code of the program does not keep it alive.</summary>
    internal static void DeliverWithin(TimeSpan time)
    {
        Collect();
        lock (Gate)
        {
            if (Unsaid.Count == 0 && (logger is null || Waiting.Count == 0))
            {
                return;
            }
        }

        try
        {
            var thread = new Thread(Deliver) { IsBackground = true, Name = "pyroscope-messages" };
            thread.UnsafeStart();
            thread.Join(time);
        }
        catch (Exception)
        {
            // No thread can be started, so what would be said stays unsaid: the process ends as it would without us.
        }
    }

    private static void Collect()
    {
        if (!NativeLibraryCheck.IsUsable)
        {
            return;
        }

        var messages = Engine.TakeMessages();
        lock (Gate)
        {
            messages.ForEach(Unsaid.Enqueue);
        }
    }

    private static Message? NextUnsaid()
    {
        lock (Gate)
        {
            return Unsaid.TryDequeue(out var message) ? message : null;
        }
    }

    private static (ILogger To, Message Message)? NextForLogger()
    {
        lock (Gate)
        {
            return logger is { } to && Waiting.TryDequeue(out var message) ? (to, message) : null;
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
