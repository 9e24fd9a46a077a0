//! A wait that becomes a sample: taken by the thread that waited, within the call that just returned.

use std::ptr;

use super::fates::Fate;
use crate::profile_type::ProfileTypeId;
use crate::sample::frames::{FrameId, FrameWriter};
use crate::sample::handler;
use crate::sample::record::ThreadRecord;
use crate::sample::ring::Measure;
use crate::sample::runtime::{LockWait, WaitFrame};
use crate::wait_state::State;

/// A wait of the calling thread that is to become a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) profile_type: ProfileTypeId,
    pub(super) state: State,
    /// How many waits, and how many nanoseconds, it stands for.
    pub(super) count: u16,
    pub(super) weight: u64,
    /// What the stack begins with: the call.
    pub(super) leaf: FrameId,
    /// Who called, 0 if the state is certain.
    pub(super) caller: usize,
    /// The wrapper's frame.
    pub(super) frame: WaitFrame,
}

/// What became of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampled {
    Yes,
    /// That became of it.
    No(Fate),
    /// The stack cannot be read before this mutex is unlocked, which may be null.
    Later(*const ()),
}

/// Takes a sample of a wait, if the thread is in a span.
///
/// # Safety
/// On the record's own thread, which `value` names.
pub(super) unsafe fn sample_wait(record: &ThreadRecord, value: u64, wait: Wait) -> Sampled {
    let Some(runtime) = handler::runtime() else { return Sampled::No(Fate::Thread) };
    if record.is_entered() {
        // A handler of the program's waited, which came while a sample was taken.
        return Sampled::No(Fate::Busy);
    }
    let mut sampled = Sampled::No(Fate::Thread);
    if record.enter(value) {
        record.set_busy(true);
        // SAFETY: the caller's promise.
        let inside = unsafe { runtime.context(record, ptr::null()) };
        let is_in_span = !inside.span.is_null();
        // SAFETY: on the thread itself, as above.
        if is_in_span && unsafe { runtime.defers(record) } {
            sampled = Sampled::Later(runtime.interpreter_mutex());
        } else if !is_in_span {
            sampled = Sampled::No(Fate::Outside);
        } else {
            let Wait { profile_type, state, count, weight, leaf, caller, frame } = wait;
            let state = if caller == 0 { state } else { runtime.wait_state(state, caller) };
            let walk = |out: &mut FrameWriter<'_>| {
                out.push(leaf);
                // SAFETY: on the thread itself, as above.
                unsafe { runtime.walk_caller(record, frame, out) };
            };
            let measure = Measure { profile_type, state, count, claim: 0, value: weight };
            // SAFETY: entered, and busy keeps this thread's handler out.
            let is_written = unsafe { handler::write(record, runtime, measure, inside, walk) };
            sampled = if is_written { Sampled::Yes } else { Sampled::No(Fate::Ring) };
        }
        record.set_busy(false);
    }
    record.leave();
    sampled
}

/// Whether the calling thread is in a span, as its runtime says.
///
/// # Safety
/// As for [`sample_wait`]; `record` is the thread's own or nobody's.
pub(super) unsafe fn is_in_span(record: &ThreadRecord) -> bool {
    // SAFETY: the caller's promise.
    handler::runtime().is_some_and(|runtime| !unsafe { runtime.context(record, ptr::null()) }.span.is_null())
}

/// How much of a wait was for the interpreter's lock, at its end, and what that is called, as its runtime says.
#[inline]
pub(super) fn interpreter_lock(wait: &LockWait) -> (u64, State) {
    handler::runtime()
        .map_or((0, State::Gil), |runtime| (runtime.interpreter_lock_ns(wait), runtime.interpreter_lock()))
}
