//! What a wait for a condition was for. CoreCLR waits for nearly everything by conditions of its own, so the call tells little, and the
//! managed code that it waited for tells the rest.

use spanprof_core::{FrameId, State, wait_function};

use crate::libraries::registry;
use crate::stack::wait_calls::{self, Asked};
use crate::symbols::resolver;

/// Managed frames that are looked at.
const MAX_FRAMES: usize = 12;

/// A wait of CoreCLR's, as its addresses tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockWait {
    /// What the method called the runtime for.
    asked: Asked,
    /// What the call says.
    call: State,
}

impl LockWait {
    /// Looks at a sample's frames, of which the first managed one is told, while they are addresses. `None`: what the call says holds.
    pub(crate) fn of(frames: &[u64], first_managed: usize, state: State) -> Option<Self> {
        let function = wait_function(*frames.first()?)?;
        let is_wait = matches!(state, State::Lock | State::RunQueue | State::Sleep);
        let caller = frames.get(1).filter(|_| is_wait && first_managed > 1)?;
        if !is_runtime(&registry::path_of(*caller)?) {
            return None;
        }
        let outermost = *frames.get(first_managed - 1)?;
        // Of conditions: by these it waits for what it was asked for, but for named mutexes.
        let inner = function.starts_with("pthread_cond_").then_some(*caller);
        Some(Self { asked: wait_calls::asked(outermost, inner), call: state })
    }

    /// The state, once frames have names.
    pub(crate) fn state(self, frames: &[FrameId]) -> State {
        let known = resolver::resolve(frames.get(..frames.len().min(MAX_FRAMES * 2)).unwrap_or_default());
        let managed = known.iter().flatten().filter(|frame| frame.file.is_empty()).map(|frame| &*frame.function);
        let state = state_of(managed.filter(|name| is_method(name)).take(MAX_FRAMES), self.asked);
        by_call(state, self.call)
    }
}

/// What the call tells beside the methods: the runtime sleeps itself where it waits until all threads have stopped, and for no lock; and who
/// sleeps for no time gives its processor away.
fn by_call(state: State, call: State) -> State {
    match (state, call) {
        (State::Lock | State::Child, State::Sleep) => State::Runtime,
        (State::Sleep, State::RunQueue) => call,
        _ => state,
    }
}

/// Whether a name is a method's, not the call's that the stack begins with.
fn is_method(name: &str) -> bool {
    name.contains('.')
}

/// Of the methods that called, innermost first.
fn state_of<'a>(methods: impl Iterator<Item = &'a str> + Clone, asked: Asked) -> State {
    let own = |name: &&str| name.starts_with("System.") || name.starts_with("Microsoft.Win32.");
    let is_of_child = methods.clone().take_while(own).any(|name| name.starts_with("System.Diagnostics.Process"));
    // What starts a process allocates, too.
    match state_of_wait(methods, asked) {
        State::Lock if is_of_child => State::Child,
        state => state,
    }
}

fn state_of_wait<'a>(methods: impl Iterator<Item = &'a str> + Clone, asked: Asked) -> State {
    if asked == Asked::Own {
        return State::Runtime;
    }
    let first = methods.clone().next();
    let sleeps = first.is_some_and(|name| {
        name.starts_with("System.Threading.Thread.Sleep")
            || name.starts_with("System.Threading.Thread.UninterruptibleSleep")
            || name.starts_with("System.Threading.Thread.Yield")
    });
    if sleeps || asked == Asked::Sleep {
        // Who spins for a lock sleeps between two looks at it.
        let mut callers = methods.skip_while(|name| name.starts_with("System.Threading.Thread."));
        return if callers.next().is_some_and(spins) { State::Lock } else { State::Sleep };
    }
    let by_default = match asked {
        Asked::Nothing { .. } | Asked::Own => State::Runtime,
        Asked::Sleep | Asked::Lock | Asked::Unknown => State::Lock,
    };
    match first {
        // Where methods have no names the call alone tells, if each is known.
        None if asked == (Asked::Nothing { all: true }) => State::Runtime,
        None => State::Lock,
        // .NET 10 looks by managed code whether a collection waits for it.
        Some(poll) if poll.starts_with("System.Threading.Thread.PollGC") => State::Runtime,
        Some(method) if spins(method) => State::Lock,
        // They allocate, and wait for nothing else but locks of objects, unless they were asked to wait.
        Some(flow)
            if flow.starts_with("System.Threading.AsyncLocal")
                || flow.starts_with("System.Threading.ExecutionContext.")
                || flow.starts_with("System.Threading.Tasks.") =>
        {
            by_default
        }
        Some(wait) if wait.starts_with("System.Threading.") => State::Lock,
        Some(_) => by_default,
    }
}

/// Whether a method sleeps as it waits for something. Lambdas of the program's may be inlined into others of `System.Threading`.
fn spins(method: &str) -> bool {
    const CLASSES: [&str; 8] = [
        "SpinWait.",
        "LowLevelSpinWaiter.",
        "SpinLock.",
        "Lock.",
        "ReaderWriterLockSlim.",
        "ManualResetEventSlim.",
        "SemaphoreSlim.",
        "Barrier.",
    ];
    let name = method.strip_prefix("System.Threading.");
    name.is_some_and(|name| CLASSES.iter().any(|class| name.starts_with(class)) || name.starts_with("Tasks.Task.Spin"))
}

