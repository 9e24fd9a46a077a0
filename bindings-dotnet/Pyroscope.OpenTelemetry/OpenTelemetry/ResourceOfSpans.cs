using OpenTelemetry.Resources;

namespace Pyroscope.OpenTelemetry;

/// <summary>What profiles must have in common with spans, or Grafana does not find the one from the other.</summary>
/// <param name="Name">service.name, or null.</param>
/// <param name="Namespace">service.namespace, or null.</param>
internal sealed record ResourceOfSpans(string? Name, string? Namespace)
{
    private const string NamespaceLabel = "service_namespace";

    internal static ResourceOfSpans Read(Resource? resource) =>
        new(Attribute(resource, "service.name"), Attribute(resource, "service.namespace"));

    /// <summary>The configuration for a profiler that a span processor starts.</summary>
    internal ProfilerConfiguration Complete(ProfilerConfiguration? given)
    {
        var configuration = given?.Clone() ?? new ProfilerConfiguration();
        if (configuration.ApplicationName is null && string.IsNullOrWhiteSpace(Environment.GetEnvironmentVariable("PYROSCOPE_APPLICATION_NAME")))
        {
            configuration.ApplicationName = Name;
        }

        if (Namespace is not null)
        {
            configuration.Tags.TryAdd(NamespaceLabel, Namespace);
        }

        return configuration;
    }

    /// <summary>Warns where the running profiler files its profiles under another name.</summary>
    internal void Compare()
    {
        if (Profiler.Instance.IsRunning && Name is not null && Profiler.Instance.GivenName() is { Length: > 0 } name && name != Name)
        {
            ProfilerMessages.Warn($"Profiles are named '{name}' but the spans' resource has service.name '{Name}': a span's profile is only found if both are the same.");
        }
    }

    private static string? Attribute(Resource? resource, string name)
    {
        foreach (var (key, value) in resource?.Attributes ?? [])
        {
            if (key == name)
            {
                return value as string;
            }
        }

        return null;
    }
}
