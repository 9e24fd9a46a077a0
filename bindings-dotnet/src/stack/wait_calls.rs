//! Where the runtime waits for what a program asked it to wait for: learned from waits that are known to be such.
//!
//! The methods that ask for it are inlined into their callers where both are hot, and .NET 8 waits for locks and threads in native code that
//! a method calls directly, as it does for a garbage collection: nothing but addresses tells them apart.
//!
//! While it waits the thread may be held up by something that suspends all threads, for longer than its own wait takes, and for not each
//! of these a collection is counted (the second pause of a background one, methods that are compiled anew). So a place is known when two
//! waits one after the other were made there.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stack::{own_stack, unwind};

/// Where fs points in the thread that waits so that it is learned; 0: none does.
static LEARNS: AtomicU64 = AtomicU64::new(0);
/// How long the longest wait was that it made, and where.
static LONGEST_NS: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
/// By kind of wait. `WaitTest` of the package makes them, and counts them alike.
static CALLS: [Call; 10] = [const { Call::new() }; 10];
/// `Thread.Sleep`.
const SLEEP: usize = 0;
/// What `lock` of C# waits by.
const ENTER: usize = 1;

/// A call in the function of the runtime that managed code calls, as a frame of a stack; 0: not known.
#[derive(Debug)]
struct Call {
    known: AtomicU64,
    /// Where the wait before was seen.
    before: AtomicU64,
}

impl Call {
    const fn new() -> Self {
        Self { known: AtomicU64::new(0), before: AtomicU64::new(0) }
    }

    fn get(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }

    /// One more wait was seen there; whether the call is known.
    fn saw(&self, call: u64) -> bool {
        if self.get() == 0 && self.before.swap(call, Ordering::Relaxed) == call {
            self.known.store(call, Ordering::Relaxed);
        }
        self.get() != 0
    }
}

/// What was asked for where a wait was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To sleep.
    Sleep,
    /// To wait for a lock, a condition, a handle or a thread.
    Lock,
    /// Nothing that is known of; `all`: all that there is to know was learned.
    Nothing { all: bool },
    /// It is not known yet where locks are waited for.
    Unknown,
}

/// What was asked for by a frame, the last native one below managed code.
pub(crate) fn asked(frame: u64) -> Asked {
    asked_of(frame, &CALLS.each_ref().map(Call::get))
}

fn asked_of(frame: u64, calls: &[u64]) -> Asked {
    match calls.iter().position(|call| *call == frame) {
        Some(SLEEP) => Asked::Sleep,
        Some(_) => Asked::Lock,
        None if calls[ENTER] == 0 => Asked::Unknown,
        None => Asked::Nothing { all: !calls.contains(&0) },
    }
}

/// What the calling thread waits for from here on is of one kind.
pub(crate) fn begin() {
    LONGEST_NS.store(0, Ordering::Relaxed);
    SEEN.store(0, Ordering::Relaxed);
    LEARNS.store(own_stack::thread_pointer(), Ordering::Relaxed);
}

/// Whether the calling thread waits so that it is learned.
pub(crate) fn is_learning() -> bool {
    LEARNS.load(Ordering::Relaxed) == own_stack::thread_pointer()
}

/// That was all, and it was of this kind; `certain`: it waited for nothing else that is known of. Whether the call is known.
pub(crate) fn end(kind: usize, certain: bool) -> bool {
    LEARNS.store(0, Ordering::Relaxed);
    let Some(call) = CALLS.get(kind) else { return false };
    if certain { call.saw(SEEN.load(Ordering::Relaxed)) } else { call.get() != 0 }
}

/// Whether a wait whose caller goes on with these registers was made by `Thread.Sleep`. Async-signal-safe; a microsecond.
pub(crate) fn is_sleep(registers: Option<[u64; 3]>) -> bool {
    let sleep = CALLS[SLEEP].get();
    sleep != 0 && registers.and_then(unwind::outermost_native) == Some(sleep)
}

/// A wait for a lock or a condition is over; its caller goes on with these registers. Async-signal-safe.
#[inline]
pub(crate) fn note(took_ns: u64, registers: Option<[u64; 3]>) {
    if LEARNS.load(Ordering::Relaxed) != 0 {
        learn(took_ns, registers);
    }
}

#[cold]
fn learn(took_ns: u64, registers: Option<[u64; 3]>) {
    if is_learning()
        && took_ns > LONGEST_NS.load(Ordering::Relaxed)
        && let Some(call) = registers.and_then(unwind::outermost_native)
    {
        LONGEST_NS.store(took_ns, Ordering::Relaxed);
        SEEN.store(call, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_when_two_waits_in_a_row_were_made_there() {
        let call = Call::new();
        // Held up for longer than it slept, at another place; then not seen at all.
        assert!(!call.saw(7) && !call.saw(5) && !call.saw(0) && !call.saw(0));
        assert!(!call.saw(5));
        assert!(call.saw(5));
        assert!(call.saw(7) && call.saw(7));
        assert_eq!(call.get(), 5);
    }

    #[test]
    fn what_was_asked_for_is_told_by_the_call_as_far_as_calls_are_known() {
        for (frame, calls, expected) in [
            (5, [0, 0, 0], Asked::Unknown),
            (5, [5, 0, 0], Asked::Sleep),
            (5, [0, 0, 5], Asked::Lock),
            (5, [4, 5, 0], Asked::Lock),
            (5, [4, 6, 0], Asked::Nothing { all: false }),
            (5, [4, 6, 7], Asked::Nothing { all: true }),
        ] {
            assert_eq!(asked_of(frame, &calls), expected, "{frame} of {calls:?}");
        }
    }
}
