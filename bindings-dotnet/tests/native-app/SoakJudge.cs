using System.Globalization;
using System.Reflection;
using System.Text.RegularExpressions;
using Pyroscope.Tests;

namespace NativeApp;

/// Resident memory over a run, KiB: the most in its first half, and in its second. Caches fill in the first.
sealed class Memory(double seconds)
{
    readonly DateTime half = DateTime.UtcNow.AddSeconds(seconds / 2);
    readonly List<long> noted = [];

    public long AtHalf { get; private set; }
    public long AtEnd { get; private set; }

    /// A minute is enough for caches to fill. Collections come when they come, so that some more is no leak.
    public bool IsFlat => seconds < 60 || AtEnd <= AtHalf + AtHalf / 10 + 16 * 1024;

    /// The most in each tenth of the run, MiB: whether it grows all the time, or stood higher once.
    public string Tenths => string.Join(' ', noted.Chunk(Math.Max(1, noted.Count / 10)).Select(part => part.Max() / 1024));

    public void Note()
    {
        var line = File.ReadLines("/proc/self/status").First(line => line.StartsWith("VmRSS:", StringComparison.Ordinal));
        var resident = long.Parse(line.Split(' ', StringSplitOptions.RemoveEmptyEntries)[1], CultureInfo.InvariantCulture);
        noted.Add(resident);
        if (DateTime.UtcNow < half) AtHalf = Math.Max(AtHalf, resident);
        else AtEnd = Math.Max(AtEnd, resident);
    }
}

/// Compares what was sampled of `Soak` with what it can have done. Each of its methods runs in spans of one name, so a
/// sample tells by itself whether its span is right.
sealed class SoakJudge
{
    static readonly Dictionary<string, string[]> spansOf = new()
    {
        ["Deep"] = ["Throw"],
        ["Null"] = ["Throw"],
        ["Spin"] = ["InThread", "InTask"],
        ["Body"] = ["DynamicMethod", "CollectibleAssembly"],
    };

    static readonly string[] named = ["Collect", "Throw", "Threads", "InThread", "DynamicMethod", "CollectibleAssembly", "Process", "Compile", "Tasks", "InTask"];

    readonly HashSet<string> methods = Methods();
    readonly Dictionary<string, long> mistakes = [], unread = [];
    long samples, waits, waitSamples, wrong, odd, unreadable, unreadableWaits;

    /// Prints a row of `ci/soak dotnet`: samples, dropped, wrong, odd, unreadable, lost, memory at half and end. Whether
    /// everything is as it must be.
    public bool Judge(string[] settings, Dictionary<string, ulong> stats, Memory memory)
    {
        var folder = settings.Single(setting => setting.StartsWith("server_address=file://", StringComparison.Ordinal))["server_address=file://".Length..];
        var timed = settings.Contains("wall_clock=true") ? "wall" : "process_cpu";
        foreach (var kind in new[] { "process_cpu", "memory", "lock", "exception", "wall" })
            foreach (var profile in Pprof.ReadFolder(folder, kind))
                foreach (var sample in profile.Samples)
                    // An event's leaf is the type of the object or exception.
                    if (kind == timed) Look("time", sample.Frames, sample, Math.Max(1, (sample.Values[0] + profile.Period / 2) / profile.Period));
                    else if (kind == "wall") Waits(sample);
                    else Look(kind, sample.Frames.Skip(kind == "lock" ? 0 : 1).ToList(), sample, 1);
        long Of(params string[] names) => names.Sum(name => (long)stats[name + "_samples"]);
        var dropped = Of("dropped_ring", "dropped_window", "refused", "dropped_queue", "dropped_old", "discarded");
        var lost = Of("taken") - Of("uploaded") - dropped;
        Console.WriteLine($"row {samples,10}{dropped,9}{wrong,7}{odd,6}{unreadable + unreadableWaits,12}{lost,6}{memory.AtHalf / 1024,7} MiB{memory.AtEnd / 1024,7} MiB");
        Console.WriteLine($"true waits {waits}");
        // Stacks that cannot be read are many kinds, and would hide the one that is wrong.
        foreach (var (what, count) in new[] { mistakes, unread }.SelectMany(kind => kind.OrderByDescending(one => one.Value).Take(10))) Console.WriteLine($"  {count} × {what}");
        if (!memory.IsFlat) Console.WriteLine($"  memory grows: {memory.Tenths} MiB");
        // A few before the profiler knows what it met; in a short run they are more than one in 200. Where nobody drains, what
        // is left of a run is its beginning, so those that were dropped count here.
        // Threads wait for each other while the runtime makes an exception of a signal, and then the method that raised it has no name.
        var rare = timed == "wall" ? 50 : 200;
        return samples > 0 && wrong == 0 && odd == 0 && unreadable <= 5 + (samples - waitSamples + dropped) / rare && unreadableWaits <= 5 + waitSamples / 10
            && lost == 0 && memory.IsFlat;
    }

