using Microsoft.Extensions.DependencyInjection;
using Microsoft.Extensions.Logging;
using OpenTelemetry.Trace;

namespace Pyroscope.OpenTelemetry;

/// <summary>One line for a tracer provider.</summary>
public static class TracerProviderBuilderExtensions
{
    /// <summary>
    /// Adds a <see cref="PyroscopeSpanProcessor"/>, whose first span starts the profiler, named as the provider's resource
    /// says. Messages go to the program's <see cref="ILoggerFactory"/>, category <c>Pyroscope</c>. It stands before exporters, as
    /// what a span gets at its end comes too late for those before it.
    /// </summary>
    /// <param name="builder">The builder.</param>
    /// <param name="configure">
    /// Settings; what it leaves null is the environment's. With an application name they are those of a
    /// <see cref="Profiler.Configure"/> when the provider is built. Without one they count where nobody else configures or
    /// starts the profiler; else a warning says which have no effect.
    /// </param>
    /// <param name="scope">Which span samples carry; null is what <c>OTEL_PYROSCOPE_ROOT_SPAN_ONLY</c> says.</param>
    /// <param name="timeAttributes">
    /// Whether spans say what their time went to: <see cref="PyroscopeSpanProcessor.TimeAttributes"/>. Null is what
    /// <c>OTEL_PYROSCOPE_TIME_ATTRIBUTES</c> says.
    /// </param>
    /// <returns>The builder.</returns>
    /// <exception cref="ArgumentException">
    /// When the provider is built: the settings have an application name, and a value that is not allowed. Without a name
    /// they are only looked at with the first span, and what is wrong is a warning.
    /// </exception>
    public static TracerProviderBuilder AddPyroscope(
        this TracerProviderBuilder builder, Action<ProfilerConfiguration>? configure = null, SpanScope? scope = null, bool? timeAttributes = null)
    {
        ArgumentNullException.ThrowIfNull(builder);
        return builder.AddProcessor(services =>
        {
            var configuration = new ProfilerConfiguration();
            configure?.Invoke(configuration);
            configuration.Logger ??= services.GetService<ILoggerFactory>()?.CreateLogger("Pyroscope");
            if (configuration.Logger is { } logger)
            {
                ProfilerMessages.PassToIfNone(logger);
            }

            if (configuration.ApplicationName is null)
            {
                return new PyroscopeSpanProcessor(scope, configuration, timeAttributes);
            }

            Profiler.Instance.Configure(configuration);
            return new PyroscopeSpanProcessor(scope, null, timeAttributes);
        });
    }
}
