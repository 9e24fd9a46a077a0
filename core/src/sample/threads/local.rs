//! A thread on itself: its start and its end, and the record with which it takes samples outside of handlers.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::registry::{IS_SAMPLING, lock, try_lock};
use crate::os::fork;
use crate::os::thread_id::tid;
use crate::sample::record::{RECORDS, ThreadRecord, by_signal_value};
use crate::stats::{AtomicTally, Tally};

struct AtExit {
    tid: Cell<i32>,
    /// What the record's timer signals with: its number and generation, which may be over.
    value: Cell<u64>,
}

impl Drop for AtExit {
    fn drop(&mut self) {
        // In a child that has started nothing yet the timers are the parent's, and their numbers may be those of others.
        if fork::forked() {
            return;
        }
        if let Some(registry) = lock().as_mut() {
            registry.leave(self.tid.get());
            registry.tags.end(self.tid.get());
        }
    }
}

/// A value that names no record.
const NO_RECORD: u64 = u64::MAX;

thread_local! {
    static AT_EXIT: AtExit = const { AtExit { tid: Cell::new(0), value: Cell::new(NO_RECORD) } };
}

/// Announces that the calling thread just started, so that it is sampled from here on and gives its closing sample when it
/// ends, however short it lives. About 5 µs, and 3 µs more where run queues are asked for, then and at the thread's end: /proc is read with
/// the registry's lock held, so threads that start or end at once wait for each other. 1 ns while no profiler runs. Never from a signal
/// handler.
pub fn thread_started() {
    if !IS_SAMPLING.load(Ordering::Relaxed) || fork::forked() {
        return;
    }
    let tid = tid();
    if let Some(registry) = lock().as_mut() {
        registry.begin(tid, true);
    }
    let _ = AT_EXIT.try_with(|exit| exit.tid.set(tid));
}

/// Notes that the calling thread may take samples itself later, where nobody may be waited for: the first touch of a thread-local that
/// has a destructor waits for whoever loads a library. 30 ns, and 1 ns from then on.
pub fn prepare_thread() {
    let _ = AT_EXIT.try_with(|_| ());
}

/// The calling thread's record, and the value to enter it with; it is made if there is none.
pub(crate) fn own_record() -> Option<(&'static ThreadRecord, u64)> {
    if !IS_SAMPLING.load(Ordering::Relaxed) || fork::forked() {
        return None;
    }
    if let Some(noted) = noted_record() {
        return Some(noted);
    }
    let tid = tid();
    let index = lock().as_mut()?.own(tid)?;
    Some(note(tid, index))
}

/// The calling thread's record, and the value to enter it with, if it has one; nobody is waited for.
#[inline]
pub(crate) fn known_record() -> Option<(&'static ThreadRecord, u64)> {
    if !IS_SAMPLING.load(Ordering::Relaxed) || fork::forked() {
        return None;
    }
    noted_record().or_else(|| {
        let tid = tid();
        let index = try_lock()?.as_ref()?.by_tid.get(&tid)?.index;
        Some(note(tid, index))
    })
}

#[inline]
fn noted_record() -> Option<(&'static ThreadRecord, u64)> {
    let known = AT_EXIT.try_with(|exit| exit.value.get()).ok()?;
    by_signal_value(known).filter(|record| record.is_for(known)).map(|record| (record, known))
}

fn note(tid: i32, index: u32) -> (&'static ThreadRecord, u64) {
    let record = &RECORDS[index as usize];
    let value = u64::from(record.gate.generation.load(Ordering::Relaxed)) << 32 | u64::from(index);
    let _ = AT_EXIT.try_with(|exit| (exit.tid.set(tid), exit.value.set(value)));
    (record, value)
}

/// Counts a sample of a thread that has no ring; always false.
pub(crate) fn drop_here(value: u64) -> bool {
    if IS_SAMPLING.load(Ordering::Relaxed)
        && !fork::forked()
        && let Some(registry) = lock().as_mut()
    {
        registry.dropped += Tally { samples: 1, weight: value };
    }
    false
}

/// Waits that became no sample: their threads had no record, or took a sample just then. Counted without a lock, as they may come
/// from anywhere.
pub(super) static DROPPED_WAITS: AtomicTally = AtomicTally::new();

/// Counts such waits.
pub(crate) fn drop_waits(waits: Tally) {
    DROPPED_WAITS.add(waits);
}

/// The record of a thread and the value to enter it with, without waiting and without making one.
pub(crate) fn find_record(thread: i32) -> Option<(&'static ThreadRecord, u64)> {
    if !IS_SAMPLING.load(Ordering::Relaxed) || fork::forked() {
        return None;
    }
    let index = try_lock()?.as_ref()?.by_tid.get(&thread)?.index;
    let record = &RECORDS[index as usize];
    Some((record, u64::from(record.gate.generation.load(Ordering::Relaxed)) << 32 | u64::from(index)))
}

/// In the child after fork: the calling thread is there under another number; returns the parent's.
pub(super) fn renew(own: i32) -> i32 {
    AT_EXIT.try_with(|exit| exit.tid.replace(own)).unwrap_or_default()
}
