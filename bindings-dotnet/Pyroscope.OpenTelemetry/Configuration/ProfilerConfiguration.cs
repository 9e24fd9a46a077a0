using System.Globalization;
using Microsoft.Extensions.Logging;
using Pyroscope.Interop;

namespace Pyroscope;

/// <summary>
/// What <see cref="Profiler.Configure"/> takes. A property that is left null takes its value from the environment
/// (<c>PYROSCOPE_*</c>, <c>OTEL_*</c>), and where that says nothing its default.
/// </summary>
public sealed class ProfilerConfiguration
{
    /// <summary>The native library's names of settings, and the properties that set them.</summary>
    private static readonly Dictionary<string, string> Properties = new(StringComparer.Ordinal)
    {
        ["application_name"] = nameof(ApplicationName),
        ["server_address"] = nameof(ServerAddress),
        ["basic_auth_username"] = nameof(BasicAuthUser),
        ["basic_auth_password"] = nameof(BasicAuthPassword),
        ["tenant_id"] = nameof(TenantId),
        ["sample_rate"] = nameof(SampleRate),
        ["upload_interval"] = nameof(UploadInterval),
        ["upload_interval_ms"] = nameof(UploadInterval),
        ["tags"] = nameof(Tags),
        ["http_headers"] = nameof(HttpHeaders),
    };

    /// <summary>
    /// The name of the service; must equal the <c>service.name</c> of its traces, or a span's profile is not found.
    /// Environment: PYROSCOPE_APPLICATION_NAME, else OTEL_SERVICE_NAME, else service.name in OTEL_RESOURCE_ATTRIBUTES.
    /// </summary>
    public string? ApplicationName { get; set; }

    /// <summary>
    /// <c>http(s)://host[:port][/path]</c>, <c>host:port</c>, <c>file:///folder</c> for pprof files, or <c>none</c>.
    /// Default http://localhost:4040. Environment: PYROSCOPE_SERVER_ADDRESS.
    /// </summary>
    public string? ServerAddress { get; set; }

    /// <summary>False: nothing is started. Default true. Environment: PYROSCOPE_PROFILING_ENABLED.</summary>
    public bool? ProfilingEnabled { get; set; }

    /// <summary>CPU time of all threads. Default true. Environment: PYROSCOPE_PROFILING_CPU_ENABLED.</summary>
    public bool? CpuProfilingEnabled { get; set; }

    /// <summary>
    /// Allocated objects and bytes, by sampling. Default false. Environment: PYROSCOPE_PROFILING_ALLOCATION_ENABLED.
    /// </summary>
    public bool? AllocationProfilingEnabled { get; set; }

    /// <summary>
    /// Time spent waiting for contended locks. Default false. Environment: PYROSCOPE_PROFILING_LOCK_ENABLED or
    /// PYROSCOPE_PROFILING_CONTENTION_ENABLED.
    /// </summary>
    public bool? ContentionProfilingEnabled { get; set; }

    /// <summary>Thrown exceptions. Default false. Environment: PYROSCOPE_PROFILING_EXCEPTION_ENABLED.</summary>
    public bool? ExceptionProfilingEnabled { get; set; }

    /// <summary>
    /// All time of spans by what it went to (CPU, locks, I/O, awaits, …), as one more profile. Default false. Environment:
    /// PYROSCOPE_PROFILING_WALLTIME_ENABLED.
    /// </summary>
    public bool? WallTimeProfilingEnabled { get; set; }

    /// <summary>
    /// False: samples carry no span and spans get no attribute, whatever span processors there are. Default true.
    /// </summary>
    public bool? SpanProfileLinkingEnabled { get; set; }

    /// <summary>User name for HTTP basic authentication, without a colon. Environment: PYROSCOPE_BASIC_AUTH_USER.</summary>
    public string? BasicAuthUser { get; set; }

    /// <summary>Password for it; never shown in a message. Environment: PYROSCOPE_BASIC_AUTH_PASSWORD.</summary>
    public string? BasicAuthPassword { get; set; }

    /// <summary>Sent as X-Scope-OrgID; visible ASCII. Environment: PYROSCOPE_TENANT_ID.</summary>
    public string? TenantId { get; set; }

    /// <summary>
    /// Up to 20 labels of all profiles; names <c>[A-Za-z_][A-Za-z0-9_.]*</c>, values are cut at 2,048 bytes. Added to
    /// those of the environment (PYROSCOPE_LABELS).
    /// </summary>
    public IDictionary<string, string> Tags { get; set; } = new Dictionary<string, string>();

    /// <summary>Further request headers; they replace ours of the same name. Environment: PYROSCOPE_HTTP_HEADERS.</summary>
    public IDictionary<string, string> HttpHeaders { get; set; } = new Dictionary<string, string>();

    /// <summary>Time between two uploads, 1 second to 10 minutes. Default 10 seconds. Environment: PYROSCOPE_UPLOAD_INTERVAL.</summary>
    public TimeSpan? UploadInterval { get; set; }

    /// <summary>
    /// Samples a second of CPU time and thread, 1 to 1000. Default 100. Environment: PYROSCOPE_SAMPLE_RATE, else
    /// PYROSCOPE_PROFILING_INTERVAL.
    /// </summary>
    public int? SampleRate { get; set; }

