using System.Diagnostics;
using NativeApp;
using Pyroscope.Tests;

namespace NativeApp
{
    /// <summary>What the chains tell their span to.</summary>
    internal static class Span
    {
        private static Activity? current;

        internal static void Set(ulong id, string name = "")
        {
            current?.Dispose();
            current = id == 0 ? null : Pyroscope.Benchmarks.Recording.Source.StartActivity(name);
        }
    }
}

namespace Pyroscope.Benchmarks
{
    /// <summary>
    /// Stacks of code that has warmed up: methods whose names say by whom they are called, with and without a frame, into the
    /// framework and the system and back, with exceptions, recursion and loops that are compiled while they run.
    /// </summary>
    internal static class ChainTruth
    {
        internal static IEnumerable<Cell> Measure(Options options, string folder)
        {
            using var recording = new Recording(settings => (settings.SampleRate, settings.UploadInterval) = (250, TimeSpan.FromSeconds(1)));
            Chains.Run(DateTime.UtcNow.AddSeconds(options.Of(30, 7)));
            var samples = recording.Profiles("process_cpu").Skip(5).SelectMany(profile => profile.Samples)
                .Where(sample => sample.Frames.Any(frame => frame.StartsWith("NativeApp.Chains.", StringComparison.Ordinal))).ToArray();
            double Share(Func<PprofSample, bool> isRight) =>
                samples.Where(isRight).Sum(sample => sample.Values[0]) / (double)samples.Sum(sample => sample.Values[0]);
            var whole = Share(sample => IsWhole(sample.Frames));
            var named = Share(sample => !sample.Frames.Any(frame => frame.Contains("(unknown", StringComparison.Ordinal)));
            yield return new("stack of managed callers whole, once warm", ">= 99 %", FormattableString.Invariant($"{whole * 100:0.00} %"), whole >= 0.99);
            yield return new("stacks in which each method has a name", ">= 99.5 %", FormattableString.Invariant($"{named * 100:0.00} %"), named >= 0.995);
        }

        /// <summary>Whether each frame of the chains was called by the one whose name its own begins with.</summary>
        private static bool IsWhole(IReadOnlyList<string> frames)
        {
            const string Prefix = "NativeApp.Chains.";
            var caller = "";
            // An instance method stands between two of the chain.
            var names = frames.Reverse().Where(frame => frame.StartsWith(Prefix, StringComparison.Ordinal)).Select(frame => frame[Prefix.Length..].Split('<')[0]);
            foreach (var name in names.Where(name => name != "Square.Area"))
            {
                var isRight = name switch
                {
                    "Run" => caller.Length == 0,
                    "C" => caller == "Run",
                    // The recursive one and the one with lambdas call themselves.
                    "C_7_2" or "C_8_2" when caller == name => true,
                    _ => name.LastIndexOf('_') is var end and > 0 && name[..end] == caller,
                };
                if (!isRight)
                {
                    return false;
                }

                caller = name;
            }

            return true;
        }
    }
}
