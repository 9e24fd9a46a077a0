//! Where the runtime waits for what a program asked it to wait for: learned from waits that are known to be such.
//!
//! The methods that ask for it are inlined into their callers where both are hot, and .NET 8 waits for locks and threads in native code that
//! a method calls directly, as it does for a garbage collection: nothing but addresses tells them apart. There are two of them: the call
//! in the function that managed code calls, which says what was asked for, and the innermost one. Within each of these functions the
//! runtime waits for collections too, by an event of its own, so that the innermost call is another one then.
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
static SEEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// By kind of wait. `WaitTest` of the package makes them, and counts them alike.
static CALLS: [Call; 11] = [const { Call::new() }; 11];
/// `Thread.Sleep`.
const SLEEP: usize = 0;
/// What `lock` of C# waits by.
const ENTER: usize = 1;

/// The outermost call of the runtime's and the innermost, as frames of a stack; zeros: not known.
type Frames = [u64; 2];

/// The calls of a kind of wait.
#[derive(Debug)]
struct Call {
    known: [AtomicU64; 2],
    /// Where the wait before was seen.
    before: [AtomicU64; 2],
}

impl Call {
    const fn new() -> Self {
        Self { known: [const { AtomicU64::new(0) }; 2], before: [const { AtomicU64::new(0) }; 2] }
    }

    fn get(&self) -> Frames {
        load(&self.known)
    }

    fn is_known(&self) -> bool {
        self.get() != [0; 2]
    }

    /// One more wait was seen there; whether the call is known.
    fn saw(&self, frames: Frames) -> bool {
        let before = load(&self.before);
        store(&self.before, frames);
        if !self.is_known() && before == frames {
            store(&self.known, frames);
        }
        self.is_known()
    }
}

/// Written by one thread at a time, which holds `LEARNS`; who reads half of it takes a wait for one that is not known.
fn load(words: &[AtomicU64; 2]) -> Frames {
    words.each_ref().map(|word| word.load(Ordering::Relaxed))
}

fn store(words: &[AtomicU64; 2], frames: Frames) {
    words.iter().zip(frames).for_each(|(word, frame)| word.store(frame, Ordering::Relaxed));
}

/// What was asked for where a wait was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To sleep.
    Sleep,
    /// To wait for a lock, a condition, a handle or a thread.
    Lock,
    /// Whatever it was, the runtime waits for something of its own.
    Own,
    /// Nothing that is known of; `all`: all that there is to know was learned.
    Nothing { all: bool },
    /// It is not known yet where locks are waited for.
    Unknown,
}

/// What was asked for by the last native frame below managed code, where the frame `inner` waited for a condition. `None`: for none.
pub(crate) fn asked(outer: u64, inner: Option<u64>) -> Asked {
    asked_of(outer, inner, &CALLS.each_ref().map(Call::get))
}

fn asked_of(outer: u64, inner: Option<u64>, calls: &[Frames]) -> Asked {
    let is_known = |call: &Frames| *call != [0; 2];
    // With an end and without.
    let knows_inner = is_known(&calls[SLEEP]) && is_known(&calls[ENTER]);
    if knows_inner && inner.is_some_and(|inner| calls.iter().all(|call| call[1] != inner)) {
        return Asked::Own;
    }
    match calls.iter().position(|call| call[0] == outer) {
        Some(SLEEP) => Asked::Sleep,
        Some(_) => Asked::Lock,
        None if !is_known(&calls[ENTER]) => Asked::Unknown,
        None => Asked::Nothing { all: calls.iter().all(is_known) },
    }
}

/// What the calling thread waits for from here on is of one kind. False: another thread's is being learned.
pub(crate) fn begin() -> bool {
    if LEARNS.compare_exchange(0, own_stack::thread_pointer(), Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    LONGEST_NS.store(0, Ordering::Relaxed);
    store(&SEEN, [0; 2]);
    true
}

/// Whether the calling thread waits so that it is learned.
pub(crate) fn is_learning() -> bool {
    LEARNS.load(Ordering::Relaxed) == own_stack::thread_pointer()
}

/// After [`begin`]: that was all, and it was of this kind; `certain`: it waited for nothing else that is known of. Whether the call is known.
pub(crate) fn end(kind: usize, certain: bool) -> bool {
    let seen = load(&SEEN);
    let is_known = CALLS.get(kind).is_some_and(|call| if certain { call.saw(seen) } else { call.is_known() });
    LEARNS.store(0, Ordering::Release);
    is_known
}

/// Whether a wait whose caller goes on with these registers was made by `Thread.Sleep`. Async-signal-safe; a microsecond, if it may be.
pub(crate) fn is_sleep(registers: Option<[u64; 3]>) -> bool {
    let [outer, _] = CALLS[SLEEP].get();
    outer != 0
        && registers.is_some_and(|registers| {
            // With an end, or without, as it may be interrupted.
            CALLS.iter().any(|call| call.get()[1] == inner_of(registers))
                && unwind::outermost_native(registers) == Some(outer)
        })
}

/// Who called the function that waited, as a frame.
fn inner_of([pc, ..]: [u64; 3]) -> u64 {
    pc.wrapping_sub(1)
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
        && let Some(registers) = registers
        && let Some(outer) = unwind::outermost_native(registers)
    {
        LONGEST_NS.store(took_ns, Ordering::Relaxed);
        store(&SEEN, [outer, inner_of(registers)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_when_two_waits_in_a_row_were_made_there() {
        let call = Call::new();
        // Held up for longer than it slept, at another place; then not seen at all.
        assert!(!call.saw([7, 1]) && !call.saw([5, 1]) && !call.saw([0, 0]) && !call.saw([0, 0]));
        assert!(!call.saw([5, 2]) && !call.saw([5, 1]));
        assert!(call.saw([5, 1]));
        assert!(call.saw([7, 1]) && call.saw([7, 1]));
        assert_eq!(call.get(), [5, 1]);
    }

    #[test]
    fn what_was_asked_for_is_told_by_the_calls_as_far_as_they_are_known() {
        const NO: Frames = [0; 2];
        for (outer, inner, calls, expected) in [
            (5, Some(1), [NO, NO, NO], Asked::Unknown),
            (5, Some(1), [[5, 1], NO, NO], Asked::Sleep),
            (5, Some(1), [NO, NO, [5, 1]], Asked::Lock),
            (5, Some(3), [NO, NO, [5, 1]], Asked::Lock),
            (5, Some(1), [[4, 1], [5, 2], NO], Asked::Lock),
            (5, Some(3), [[4, 1], [5, 2], NO], Asked::Own),
            (4, Some(3), [[4, 1], [5, 2], NO], Asked::Own),
            (4, None, [[4, 1], [5, 2], NO], Asked::Sleep),
            (5, Some(1), [[4, 1], [6, 2], NO], Asked::Nothing { all: false }),
            (5, Some(1), [[4, 1], [6, 2], [7, 1]], Asked::Nothing { all: true }),
            (5, Some(3), [[4, 1], [6, 2], [7, 1]], Asked::Own),
        ] {
            assert_eq!(asked_of(outer, inner, &calls), expected, "{outer}, {inner:?} of {calls:?}");
        }
    }
}
