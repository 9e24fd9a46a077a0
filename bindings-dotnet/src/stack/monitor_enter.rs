//! Where the runtime waits for a lock, and where it sleeps: learned from a wait that is known to be one.
//!
//! .NET 8 waits for the lock of an object in native code that the method calls directly, as it does for a garbage collection, and
//! nothing but addresses tells the two apart.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stack::unwind;

/// Where fs points in the thread that waits for a lock so that it is learned; 0: none does.
static LEARNS: AtomicU64 = AtomicU64::new(0);
/// How long the longest wait was that it made, and where.
static LONGEST_NS: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
/// The call in the function of the runtime that managed code calls, as a frame of a stack; 0: not known.
static CALL: AtomicU64 = AtomicU64::new(0);
/// The same of `Thread.Sleep`.
static SLEEP: AtomicU64 = AtomicU64::new(0);

/// What the calling thread waits for from here on is a lock.
pub(crate) fn begin() {
    LONGEST_NS.store(0, Ordering::Relaxed);
    SEEN.store(0, Ordering::Relaxed);
    LEARNS.store(unwind::thread_pointer(), Ordering::Relaxed);
}

/// That was all; `certain`: it waited for nothing else. Whether the call is known.
pub(crate) fn end(certain: bool) -> bool {
    LEARNS.store(0, Ordering::Relaxed);
    if certain && !is_known() {
        CALL.store(SEEN.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    is_known()
}

/// As [`end`] where it slept.
pub(crate) fn end_sleep(certain: bool) -> bool {
    LEARNS.store(0, Ordering::Relaxed);
    if certain && SLEEP.load(Ordering::Relaxed) == 0 {
        SLEEP.store(SEEN.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    SLEEP.load(Ordering::Relaxed) != 0
}

/// Whether a wait whose caller goes on with these registers was made by `Thread.Sleep`. Async-signal-safe; a microsecond.
pub(crate) fn is_sleep(registers: Option<[u64; 3]>) -> bool {
    let sleep = SLEEP.load(Ordering::Relaxed);
    sleep != 0 && registers.and_then(unwind::outermost_native) == Some(sleep)
}

/// Whether the call is known. Async-signal-safe.
pub(crate) fn is_known() -> bool {
    CALL.load(Ordering::Relaxed) != 0
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
    if LEARNS.load(Ordering::Relaxed) == unwind::thread_pointer()
        && took_ns > LONGEST_NS.load(Ordering::Relaxed)
        && let Some(call) = registers.and_then(unwind::outermost_native)
    {
        LONGEST_NS.store(took_ns, Ordering::Relaxed);
        SEEN.store(call, Ordering::Relaxed);
    }
}

/// Whether a frame, the last native one below managed code, is of that call.
pub(crate) fn is_it(frame: u64) -> bool {
    frame == CALL.load(Ordering::Relaxed)
}
