using System.Text.RegularExpressions;

namespace Waits;

/// <summary>A method of the program's: whom it may be called by, the spans that it runs in, and the states in which it may wait.</summary>
/// <param name="Callers">Methods of the program's own, "-" for none: it is where a thread begins, or what the runtime calls.</param>
/// <param name="Spans">Their names; nothing: it is in no span, "*": it starts and ends spans.</param>
/// <param name="States">Beside those in which each method may be.</param>
sealed record Own(string[] Callers, string[] Spans, string[] States)
{
    public bool IsEdge => Spans is ["*"];
}

/// <summary>What the program can do.</summary>
static class Truth
{
    public static readonly Dictionary<string, Own> Methods = All();

    const string OneAwait = "Spans.OneAwait";

    /// <summary>Names of spans.</summary>
    public static readonly HashSet<string> Spans = [.. Methods.Values.SelectMany(own => own.Spans).Where(name => name != "*")];

    /// <summary>Calls in which a thread may wait, by state; of I/O and children each method has its own.</summary>
    public static readonly Dictionary<string, string[]> Leaves = new()
    {
        ["await"] = ["(await)"],
        ["lock"] = ["pthread_cond_wait", "pthread_cond_timedwait", "pthread_mutex_lock", "sched_yield", "flock"],
        ["runtime"] = ["pthread_cond_wait", "pthread_cond_timedwait", "pthread_mutex_lock", "sched_yield"],
        // A sleep without an end, and what the runtime does before and after one.
        ["sleep"] = ["pthread_cond_timedwait", "pthread_cond_wait", "pthread_mutex_lock", "nanosleep"],
        ["name"] = ["getaddrinfo"],
        ["child"] = ["pthread_cond_wait", "pthread_cond_timedwait", "pthread_mutex_lock", "sched_yield", "waitpid", "system"],
    };

    /// <summary>
    /// Whether none of the program's methods need be on the stack: it goes on after a wait and none is there yet, or by the runtime's own iterator
    /// of a channel, which has a lock. Where the objects of who awaits whom could not be read the stack is the thread's: it begins with what will call
    /// the method.
    /// </summary>
    public static bool MayBeAlone(string span, string state, IReadOnlyList<string> frames) => state switch
    {
        "await" => span is "several" or "channel" || IsBoxOf(span, frames[1]),
        "lock" => span == "channel" && frames.Any(frame => frame.EndsWith(".ReadAllAsync", StringComparison.Ordinal)),
        _ => false,
    };

    // Of code that types share the runtime does not tell which.
    static bool IsBoxOf(string span, string frame) =>
        Regex.IsMatch(frame, @"\.AsyncStateMachineBox(<\w+, Canon>)?\.MoveNext$")
        || (Methods.TryGetValue(MethodOfBox(frame), out var method) && (method.IsEdge || method.Spans.Contains(span)));

    static string MethodOfBox(string frame) =>
        Regex.Match(frame, @"\.AsyncStateMachineBox<.*<(\w+)>d__\d+>\.MoveNext$") is { Success: true, Groups: var groups }
            ? groups[1].Value == "OneAwait" ? OneAwait : $"Awaits.{groups[1].Value}" : "";

    /// <summary>Whether a method that ended is about to call one that awaits it, whose span is current already.</summary>
    public static bool GoesOnWith(string span, string method, IReadOnlyList<string> frames) =>
        IsAsync(method) && frames.TakeWhile(frame => frame != $"Waits.{method}").Any(frame => Methods[method].Callers.Contains(MethodOfBox(frame)) && IsBoxOf(span, frame));

    /// <summary>The runtime itself writes, where it makes threads of its own and compiles: no call of the program's comes through its library.</summary>
    public static bool IsTheRuntimes(string state, string leaf, IReadOnlyList<string> frames) =>
        (state, leaf) == ("io", "write") && frames.Count > 2 && frames[1] == "libcoreclr.so";

