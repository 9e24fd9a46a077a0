using System.Diagnostics.Tracing;

namespace Pyroscope;

/// <summary>The EventSource <c>Pyroscope</c>: the same sentences as the logger gets.</summary>
[EventSource(Name = "Pyroscope")]
internal sealed class ProfilerEventSource : EventSource
{
    internal static readonly ProfilerEventSource Log = new();

    [Event(1, Level = EventLevel.Informational, Message = "{0}")]
    public void Informed(string text) => WriteEvent(1, text);

    [Event(2, Level = EventLevel.Warning, Message = "{0}")]
    public void Warned(string text) => WriteEvent(2, text);
}