    /// <summary>
    /// Gets the profiler's warnings, beside the EventSource <c>Pyroscope</c>. By default none;
    /// <see cref="Pyroscope.OpenTelemetry.TracerProviderBuilderExtensions.AddPyroscope"/> takes the program's logger factory.
    /// </summary>
    public ILogger? Logger { get; set; }

    /// <summary>For stress tests: each wait becomes a sample, however many there are.</summary>
    internal bool? EveryWait { get; set; }

    internal ProfilerConfiguration Clone()
    {
        var clone = (ProfilerConfiguration)MemberwiseClone();
        clone.Tags = new Dictionary<string, string>(Given(Tags, nameof(Tags)));
        clone.HttpHeaders = new Dictionary<string, string>(Given(HttpHeaders, nameof(HttpHeaders)));
        return clone;
    }

    /// <summary>The settings that were made, by the native library's names.</summary>
    internal List<Pair> Settings() =>
        [.. Made().Where(made => made.Name.Length > 0).Select(made => new Pair { name = made.Name, text = made.Text })];

    /// <summary>Notes a warning of what was set here, if other settings count which do not have it.</summary>
    internal void NoteBeyond(ProfilerConfiguration? counts)
    {
        var unused = string.Join(", ", Clone().Made().Except(counts?.Made() ?? []).Select(made => made.Property).Distinct());
        if (unused.Length > 0)
        {
            ProfilerMessages.Note($"Settings of AddPyroscope have no effect, as the profiler was configured elsewhere: {unused}. Set them there.");
        }
    }

    /// <summary>An error of the native library's, by the names of these properties.</summary>
    internal static ArgumentException Refusal(string text)
    {
        var (property, said) = Named(text);
        return new ArgumentException(said, property);
    }

    /// <summary>What a native library's error is about, and its text by the names of these properties.</summary>
    internal static (string Property, string Text) Named(string text)
    {
        var (name, rest) = text.Split(": ", 2) is [var head, var tail] ? (head, tail) : ("", text);
        // What is none of them is a variable of the environment, by its own name.
        var property = Properties.GetValueOrDefault(name, name);
        return (property, property.Length > 0 ? $"{property}: {rest}" : rest);
    }

    /// <summary>A message of the native library's, whose last sentence may name settings to check.</summary>
    internal static string ByProperties(string text)
    {
        const string Check = ". Check ";
        var at = text.LastIndexOf(Check, StringComparison.Ordinal);
        if (at < 0)
        {
            return text;
        }

        var settings = string.Join(' ', text[(at + Check.Length)..].Split(' ').Select(ByProperty));
        return text[..(at + Check.Length)] + settings;
    }

    /// <summary>The settings that were made: the property, the native library's name for it, if it has one, and the value.</summary>
    private List<(string Property, string Name, string Text)> Made()
    {
        var made = new List<(string Property, string Name, string Text)>();
        void Add(string property, string name, string? text)
        {
            if (text is not null)
            {
                made.Add((property, name, text));
            }
        }

        Add(nameof(ApplicationName), "application_name", ApplicationName);
        Add(nameof(ServerAddress), "server_address", ServerAddress);
        Add(nameof(BasicAuthUser), "basic_auth_username", BasicAuthUser);
        Add(nameof(BasicAuthPassword), "basic_auth_password", BasicAuthPassword);
        Add(nameof(TenantId), "tenant_id", TenantId);
        Add(nameof(ProfilingEnabled), "enabled", Text(ProfilingEnabled));
        Add(nameof(CpuProfilingEnabled), "cpu_enabled", Text(CpuProfilingEnabled));
        Add(nameof(AllocationProfilingEnabled), "allocation_enabled", Text(AllocationProfilingEnabled));
        Add(nameof(ContentionProfilingEnabled), "lock_enabled", Text(ContentionProfilingEnabled));
        Add(nameof(ExceptionProfilingEnabled), "exception_enabled", Text(ExceptionProfilingEnabled));
        Add(nameof(WallTimeProfilingEnabled), "wall_time", Text(WallTimeProfilingEnabled));
        Add(nameof(EveryWait), "every_wait", Text(EveryWait));
        Add(nameof(SampleRate), "sample_rate", SampleRate?.ToString(CultureInfo.InvariantCulture));
        Add(nameof(UploadInterval), "upload_interval_ms", UploadInterval?.TotalMilliseconds.ToString("F0", CultureInfo.InvariantCulture));
        Add(nameof(SpanProfileLinkingEnabled), "", Text(SpanProfileLinkingEnabled));
        foreach (var (name, value) in Tags)
        {
            Add(nameof(Tags), $"tag.{name}", value);
        }

        foreach (var (name, value) in HttpHeaders)
        {
            Add(nameof(HttpHeaders), $"http_header.{name}", value);
        }

        return made;
    }

    private static string ByProperty(string word)
    {
        var name = word.TrimEnd(',', '.');
        return Properties.GetValueOrDefault(name, name) + word[name.Length..];
    }

    private static IDictionary<string, string> Given(IDictionary<string, string>? pairs, string property)
    {
        if (pairs is null)
        {
            return new Dictionary<string, string>();
        }

        foreach (var (name, value) in pairs)
        {
            if (value is null)
            {
                throw new ArgumentException($"{property}: null for {name} is not allowed; allowed: text", property);
            }
        }

        return pairs;
    }

    private static string? Text(bool? value) => value is { } given ? (given ? "true" : "false") : null;
}
