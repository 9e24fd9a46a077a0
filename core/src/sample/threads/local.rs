//! A thread on itself: its start and its end, and the record with which it takes samples outside of handlers.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering};

use super::registry::{IS_SAMPLING, Registry, lock, try_lock};
use crate::os::background_thread::StaysHere;
use crate::os::fork;
use crate::os::thread_id::tid;
use crate::os::thread_word::ThreadWord;
use crate::sample::record::{RECORDS, ThreadRecord, by_signal_value};
use crate::stats::{AtomicTally, Tally};

/// The thread's number, of one that announced itself: its end is seen.
static TID: ThreadWord = ThreadWord::new(Some(at_end));
/// What the record's timer signals with, its bits inverted: its number and generation, which may be over.
static VALUE: ThreadWord = ThreadWord::new(None);

/// Makes room for what threads know of themselves. Before threads are sampled; where there is none, their ends are seen by sweeps alone.
pub(super) fn prepare() {
    TID.prepare();
    VALUE.prepare();
}

/// A thread that announced itself ends.
extern "C" fn at_end(tid: *mut c_void) {
    // In a child that has started nothing yet the timers are the parent's, and their numbers may be those of others.
    if fork::forked() {
        return;
    }
    let tid = i32::try_from(tid.addr()).unwrap_or(0);
    if let Some(registry) = lock().as_mut() {
        registry.leave(tid);
        registry.tags.end(tid);
    }
}

fn note_tid(tid: i32) {
    TID.set(u64::from(tid.unsigned_abs()));
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
    let mut registry = lock();
    let registry = registry.as_mut();
    let index = registry.and_then(|registry| {
        registry.begin(tid, true);
        Some(registry.by_tid.get(&tid)?.index)
    });
    match index {
        // It finds it without the lock from here on, also where many threads begin at once.
        Some(index) => drop(note(tid, index)),
        None => note_tid(tid),
    }
}

/// The calling thread's record, and the value to enter it with, if it has one; nobody is waited for.
#[inline]
pub(crate) fn known_record() -> Option<(&'static ThreadRecord, u64)> {
    if !IS_SAMPLING.load(Ordering::Relaxed) || fork::forked() {
        return None;
    }
    noted_record().or_else(|| {
        let tid = tid();
        let registry = try_lock()?;
        let index = registry.as_ref()?.by_tid.get(&tid)?.index;
        Some(note(tid, index))
    })
}

#[inline]
fn noted_record() -> Option<(&'static ThreadRecord, u64)> {
    let known = !VALUE.get();
    by_signal_value(known).filter(|record| record.is_for(known)).map(|record| (record, known))
}

/// With the registry's lock held: without it the record may be another thread's meanwhile.
fn note(tid: i32, index: u32) -> (&'static ThreadRecord, u64) {
    let (record, value) = at(index);
    note_tid(tid);
    VALUE.set(!value);
    (record, value)
}

/// A record of a thread, and what it is entered with. With the registry's lock held.
fn at(index: u32) -> (&'static ThreadRecord, u64) {
    let record = &RECORDS[index as usize];
    (record, u64::from(record.gate.generation.load(Ordering::Relaxed)) << 32 | u64::from(index))
}

/// Samples of threads that had no record and could not get one at once. Counted without a lock, as those who take them wait for nobody.
pub(super) static DROPPED_HERE: AtomicTally = AtomicTally::new();

/// Threads that are to be given a record by [`give_wanted`](super::give_wanted); 0: none. Who finds his place taken comes again.
pub(super) static WANTED: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Counts a sample of the calling thread, which has no record and gets one at the next tick if it can have one; always false.
pub(crate) fn drop_here(value: u64) -> bool {
    if IS_SAMPLING.load(Ordering::Relaxed) && !fork::forked() {
        DROPPED_HERE.add(Tally { samples: 1, weight: value });
        let tid = tid();
        let place = &WANTED[tid.unsigned_abs() as usize % WANTED.len()];
        let _ = place.compare_exchange(0, tid, Ordering::Relaxed, Ordering::Relaxed);
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

/// The record of a thread and the value to enter it with, without making one. Nobody is waited for, and no thread-local that has a
/// destructor is touched: its first touch waits for whoever loads a library.
pub(crate) fn find_record(thread: i32) -> Option<(&'static ThreadRecord, u64)> {
    if !IS_SAMPLING.load(Ordering::Relaxed) || fork::forked() {
        return None;
    }
    // What the thread noted of itself, which a child of vfork finds in its memory too.
    let noted = noted_record().filter(|_| TID.get() == u64::from(thread.unsigned_abs()));
    noted.or_else(|| try_registry(|registry| Some(registry.by_tid.get(&thread)?.index)))
}

/// The same of the calling thread, where it may allocate. It is made if there is none, unless somebody has the registry.
///
/// The thread waits for nobody here who may wait for a garbage collection: what a record takes is the kernel's (a ring's pages, a timer, a file
/// in /proc), the allocator's, and the lock of the slots of spans, which such a host's threads have none of. Who is in one of these is in native
/// code and goes on: a collection stops a thread in managed code only. The thread's end is seen by a sweep, as that of one that is found by
/// it: up to a second later, and without a closing sample, so what it burnt since its last expiry, less than a period mostly, is not counted.
pub(crate) fn own_record(thread: i32) -> Option<(&'static ThreadRecord, u64)> {
    try_registry(|registry| registry.own(thread))
}

fn try_registry(find: impl FnOnce(&mut Registry) -> Option<u32>) -> Option<(&'static ThreadRecord, u64)> {
    if !IS_SAMPLING.load(Ordering::Relaxed) || fork::forked() {
        return None;
    }
    let here = StaysHere::new();
    let mut registry = try_lock()?;
    let found = at(find(registry.as_mut()?)?);
    drop(registry);
    drop(here);
    Some(found)
}

/// In the child after fork: the calling thread is there under another number; returns the parent's.
pub(super) fn renew(own: i32) -> i32 {
    let parents = i32::try_from(TID.get()).unwrap_or(0);
    note_tid(own);
    parents
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_wants_its_record_while_another_one_has_the_registry_does_not_wait() {
        let held = lock();
        IS_SAMPLING.store(true, Ordering::Relaxed);
        let before = DROPPED_HERE.get();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let is_known = find_record(tid()).is_some() || own_record(tid()).is_some();
            let is_taken = drop_here(7);
            let _ =
                sender.send((is_known, is_taken, WANTED.iter().any(|wanted| wanted.load(Ordering::Relaxed) == tid())));
        });
        let answer = receiver.recv_timeout(Duration::from_secs(10));
        IS_SAMPLING.store(false, Ordering::Relaxed);
        drop(held);
        assert_eq!(answer, Ok((false, false, true)), "no record, no sample, and one with the next tick");
        assert_eq!((DROPPED_HERE.get().samples, DROPPED_HERE.get().weight), (before.samples + 1, before.weight + 7));
    }
}