    /// <summary>Whoever has files closes and looks for some, and the runtime has.</summary>
    public static bool IsOfAName(string state, string leaf) =>
        state == "io" && leaf is "close" or "fclose" or "fopen64" or "stat64" or "lstat64" or "fstatat64" or "__xstat64" or "__lxstat64" or "__fxstatat64" or "statx" or "access";

    /// <summary>
    /// A span that starts reads random bytes, of which its number is made; the compiler may put one of these methods into the other. And the
    /// processor puts a property into it, which takes the lock of an object.
    /// </summary>
    public static bool IsOfItsStart(string state, string leaf, IReadOnlyList<string> frames) => (state, leaf) switch
    {
        ("io", "read") => frames.Contains("System.Diagnostics.Activity.Start")
            && frames.Take(4).Any(frame => frame is "System.Guid.NewGuid" or "System.Diagnostics.RandomNumberGenerator..ctor"),
        ("lock", "pthread_cond_wait") => frames.Contains("System.Diagnostics.Activity.Start")
            // From .NET 10 on the lock's own methods are managed code. The one that takes it may be a part of the one that tells listeners.
            && frames.SkipWhile(frame => !frame.Contains('.') || frame.EndsWith(".so", StringComparison.Ordinal) || frame.StartsWith("System.Threading.Monitor.", StringComparison.Ordinal))
                .First() is "System.Diagnostics.Activity.SetCustomProperty" or "System.Diagnostics.ActivitySource.NotifyActivityStart",
        _ => false,
    };

    /// <summary>Whether one caller between these two, which the program has, is left out.</summary>
    public static bool LeavesOneOut(string caller, string callee) => Methods.Keys.Any(between => MayCall(caller, between) && MayCall(between, callee));

    /// <summary>Whether a method may be the next one below another; "-": nothing of the program's is below it.</summary>
    public static bool MayCall(string caller, string callee)
    {
        if (Methods[callee].Callers.Contains(caller)) return true;
        // An async method begins as a method of the same name, goes on where a thread of the pool begins, and one that ends calls who awaits it.
        return IsAsync(callee) && (caller == callee || caller == "-" || (IsAsync(caller) && Methods[caller].Callers.Contains(callee)));
    }

    public static bool IsAsync(string method) => method == OneAwait || (method.StartsWith("Awaits.", StringComparison.Ordinal) && method != "Awaits.Rests");

