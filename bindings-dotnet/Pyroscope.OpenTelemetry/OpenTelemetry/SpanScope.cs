namespace Pyroscope.OpenTelemetry;

/// <summary>Which span samples carry.</summary>
public enum SpanScope
{
    /// <summary>
    /// The local root, a span without a parent in this process, with all that happens in it. It alone gets the tag
    /// <c>pyroscope.profile.id</c>.
    /// </summary>
    Root,

    /// <summary>The innermost span. Every span gets the tag.</summary>
    All,
}
