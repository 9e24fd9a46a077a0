//! The threads that are sampled: a record each, a registry, and the sweep of /proc/self/task that finds them.
//!
//! A thread gets its record from [`thread_started`] (a runtime's hook), or from the sweep. It loses it in a TLS destructor at
//! its end where it came by itself, else when a sweep misses it.

mod drain;
mod pending_signals;
mod registry;
mod rings;
mod sampling;
mod tasks;

use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use drain::for_each_pending_word;
pub(crate) use drain::{Drained, drain};
use pending_signals::room_for_timers;
use registry::Registry;
pub(crate) use registry::lock;
pub(crate) use sampling::{Counts, Owner, Report, Sampling, Unsampled, Unseen, Why};
pub(crate) use tasks::is_host_gone;
use tasks::{alive, certain};

use super::record::{RECORDS, ThreadRecord, by_signal_value};
use super::timer;
use crate::context::thread_tags::ThreadTags;
use crate::os::fork;
use crate::os::thread_id::tid;
use crate::profile_type::SampleClock;
use crate::stats::Tally;

/// As in the registry, to be asked without its lock.
static IS_SAMPLING: AtomicBool = AtomicBool::new(false);

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

/// Tells that the calling thread just started, so that it is sampled from here on and gives its closing sample when it
/// ends, however short it lives. About 5 µs; 1 ns while no profiler runs. Never from a signal handler.
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

/// The calling thread's record, and the value to enter it with; it is made if there is none.
pub(crate) fn own_record() -> Option<(&'static ThreadRecord, u64)> {
    if !IS_SAMPLING.load(Ordering::Relaxed) || fork::forked() {
        return None;
    }
    let known = AT_EXIT.try_with(|exit| exit.value.get()).ok()?;
    if let Some(record) = by_signal_value(known).filter(|record| record.is_for(known)) {
        return Some((record, known));
    }
    let tid = tid();
    let index = lock().as_mut()?.own(tid)?;
    let record = &RECORDS[index as usize];
    let value = u64::from(record.gate.generation.load(Ordering::Relaxed)) << 32 | u64::from(index);
    let _ = AT_EXIT.try_with(|exit| (exit.tid.set(tid), exit.value.set(value)));
    Some((record, value))
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

/// Adds a tag to the samples of the calling thread, whatever context it is in; false = no profiler runs. Takes a lock:
/// about 1 µs. Of two values for one name the one added last counts.
pub fn add_thread_tag(name: &str, value: &str) -> bool {
    change_tags(|tags, tid| tags.add(tid, name, value))
}

/// Takes back the last [`add_thread_tag`] of just this pair; false = no profiler runs.
pub fn remove_thread_tag(name: &str, value: &str) -> bool {
    change_tags(|tags, tid| tags.remove(tid, name, value))
}

fn change_tags(change: impl FnOnce(&mut ThreadTags, i32)) -> bool {
    thread_started();
    IS_SAMPLING.load(Ordering::Relaxed) && change_tags_of(tid(), change)
}

/// Says which tags describe a thread, by the kernel's id, where [`Config::report_thread_id`](crate::Config) or
/// `report_thread_name` asks for them. A thread of which nobody says it has its kernel id and the kernel's name for it.
pub fn describe_thread(tid: i32, description: Vec<(String, String)>) {
    if IS_SAMPLING.load(Ordering::Relaxed) && !fork::forked() {
        change_tags_of(tid, |tags, tid| tags.describe(tid, description));
    }
}

fn change_tags_of(tid: i32, change: impl FnOnce(&mut ThreadTags, i32)) -> bool {
    // One that has ended would keep its tags, and its number's next owner would have them.
    if timer::now(SampleClock::Cpu, tid).is_none() {
        return false;
    }
    let mut registry = lock();
    let Some(registry) = registry.as_mut() else { return false };
    change(&mut registry.tags, tid);
    registry.show_tags(tid);
    true
}

/// A number for a profiler that is about to start.
pub(crate) fn new_owner() -> Owner {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Starts sampling: threads get timers from now on, and counting begins again.
pub(crate) fn start(sampling: Sampling) {
    {
        let mut registry = lock();
        let registry = registry.get_or_insert_default();
        registry.owner = sampling.owner;
        registry.forget_counts();
        registry.unseen.clear();
    }
    start_again(sampling);
}

/// Starts sampling again, after [`stop`]; nothing happens after [`close`].
pub(crate) fn start_again(sampling: Sampling) {
    let alive = alive().unwrap_or_else(|_| certain());
    let room = room_for_timers(0);
    let mut registry = lock();
    let registry = registry.get_or_insert_default();
    if registry.owner != sampling.owner || sampling.owner <= registry.closed {
        return;
    }
    registry.room = room.left;
    registry.sampling = Some(sampling);
    registry.tags.start(&alive);
    registry.random = RandomState::new().hash_one(tid()) | 1;
    IS_SAMPLING.store(true, Ordering::Relaxed);
    registry.sweep(alive, false);
}

/// Looks for threads that came and went; returns why some could not be sampled, at this look and at the one before (one
/// that just ends while it is given a timer is none of them). Up to 0.5 ms for a thousand threads, most of it without
/// the registry's lock.
///
/// # Errors
/// The list of threads could not be read, so none is found; those that ended are known by their clocks.
pub(crate) fn sweep(owner: Owner) -> io::Result<Vec<Unsampled>> {
    let alive = alive();
    let room = room_for_timers(alive.as_ref().map_or(0, HashSet::len));
    let mut registry = lock();
    let Some(registry) = registry.as_mut().filter(|registry| registry.samples_for(owner)) else {
        return Ok(Vec::new());
    };
    registry.part_with_timers(room.too_many);
    registry.room = room.left;
    match alive {
        Ok(alive) => {
            let before = registry.unsampled.clone();
            registry.sweep(alive, true);
            let still = registry.unsampled.iter().filter(|(tid, _)| before.contains_key(tid));
            Ok(still.map(|(_, why)| *why).collect())
        }
        Err(error) => {
            registry.sweep(HashSet::new(), true);
            Err(error)
        }
    }
}

/// Whether no profiler was started after this one.
pub(crate) fn is_newest(owner: Owner) -> bool {
    lock().as_ref().is_none_or(|registry| registry.owner <= owner)
}

/// Ends sampling of this profiler, if it samples: all timers are deleted, what they had not told is noted as unseen.
/// Rings stay to be drained.
pub(crate) fn stop(owner: Owner) {
    if let Some(registry) = lock().as_mut().filter(|registry| registry.samples_for(owner)) {
        IS_SAMPLING.store(false, Ordering::Relaxed);
        registry.stop();
    }
}

/// As [`stop`], for good: nothing starts timers of this profiler, nor of one before it, any more.
pub(crate) fn close(owner: Owner) {
    if let Some(registry) = lock().as_mut() {
        registry.closed = registry.closed.max(owner);
    }
    stop(owner);
}

/// In the child after fork: no thread but the caller's exists, and no timer.
pub(crate) fn forget_all() {
    IS_SAMPLING.store(false, Ordering::Relaxed);
    let own = tid();
    let parents = AT_EXIT.try_with(|exit| exit.tid.replace(own)).unwrap_or_default();
    drain::renew_lock();
    if let Some(registry) = lock().as_mut() {
        registry.forget_all();
        registry.tags.after_fork(parents, own);
    }
}

/// What was counted for a profiler; nothing any more once another one has started.
pub(crate) fn counts(owner: Owner) -> Counts {
    lock().as_ref().filter(|registry| registry.owner == owner).map(Registry::counts).unwrap_or_default()
}
