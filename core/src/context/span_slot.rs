//! The core's own context, for hosts that have none: a stack of spans a thread, moved by `span_start` and `span_end`.
//!
//! Entries are written whole before the current span's pointer moves to them, and are not written again before it has
//! moved away, so the handler on the same thread reads one whole span at any instant.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::span_record::{MAX_NAME_BYTES, SpanRecord, truncate_name};
use crate::os::thread_id::tid;

/// Which span: a span id, and the trace it belongs to where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanContext {
    /// High and low half of the trace id; zeros = unknown.
    pub trace_id: [u64; 2],
    /// Not 0; a span with id 0 counts as outside spans.
    pub span_id: u64,
}

impl From<u64> for SpanContext {
    fn from(span_id: u64) -> Self {
        Self { trace_id: [0, 0], span_id }
    }
}

/// The current span of one thread, where the handler finds it.
#[derive(Debug)]
pub(crate) struct Slot {
    current: AtomicPtr<SpanRecord>,
}

impl Slot {
    #[inline]
    pub(crate) fn current(&self) -> *const SpanRecord {
        self.current.load(Ordering::Relaxed)
    }
}

/// A span with room for its name beside it, at an address that does not move.
struct Entry {
    record: SpanRecord,
    name: [u8; MAX_NAME_BYTES],
}

/// A thread's stack of spans. Entries above `depth` are kept for the next span.
struct Spans {
    tid: i32,
    slot: &'static Slot,
    #[expect(clippy::vec_box, reason = "a published record must not move when the stack grows")]
    entries: Vec<Box<Entry>>,
    depth: usize,
}

thread_local! {
    static SPANS: RefCell<Spans> = RefCell::new(Spans::new());
}

/// Slots by thread. A thread's spans and the sampler's record of it each hold a claim: who comes first makes the slot,
/// so spans that are open when a profiler starts are known to it.
#[derive(Debug)]
pub(crate) struct Slots {
    by_tid: Option<HashMap<i32, Claimed>>,
    /// For new threads: a slot is never freed, since a late handler may look at it.
    unused: Vec<&'static Slot>,
}

#[derive(Debug)]
struct Claimed {
    slot: &'static Slot,
    claims: u32,
}

static SLOTS: Mutex<Slots> = Mutex::new(Slots { by_tid: None, unused: Vec::new() });

pub(crate) fn lock() -> MutexGuard<'static, Slots> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The slot of a thread, to be released.
pub(crate) fn claim(tid: i32) -> &'static Slot {
    let mut slots = lock();
    let Slots { by_tid, unused } = &mut *slots;
    let claimed = by_tid.get_or_insert_default().entry(tid).or_insert_with(|| {
        let slot = unused.pop();
        let slot = slot.unwrap_or_else(|| Box::leak(Box::new(Slot { current: AtomicPtr::new(ptr::null_mut()) })));
        Claimed { slot, claims: 0 }
    });
    claimed.claims += 1;
    claimed.slot
}

/// Gives a claim back; the last one frees the slot for another thread.
pub(crate) fn release(tid: i32) {
    let mut slots = lock();
    let Slots { by_tid, unused } = &mut *slots;
    let Some(hash_map::Entry::Occupied(mut claimed)) = by_tid.as_mut().map(|slots| slots.entry(tid)) else { return };
    claimed.get_mut().claims -= 1;
    if claimed.get().claims == 0 {
        unused.push(claimed.remove().slot);
    }
}

/// Makes `id` the calling thread's current span until the matching [`span_end`]; spans nest.
///
/// The name is truncated at 256 bytes. Never fails, works whether or not a profiler runs. Hot: about 20 ns, no lock, no
/// allocation once a thread's stack of spans has been as deep.
pub fn span_start(id: impl Into<SpanContext>, name: &str) {
    let id = id.into();
    let _ = SPANS.try_with(|spans| spans.borrow_mut().push(id, name));
}

/// Ends the span that the calling thread started last; the one around it is current again. Without one: nothing.
pub fn span_end() {
    let _ = SPANS.try_with(|spans| spans.borrow_mut().pop());
}

impl Spans {
    fn new() -> Self {
        let tid = tid();
        let slot = claim(tid);
        Self { tid, slot, entries: Vec::new(), depth: 0 }
    }

    fn push(&mut self, id: SpanContext, name: &str) {
        let name = truncate_name(name);
        if self.entries.len() == self.depth {
            // SAFETY: the name is static.
            let record = unsafe { SpanRecord::new([0, 0], 0, "") };
            self.entries.push(Box::new(Entry { record, name: [0; MAX_NAME_BYTES] }));
        }
        let entry = &mut *self.entries[self.depth];
        entry.name[..name.len()].copy_from_slice(name.as_bytes());
        let kept = str::from_utf8(&entry.name[..name.len()]).unwrap_or_default();
        // SAFETY: the name lies in the same box as the record and is written only after the record is current no more.
        let record = unsafe { SpanRecord::new(id.trace_id, id.span_id, kept) };
        entry.record = record;
        self.depth += 1;
        self.publish(&raw const self.entries[self.depth - 1].record);
    }

    fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        let outer = self.depth.checked_sub(1).map_or(ptr::null(), |at| &raw const self.entries[at].record);
        self.publish(outer);
    }

    /// The handler runs on this thread, so the compiler's order is all the order there is.
    fn publish(&self, record: *const SpanRecord) {
        compiler_fence(Ordering::Release);
        self.slot.current.store(record.cast_mut(), Ordering::Relaxed);
        compiler_fence(Ordering::Release);
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        self.publish(ptr::null());
        release(self.tid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current() -> Option<(u64, String)> {
        let slot = claim(tid());
        let span = slot.current();
        release(tid());
        // SAFETY: null, or current on this very thread.
        let span = unsafe { span.as_ref() }?;
        let (name, length) = span.name_parts();
        // SAFETY: the span is current, so its name is there.
        let name = unsafe { std::slice::from_raw_parts(name, length) };
        Some((span.span_id(), String::from_utf8(name.to_vec()).unwrap()))
    }

    #[test]
    fn spans_nest_and_an_end_too_many_does_nothing() {
        assert_eq!(current(), None);
        span_start(1, "outer");
        span_start(2, &"x".repeat(300));
        assert_eq!(current(), Some((2, "x".repeat(256))));
        span_end();
        assert_eq!(current(), Some((1, "outer".into())));
        span_start(3, "sibling");
        assert_eq!(current(), Some((3, "sibling".into())));
        for _ in 0..5 {
            span_end();
        }
        assert_eq!(current(), None);
    }

    #[test]
    fn a_slot_is_reused_after_its_thread_and_its_record_let_go() {
        let (tid, slot) = std::thread::spawn(|| {
            span_start(9, "never ended");
            (tid(), ptr::from_ref(claim(tid())).addr())
        })
        .join()
        .unwrap();
        let held = lock();
        assert!(held.unused.iter().all(|unused| ptr::from_ref(*unused).addr() != slot), "a record holds it");
        drop(held);
        release(tid);
        let held = lock();
        let unused = held.unused.iter().find(|unused| ptr::from_ref(**unused).addr() == slot).unwrap();
        assert!(unused.current().is_null());
    }
}
