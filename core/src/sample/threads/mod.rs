//! The threads that are sampled: a record each, a registry, and the sweep of /proc/self/task that finds them.
//!
//! A thread gets its record from [`thread_started`] (a runtime's hook), or from the sweep. It loses it at its end where it
//! came by itself, in the destructor of a pthread key, else when a sweep misses it.

mod accounting;
mod drain;
mod lateness;
mod local;
mod parking;
mod pending_signals;
mod proc;
mod registry;
mod ring_pool;
mod run_queue;
mod sampling;
mod tags;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

pub use drain::for_each_pending_frame;
pub(crate) use drain::{Drained, drain};
pub(crate) use lateness::remind_late;
use local::WANTED;
pub use local::thread_started;
pub(crate) use local::{drop_here, drop_waits, find_record, known_record, own_record};
use pending_signals::room_for_timers;
pub(crate) use proc::is_host_gone;
use proc::{list_certain, list_threads};
pub(crate) use registry::lock;
use registry::{IS_SAMPLING, Registry};
pub(crate) use run_queue::{Part, RunQueues};
pub(crate) use sampling::{Counts, Owner, Report, Sampling, Unsampled, Unseen, Why};
pub use tags::{add_thread_tag, describe_thread, remove_thread_tag};

use crate::os::clock;
use crate::os::thread_id::tid;

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
    let since_ns = clock::monotonic_ns();
    let alive = list_threads();
    let is_listed = alive.is_ok();
    let alive = alive.unwrap_or_else(|_| list_certain());
    let room = room_for_timers(0);
    let mut registry = lock();
    let registry = registry.get_or_insert_default();
    if registry.owner != sampling.owner || sampling.owner <= registry.closed {
        return;
    }
    registry.room = room.left;
    registry.sampling = Some(sampling);
    (registry.is_listed, registry.since_ns) = (is_listed, since_ns);
    registry.tags.start(&alive);
    registry.random = RandomState::new().hash_one(tid()) | 1;
    local::prepare();
    IS_SAMPLING.store(true, Ordering::Relaxed);
    registry.sweep(alive, false);
}

/// Looks for threads that came and went; returns why some could not be sampled, at this sweep and at the one before (one
/// that just ends while it is given a timer is none of them). Up to 0.5 ms for a thousand threads, most of it without
/// the registry's lock.
///
/// # Errors
/// The list of threads could not be read, so none is found; those that ended are known by their clocks.
pub(crate) fn sweep(owner: Owner) -> io::Result<Vec<Unsampled>> {
    let alive = list_threads();
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
            registry.is_listed = true;
            let still = registry.unsampled.iter().filter(|(tid, _)| before.contains_key(tid));
            Ok(still.map(|(_, why)| *why).collect())
        }
        Err(error) => {
            registry.sweep(HashSet::new(), true);
            Err(error)
        }
    }
}

/// Gives records to threads that took samples and had none, while somebody had the registry. One that lost its record as it was quiet is
/// such a thread, or one that started just now.
pub(crate) fn give_wanted(owner: Owner) {
    let wanted = WANTED.each_ref().map(|place| place.swap(0, Ordering::Relaxed));
    if wanted.iter().all(|tid| *tid == 0) {
        return;
    }
    if let Some(registry) = lock().as_mut().filter(|registry| registry.samples_for(owner)) {
        for tid in wanted.into_iter().filter(|tid| *tid != 0) {
            // One that is about to end needs none any more.
            if registry.parked.get(&tid).is_none_or(|parked| !parked.leaves) {
                registry.own(tid);
            }
        }
    }
}

/// Whether no profiler was started after this one.
pub(crate) fn is_newest(owner: Owner) -> bool {
    lock().as_ref().is_none_or(|registry| registry.owner <= owner)
}

/// Ends sampling of this profiler, if it samples: all timers are deleted, what they had not accounted for is noted as unseen.
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
    let parents = local::renew(own);
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