fn is_runtime(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("libcoreclr.") || name.starts_with("libclrjit.") || name.starts_with("libclrgc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_method_that_waited_says_for_what() {
        let of = |methods: &[&str], asked| state_of(methods.iter().copied(), asked);
        let nothing = Asked::Nothing { all: false };
        for (methods, expected) in [
            (&["System.Threading.Thread.SleepInternal", "System.Threading.Thread.Sleep", "A.B"][..], State::Sleep),
            (&["System.Threading.Thread.Sleep", "System.Threading.SpinWait.SpinOnceCore", "A.B"], State::Lock),
            (&["System.Threading.Thread.Sleep", "System.Threading.ReaderWriterLockSlim.SpinWait"], State::Lock),
            (&["System.Threading.Thread.Sleep", "System.Threading.Tasks.Parallel.ForWorker"], State::Sleep),
            (&["System.Threading.Thread.Sleep", "System.Threading.ExecutionContext.RunInternal"], State::Sleep),
            (&["System.Threading.Monitor.Wait", "System.Threading.ManualResetEventSlim.Wait"], State::Lock),
            (
                &["System.Threading.WaitHandle.WaitOneNoCheck", "System.Diagnostics.ProcessWaitState.WaitForExit"],
                State::Child,
            ),
            (&["System.Threading.WaitHandle.WaitOneNoCheck", "A.B", "System.Diagnostics.Process.Start"], State::Lock),
            (&["System.Collections.Hashtable.expand", "System.Diagnostics.Process.Start", "A.B"], State::Runtime),
            (&["System.GC.Collect", "A.B"], State::Runtime),
            (&["System.Threading.Thread.PollGC.PollGCWorker", "A.B"], State::Runtime),
            (&["System.Threading.AsyncLocalValueMap.TwoElementAsyncLocalValueMap.Set", "A.B"], State::Runtime),
            (&["System.Threading.ExecutionContext.SetLocalValue", "A.B"], State::Runtime),
            (&["System.Threading.Tasks.Task.UnsafeSetContinuationForAwait", "A.B"], State::Runtime),
        ] {
            assert_eq!(of(methods, nothing), expected, "{methods:?}");
        }
        // Inlined, or none of these.
        assert_eq!(of(&["System.Threading.Tasks.Task.InternalWaitCore", "A.B"], Asked::Lock), State::Lock);
        assert_eq!(of(&["System.Diagnostics.ProcessWaitState.WaitForExit", "A.B"], Asked::Lock), State::Child);
        assert_eq!(of(&["A.B"], Asked::Sleep), State::Sleep);
        assert_eq!(of(&["System.Threading.Thread.Sleep", "A.B"], Asked::Own), State::Runtime);
        assert_eq!(of(&["System.Threading.Monitor.Wait", "A.B"], Asked::Own), State::Runtime);
        assert_eq!(of(&["System.Threading.SpinWait.SpinOnceCore", "A.B"], Asked::Sleep), State::Lock);
        for (asked, named, unnamed) in [
            (Asked::Unknown, State::Lock, State::Lock),
            (Asked::Own, State::Runtime, State::Runtime),
            (Asked::Lock, State::Lock, State::Lock),
            (Asked::Sleep, State::Sleep, State::Sleep),
            (nothing, State::Runtime, State::Lock),
            (Asked::Nothing { all: true }, State::Runtime, State::Runtime),
        ] {
            assert_eq!((of(&["A.B"], asked), of(&[], asked)), (named, unnamed), "{asked:?}");
        }
        let sleeps = |methods: &[&str]| by_call(of(methods, Asked::Unknown), State::Sleep);
        assert_eq!(sleeps(&["A.B"]), State::Runtime, "it waits until threads have stopped");
        assert_eq!(sleeps(&["System.Threading.Thread.Sleep", "A.B"]), State::Sleep);
        let yields = |methods: &[&str]| by_call(of(methods, Asked::Unknown), State::RunQueue);
        assert_eq!(yields(&["System.Threading.Thread.Sleep", "A.B"]), State::RunQueue, "Sleep(0)");
        assert_eq!(yields(&["System.Threading.Thread.Sleep", "System.Threading.SpinWait.SpinOnceCore"]), State::Lock);
        assert_eq!(yields(&["System.Threading.Thread.YieldInternal", "A.B"]), State::RunQueue);
        assert_eq!(yields(&["System.Threading.Thread.Yield", "System.Threading.SpinWait.SpinOnceCore"]), State::Lock);
        assert_eq!(of(&["System.Threading.Tasks.Task.SpinWait", "A.B"], nothing), State::Lock);
    }

    #[test]
    fn libraries_of_the_runtime_are_told_by_their_names() {
        for (path, expected) in [
            ("/usr/share/dotnet/shared/Microsoft.NETCore.App/10.0.1/libcoreclr.so", true),
            ("/app/libclrjit.so", true),
            ("/app/libSystem.Native.so", false),
            ("/app/libcoreclrhost.so", false),
        ] {
            assert_eq!(is_runtime(path), expected, "{path}");
        }
    }
}