    // The leaf is the call that waited. CPU time is the other profile's, and what threads stood ready for has its stacks.
    void Waits(PprofSample sample)
    {
        if (sample.Label("state") is "cpu" or "run_queue") return;
        waits += sample.Values[0];
        waitSamples++;
        Look("wall", sample.Frames.Skip(1).ToList(), sample, 1);
    }

    void Look(string kind, IReadOnlyList<string> frames, PprofSample sample, long count)
    {
        samples += count;
        // A thread that ends takes a lock of the runtime's, with no managed code left on its stack.
        if (frames.Any(frame => frame.StartsWith("(unknown", StringComparison.Ordinal) || frame == "(no stack)" && kind != "lock"))
        {
            if (kind == "wall") unreadableWaits += count;
            else unreadable += count;
            Note(unread, $"{kind}: " + string.Join(" < ", frames.Take(12)), count);
        }

        foreach (var frame in frames.Where(frame => !IsMethod(frame)).Distinct())
        {
            odd += count;
            Note(mistakes, $"{kind}: no method {frame}", count);
        }
        // The call that changes the span is in both.
        if (frames.Contains("NativeApp.Span.Set")) return;
        var span = sample.Label("span_name");
        foreach (var frame in frames)
        {
            if (SpansOf(frame) is { } allowed && !allowed.Contains(span))
            {
                wrong += count;
                Note(mistakes, $"{kind}: {frame} in the span {span ?? "none"}", count);
                return;
            }
        }
    }

    static void Note(Dictionary<string, long> kind, string what, long count) => kind[what] = kind.GetValueOrDefault(what) + count;

    static string[]? SpansOf(string frame)
    {
        if (frame == "(dynamic) made") return ["DynamicMethod"];
        if (frame == "(dynamic) lambda_method") return ["Compile"];
        if (frame.StartsWith("Made.Type", StringComparison.Ordinal)) return ["CollectibleAssembly"];
        if (!frame.StartsWith("NativeApp.Soak.", StringComparison.Ordinal)) return null;
        var method = frame["NativeApp.Soak.".Length..];
        return named.Contains(method) ? [method] : spansOf.GetValueOrDefault(method);
    }

    bool IsMethod(string frame)
    {
        // Libraries, and what is no method by its own word.
        if (frame.Contains(".so", StringComparison.Ordinal) || frame.StartsWith('(') || frame.StartsWith('[')) return true;
        if (frame.StartsWith("Made.Type", StringComparison.Ordinal)) return Regex.IsMatch(frame, @"^Made\.Type\d+\.Loop$");
        var bare = Bare(frame);
        return methods.Contains(bare) || bare.LastIndexOf('.') is > 0 and var end && methods.Contains(bare[..end]);
    }

    /// Without type arguments.
    static string Bare(string name)
    {
        for (var next = ""; (next = Regex.Replace(name, "<[^<>]*>", "")) != name;) name = next;
        return name;
    }

    /// Each method of each assembly that is loaded, as profiles call it; of a local function the method around it.
    static HashSet<string> Methods()
    {
        const BindingFlags all = BindingFlags.Public | BindingFlags.NonPublic | BindingFlags.Static | BindingFlags.Instance | BindingFlags.DeclaredOnly;
        var found = new HashSet<string>();
        foreach (var type in AppDomain.CurrentDomain.GetAssemblies().Where(assembly => !assembly.IsDynamic).SelectMany(assembly => assembly.GetTypes()))
        {
            var name = string.Join('.', (type.FullName ?? type.Name).Split('+').Select(part => part.Split('`')[0]));
            // The constructors of the compiler's own type in it are called as its own.
            found.UnionWith([$"{name.Split(".<")[0]}..cctor", $"{name.Split(".<")[0]}..ctor"]);
            foreach (var method in type.GetMembers(all).OfType<MethodBase>()) found.Add(Bare($"{name}.{method.Name}"));
        }
        found.Add("Program.Main");
        return found;
    }
}
