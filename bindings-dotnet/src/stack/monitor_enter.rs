//! Where the runtime waits for a lock, and where it sleeps: learned from a wait that is known to be one.
//!
//! .NET 8 waits for the lock of an object in native code that the method calls directly, as it does for a garbage collection, and
//! nothing but addresses tells the two apart.
//!
//! While it waits the thread may be held up by something that suspends all threads, for longer than its own wait takes, and for not each
//! of these a collection is counted (the second pause of a background one, methods that are compiled anew). So a place is known when two
//! waits one after the other were made there.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stack::{own_stack, unwind};

/// Where fs points in the thread that waits for a lock so that it is learned; 0: none does.
static LEARNS: AtomicU64 = AtomicU64::new(0);
/// How long the longest wait was that it made, and where.
static LONGEST_NS: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
/// Where locks are waited for.
static LOCK: Call = Call::new();
/// Where `Thread.Sleep` does it.
static SLEEP: Call = Call::new();

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

/// What the calling thread waits for from here on is a lock.
pub(crate) fn begin() {
    LONGEST_NS.store(0, Ordering::Relaxed);
    SEEN.store(0, Ordering::Relaxed);
    LEARNS.store(own_stack::thread_pointer(), Ordering::Relaxed);
}

/// That was all; `certain`: it waited for nothing else that is known of. Whether the call is known.
pub(crate) fn end(certain: bool) -> bool {
    end_of(&LOCK, certain)
}

/// As [`end`] where it slept.
pub(crate) fn end_sleep(certain: bool) -> bool {
    end_of(&SLEEP, certain)
}

fn end_of(call: &Call, certain: bool) -> bool {
    LEARNS.store(0, Ordering::Relaxed);
    if certain { call.saw(SEEN.load(Ordering::Relaxed)) } else { call.get() != 0 }
}

/// Whether a wait whose caller goes on with these registers was made by `Thread.Sleep`. Async-signal-safe; a microsecond.
pub(crate) fn is_sleep(registers: Option<[u64; 3]>) -> bool {
    let sleep = SLEEP.get();
    sleep != 0 && registers.and_then(unwind::outermost_native) == Some(sleep)
}

/// Whether the call is known. Async-signal-safe.
pub(crate) fn is_known() -> bool {
    LOCK.get() != 0
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
    if LEARNS.load(Ordering::Relaxed) == own_stack::thread_pointer()
        && took_ns > LONGEST_NS.load(Ordering::Relaxed)
        && let Some(call) = registers.and_then(unwind::outermost_native)
    {
        LONGEST_NS.store(took_ns, Ordering::Relaxed);
        SEEN.store(call, Ordering::Relaxed);
    }
}

/// Whether a frame, the last native one below managed code, is of that call.
pub(crate) fn is_it(frame: u64) -> bool {
    frame == LOCK.get()
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
}
