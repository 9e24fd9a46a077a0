using System.Text.RegularExpressions;
using Pyroscope.Tests;

namespace Waits;

/// <summary>Compares samples of waits with what the program can do.</summary>
sealed class Judge
{
    const string LeftOut = "a caller is left out";

    /// <summary>Waits that are in profiles, and how many of them cannot be.</summary>
    public long Waits { get; private set; }
    public long Wrong { get; private set; }
    public Dictionary<string, long> Mistakes { get; } = [];

    /// <summary>How many there were by the method that waited, the state and the call.</summary>
    public Dictionary<string, long> Seen { get; } = [];

    /// <summary>Judges the profiles that are there, and removes them.</summary>
    public void LookAt(string folder)
    {
        // What is there, before it is read: more comes meanwhile.
        var now = Directory.GetFiles(folder, "*.pb.gz");
        if (now.Length == 0) return;
        var part = Directory.CreateDirectory(Path.Combine(folder, "judged")).FullName;
        foreach (var file in now) File.Move(file, Path.Combine(part, Path.GetFileName(file)));
        if (now.Any(file => file.Contains("-wall-", StringComparison.Ordinal)))
            foreach (var sample in Pprof.ReadFolder(part, "wall").SelectMany(profile => profile.Samples)) Look(sample);
        Directory.Delete(part, true);
    }

    void Look(PprofSample sample)
    {
        var (state, leaf) = (sample.Label("state") ?? "none", sample.Frames[0]);
        // CPU time is the other profile's, and what threads stood ready for has its stacks.
        if (state is "cpu" or "gc" || leaf == "(waits for a CPU)") return;
        var count = sample.Values[0];
        Waits += count;
        var own = sample.Frames.Select(OwnName).Where(name => name.Length > 0).ToList();
        Note(Seen, $"{(own.Count > 0 ? own[0] : "-")} {state} {leaf}", count);
        if ((OfCallers(sample, own) ?? OfState(sample, own, state, leaf)) is not { } mistake) return;
        Wrong += count;
        Note(Mistakes, $"{mistake} ({state} in {sample.Label("span_name")}): {string.Join(" < ", sample.Frames.Take(16))}", count);
    }

    static void Note(Dictionary<string, long> counts, string what, long count) => counts[what] = counts.GetValueOrDefault(what) + count;

    /// <summary>What is wrong with the span and who calls whom.</summary>
    static string? OfCallers(PprofSample sample, List<string> own)
    {
        var span = sample.Label("span_name");
        if (span is null || !Truth.Spans.Contains(span)) return $"the span {span ?? "none"}";
        if (own.FirstOrDefault(name => !Truth.Methods.ContainsKey(name)) is { } stranger) return $"no such method {stranger}";
        if (own.Count > 0 && Truth.Methods[own[0]] is { IsEdge: false } innermost && !innermost.Spans.Contains(span) && !Truth.GoesOnWith(span, own[0], sample.Frames)) return $"{own[0]} in the span {span}";
        if (sample.Frames.FirstOrDefault(frame => frame.StartsWith("(unknown", StringComparison.Ordinal) || frame == "(no stack)") is { } unknown) return unknown;
        for (var at = 0; at < own.Count; at++)
        {
            var caller = at + 1 < own.Count ? own[at + 1] : "-";
            // A body that was replaced while it ran is there twice until the profiler knows that.
            if (caller == own[at] && !Truth.IsAsync(caller)) return LeftOut;
            if (!Truth.MayCall(caller, own[at])) return Truth.LeavesOneOut(caller, own[at]) ? LeftOut : $"{caller} does not call {own[at]}";
        }
        return null;
    }

    static string? OfState(PprofSample sample, List<string> own, string state, string leaf)
    {
        if (state == "runtime") return null;
        if (IsOfASignal(sample.Frames)) return state == (leaf == "write" ? "io" : "sleep") ? null : $"a signal's handler in the state {state}";
        if (own.Count == 0) return Truth.MayBeAlone(sample.Label("span_name")!, state, sample.Frames) ? null : LeftOut;
        var innermost = Truth.Methods[own[0]];
        if (Truth.IsOfItsStart(state, leaf, sample.Frames) || Truth.IsTheRuntimes(state, leaf, sample.Frames) || Truth.IsOfAName(state, leaf)) return null;
        // What it called waits, and is left out.
        if (innermost.IsEdge && !innermost.States.Contains(state)) return LeftOut;
        // Who spins for a lock gives its processor away between two looks at it, and may wait there for a collection. Where the compiler put that into
        // the method nothing says for what. In a sleep the runtime gives it away, too.
        if ((state, leaf) is ("run_queue", "sched_yield") or ("sleep", "pthread_cond_wait") && innermost.States.Any(other => other is "lock" or "sleep")
            && sample.Frames.SkipWhile(frame => frame != "System.Threading.Thread.Sleep").Skip(1).FirstOrDefault() is { } sleeps && OwnName(sleeps) == own[0]) return null;
        // This program never sleeps for no time.
        if (state == "sleep" && (leaf == "sched_yield" || (!innermost.States.Contains(state) && sample.Frames.Contains("System.Threading.Thread.Sleep")))) return LeftOut;
        // A timer's queue has a lock.
        if (!innermost.States.Contains(state) && !(state == "lock" && Truth.IsAsync(own[0]))) return $"{own[0]} in the state {state}";
        return Truth.Leaves.TryGetValue(state, out var leaves) && !leaves.Contains(leaf) ? $"{own[0]} in the state {state} by {leaf}" : null;
    }

    /// <summary>
    /// Whether it was in a signal's handler: of the runtime's, which writes to a pipe (a child ended), or of the library's, for signals
    /// to one thread.
    /// </summary>
    static bool IsOfASignal(IReadOnlyList<string> frames) => frames.Count > 2 && (frames[0], frames[1]) switch
    {
        ("write", "libSystem.Native.so") => frames[2] == "libc.so.6",
        ("nanosleep", "libwaits.so") => frames[2] == "libc.so.6" && frames.Contains("Waits.Signals.Receive"),
        _ => false,
    };

    /// <summary>What a method of the program's is called in <see cref="Truth"/>; nothing: it is none.</summary>
    static string OwnName(string frame)
    {
        if (frame.StartsWith("Waits.", StringComparison.Ordinal)) return frame["Waits.".Length..];
        if (frame == "(dynamic) made") return "made";
        return frame.StartsWith("Made.", StringComparison.Ordinal) ? Regex.Replace(frame, @"^Made\.Type\d+\.", "Made.") : "";
    }
}
