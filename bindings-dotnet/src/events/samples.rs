//! Samples of events: allocations, lock waits and exceptions, on the threads that cause them.
//!
//! A callback reads the thread's own block, so each sample has the span of the thread that did it, walks the managed
//! stack by DoStackSnapshot (no stack comes with the event) and writes one entry into the thread's ring. An allocation's
//! callback runs while a garbage collection cannot: it waits for nothing. The type that was allocated or thrown is the
//! leaf frame.

use std::sync::atomic::{AtomicU64, Ordering};

use spanprof_core::{FrameId, FrameWriter, ProfileType, ProfileTypeId};

use crate::clr::{info, method_names};
use crate::events::payload::{self, Event, Utf16};
use crate::span::record;
use crate::stack::wait_calls;
use crate::symbols::resolver;

/// The kinds of profile that events make, in the order of their ids.
pub(crate) const PROFILE_TYPES: [ProfileType; 3] = [
    ProfileType {
        name: "memory",
        sample_types: &[("alloc_samples", "count"), ("alloc_size", "bytes")],
        period_type: ("space", "bytes"),
        period: 102_400,
    },
    ProfileType {
        name: "lock",
        sample_types: &[("lock_count", "count"), ("lock_time", "nanoseconds")],
        period_type: ("lock", "count"),
        period: 1,
    },
    ProfileType {
        name: "exception",
        sample_types: &[("exception", "count")],
        period_type: ("exception", "count"),
        period: 1,
    },
];

const MEMORY: ProfileTypeId = ProfileTypeId(1);
const LOCK: ProfileTypeId = ProfileTypeId(2);
const EXCEPTION: ProfileTypeId = ProfileTypeId(3);

/// An event, on the thread that caused it.
pub(crate) fn delivered(id: u32, version: u32, payload: &[u8]) {
    let Some(clr) = info::attached() else { return };
    let (profile_type, value, count, type_name) = match payload::read(id, version, payload) {
        Some(Event::Allocation { objects, bytes, type_name }) => (MEMORY, bytes, objects, Some(type_name)),
        // One that the package waits for itself.
        Some(Event::Contention { .. }) if wait_calls::is_learning() => return,
        Some(Event::Contention { nanoseconds }) => (LOCK, nanoseconds, 1, None),
        Some(Event::Exception { type_name }) => (EXCEPTION, 1, 1, Some(type_name)),
        None => return,
    };
    let type_id = type_name.and_then(type_id);
    let walk = |out: &mut FrameWriter<'_>| {
        if let Some(id) = type_id {
            out.push(id);
        }
        clr.snapshot(|_, address| out.push(address - 1));
    };
    // SAFETY: a callback of the runtime, not a signal handler; the span is in this thread's block.
    unsafe { spanprof_core::sample_here(profile_type, value, count, record::context(), walk) };
}

const TYPES: usize = 4_096;

/// Hashes of types' names and their frame ids. Two threads may write one place: who finds an id whose hash was just
/// overwritten has the wrong type for one sample.
static TYPE_IDS: [[AtomicU64; 2]; TYPES] = [const { [AtomicU64::new(0), AtomicU64::new(0)] }; TYPES];

/// The frame id of a type's name; `None` while another thread makes one: nothing here may wait.
fn type_id(name: Utf16<'_>) -> Option<FrameId> {
    let hash = name.hash();
    #[expect(clippy::cast_possible_truncation, reason = "a place in the table")]
    let [known, id] = &TYPE_IDS[hash as usize % TYPES];
    if known.load(Ordering::Acquire) == hash {
        return Some(id.load(Ordering::Relaxed));
    }
    let new = resolver::try_id_of(&method_names::of_type(&name.text()))?;
    id.store(new, Ordering::Relaxed);
    // Release: who sees the hash sees the id.
    known.store(hash, Ordering::Release);
    Some(new)
}