    static Dictionary<string, Own> All()
    {
        var all = new Dictionary<string, Own>();
        void Add(string method, string callers, string spans, string states) =>
            all.Add(method, new Own(callers.Split(' '), spans.Split(',', StringSplitOptions.RemoveEmptyEntries), states.Split(' ', StringSplitOptions.RemoveEmptyEntries)));
        const string One = "Spans.One";
        Add(One, "Alone.Work Alone.Short Alone.Outer Alone.Inner Pair.Both Pair.Follow Signals.Send", "*", "");
        // Which starts threads by lambdas.
        Add("Play.Run", "-", "", "");
        Add("Alone.Work", "Play.Run", "", "");
        Add("Alone.Outside", "Alone.Work", "", "");
        Add("Alone.Sleeps", One, "sleeps", "sleep");
        Add("Alone.TimesOut", One, "times out", "lock");
        Add("Alone.Synchronizes", One, "synchronizes", "io lock");
        Add("Alone.Joins", One, "joins", "lock io");
        Add("Alone.Short", "-", "", "");
        Add("Alone.Rests", $"{One} Alone.RestsInATask", "short thread,waits for a task", "sleep");
        Add("Alone.RunsAProgram", One, "runs a program", "child io lock");
        Add("Alone.Resolves", One, "resolves", "name");
        Add("Alone.Interrupted", One, "interrupted", "lock sleep");
        Add("Alone.Interrupts", "-", "interrupted", "lock");
        Add("Alone.Canceled", One, "canceled", "lock sleep");
        Add("Alone.Outer", One, "outer", "sleep");
        Add("Alone.Inner", One, "inner", "sleep");
        Add("Alone.Innermost", One, "innermost", "sleep");
        Add("Alone.WaitsForATask", One, "waits for a task", "lock");
        Add("Alone.RestsInATask", "- Alone.WaitsForATask", "waits for a task", "");
        Add("Alone.Collects", One, "collects", "");
        Add("Modules.Function", "Modules.Forks Modules.RunsACommand Signals.Receive Signals.Signaled Signals.Sends", "forks,runs a command,signaled,sends", "");
        Add("Modules.Library", One, "library", "");
        Add("Modules.CallsIt", "Modules.Library", "library", "sleep io");
        Add("Modules.Forks", One, "forks", "child");
        Add("Modules.RunsACommand", One, "runs a command", "child");
        // What reflection remembers of types has a lock.
        Add("Modules.Collectible", One, "collectible", "io lock");
        Add("Modules.Body", "Modules.Collectible Modules.Dynamic", "collectible,dynamic", "lock");
        Add("Made.Rest", "Modules.Collectible", "collectible", "sleep");
        // What its description is made of has a lock.
        Add("Modules.Dynamic", One, "dynamic", "lock");
        Add("made", "Modules.Dynamic", "dynamic", "sleep");
        Add("Pair.Lead", "Play.Run", "", "");
        Add("Pair.Both", "Pair.Lead", "", "");
        Add("Pair.Follow", "-", "", "");
        Add("Pair.Take", One, "takes", "lock");
        Add("Pair.Turns", One, "turns", "lock");
        Add("Pair.Contends", One, "contends", "lock");
        Add("Pair.Hold", "Pair.Contends Pair.Reads", "contends,readers", "lock");
        Add("Pair.Semaphores", One, "semaphores", "lock");
        Add("Pair.Events", One, "events", "lock");
        Add("Pair.SlimEvents", One, "slim events", "lock");
        Add("Pair.Meets", One, "barrier", "lock");
        Add("Pair.Reads", One, "readers", "lock");
        // A socket that is disposed of has a lock.
        Add("Pair.Connected", "Awaits.Receives", "receives", "io lock");
        Add("Pair.Pipes", One, "pipes", "io");
        Add("Pair.Sockets", One, "sockets", "io");
        Add("Signals.Receive", "Play.Run", "*", "");
        Add("Signals.Signaled", "Signals.Receive", "signaled", "lock sleep io");
        Add("Signals.Send", "-", "", "");
        Add("Signals.Sends", One, "sends", "sleep");
        Add("Signals.Handles", "-", "", "");
        Add(OneAwait, "Awaits.Flow Awaits.Parent", "*", "await");
        Add("Awaits.Flow", "Play.Run", "", "");
        Add("Awaits.Delays", OneAwait, "delays", "await");
        Add("Awaits.Chain1", OneAwait, "chain", "await");
        Add("Awaits.Chain2", "Awaits.Chain1", "chain", "await sleep");
        Add("Awaits.Chain3", "Awaits.Chain2", "chain", "await");
        Add("Awaits.Several", OneAwait, "several", "await");
        Add("Awaits.Rests", "-", "several", "sleep");
        Add("Awaits.CanceledDelay", OneAwait, "canceled delay", "await sleep");
        Add("Awaits.Late", OneAwait, "late", "await");
        Add("Awaits.Throws", OneAwait, "throws", "await sleep");
        Add("Awaits.Thrower", "Awaits.Throws", "throws", "await");
        Add("Awaits.Iterates", OneAwait, "iterates", "await");
        Add("Awaits.Numbers", "Awaits.Iterates", "iterates", "await");
        Add("Awaits.Through", OneAwait, "channel", "await");
        Add("Awaits.Produces", "Awaits.Through", "channel", "await");
        Add("Awaits.Receives", OneAwait, "receives", "await io");
        Add("Awaits.SleepsBetween", OneAwait, "sleeps between", "await sleep");
        Add("Awaits.Parent", OneAwait, "parent", "await");
        Add("Awaits.Child", OneAwait, "child", "await sleep");
        return all;
    }
}
