using System.Collections;
using System.Diagnostics;
using Microsoft.Extensions.Logging;
using Pyroscope.Interop;
using Native = Pyroscope.Interop.Interop;

namespace Pyroscope;

/// <summary>
/// The native library's cold interface in terms of .NET: arguments in, one call, result out. A caller has looked at
/// <see cref="NativeLibraryCheck.IsUsable"/> before.
/// </summary>
internal static class Engine
{
    /// <summary>Starts a profiler with settings on top of the environment.</summary>
    internal static Answer Start(List<Pair> settings)
    {
        // A loop and no query, here and in what else runs when a program starts: of a query each part is compiled anew.
        var environment = new List<Pair>();
        foreach (DictionaryEntry variable in Environment.GetEnvironmentVariables())
        {
            if (variable is { Key: string name, Value: string text } && (name.StartsWith("PYROSCOPE_", StringComparison.Ordinal) || name.StartsWith("OTEL_", StringComparison.Ordinal)))
            {
                environment.Add(new Pair { name = name, text = text });
            }
        }

        settings.Add(new Pair { name = "runtime_version", text = Environment.Version.ToString() });
        using var answer = Native.spanprof_start(new Settings { environment = environment, values = settings }.Wire()).AsOk();
        return answer.Unwire();
    }

    /// <summary>Ends sampling and uploads what there is. True: all of it was delivered.</summary>
    internal static bool Stop(TimeSpan timeout) => Native.spanprof_stop(Milliseconds(timeout)).AsOk();

    /// <summary>Ends allocations, locks and exceptions for good. How long that took.</summary>
    internal static TimeSpan EndEvents()
    {
        var began = Stopwatch.GetTimestamp();
        Native.spanprof_end_events();
        return Stopwatch.GetElapsedTime(began);
    }

    /// <summary>Uploads what was sampled so far. True: all of it is settled, also what was refused or dropped.</summary>
    internal static bool Flush(TimeSpan timeout) => Native.spanprof_flush(Milliseconds(timeout)).AsOk();

    internal static ProfilerStats Stats()
    {
        using var wire = Native.spanprof_stats().AsOk();
        var statistics = wire.Unwire();
        return new ProfilerStats(statistics.numbers.ToDictionary(number => number.name, number => number.number), ProfilerConfiguration.ByProperties(statistics.last_error));
    }

    internal static List<Message> TakeMessages()
    {
        using var wire = Native.spanprof_take_messages().AsOk();
        var messages = new List<Message>();
        foreach (var message in wire.Unwire().messages)
        {
            var text = ProfilerConfiguration.ByProperties(message.text);
            messages.Add(new Message(message.level >= 2 ? LogLevel.Warning : LogLevel.Information, text));
        }

        return messages;
    }

    internal static IReadOnlyList<FeatureStatus> Features()
    {
        using var wire = Native.spanprof_status().AsOk();
        return wire.Unwire().features.Select(state => new FeatureStatus(state.name, state.is_on, state.is_on ? null : state.why)).ToArray();
    }

    /// <summary>Switches a part on or off.</summary>
    internal static Answer SetTracking(Feature feature, bool on)
    {
        using var answer = Native.spanprof_set_tracking(feature, on).AsOk();
        return answer.Unwire();
    }

    /// <summary>Whether waits are measured now.</summary>
    internal static bool MeasuresWaits() => Native.spanprof_measures_waits().AsOk();

    /// <summary>How long the calling thread waited so far, in nanoseconds.</summary>
    internal static ulong WaitedNanoseconds() => Native.spanprof_waited_ns().AsOk();

    /// <summary>Measures no waits any more, which is told.</summary>
    internal static void MeasureNoWaits() => Native.spanprof_measure_no_waits();

    /// <summary>The number of a set of labels, held until it is released; 0 where 1,024 are alive.</summary>
    internal static uint HoldTags(IEnumerable<KeyValuePair<string, string>> tags) =>
        Native.spanprof_tag_set(0, new Pairs { pairs = tags.Select(tag => new Pair { name = tag.Key, text = tag.Value }).ToList() }.Wire()).AsOk();

    internal static void ReleaseTags(uint set) => Native.spanprof_tag_release(set);

    /// <summary>Without end is an hour, as for the span processor.</summary>
    private static ulong Milliseconds(TimeSpan time) =>
        (ulong)Math.Max(0, (time == Timeout.InfiniteTimeSpan ? TimeSpan.FromHours(1) : time).TotalMilliseconds);
}
