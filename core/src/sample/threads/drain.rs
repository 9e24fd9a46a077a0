//! Reading the rings of all threads: the profiler's, or a garbage collector's that must keep what is in them.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::registry::{self, lock};
use super::sampling::{Owner, Unseen};
use crate::sample::frames::FrameId;
use crate::sample::record::RECORDS;
use crate::sample::ring::Entry;

/// Held by the one who reads rings; null stands for the first one.
static DRAIN: AtomicPtr<Mutex<()>> = AtomicPtr::new(ptr::null_mut());
static FIRST_DRAIN: Mutex<()> = Mutex::new(());

/// What [`drain`] passes on.
pub(crate) enum Drained<'a> {
    /// An entry of one thread's ring, with a number that is the thread's own as long as it lives.
    Entry(u32, Entry<'a>),
    /// All entries of a thread's ring were passed on. Its kernel id, unless it has ended.
    Read(u32, Option<i32>),
    /// A thread's record is free; its number may be another's next.
    Gone(u32),
    Unseen(Unseen),
}

/// Not held over a fork: who drains may wait for the host. A child has a new one ([`renew_lock`]).
fn lock_drain() -> MutexGuard<'static, ()> {
    let drain = DRAIN.load(Ordering::Acquire);
    // SAFETY: null or leaked, so it lives for ever.
    let drain = unsafe { drain.as_ref() }.unwrap_or(&FIRST_DRAIN);
    drain.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In the child after fork: a thread that does not exist here may hold the parent's.
pub(super) fn renew_lock() {
    DRAIN.store(Box::leak(Box::default()), Ordering::Release);
}

/// Passes on all that there is to read of this profiler, and frees the records of threads that ended. One caller at a time,
/// others wait.
pub(crate) fn drain(owner: Owner, mut f: impl FnMut(Drained<'_>)) {
    let _one = lock_drain();
    // Rings are read without the registry's lock: threads that start must not wait for it. Records stay until `free`.
    let (live, retired, unseen) = {
        let mut registry = lock();
        let Some(registry) = registry.as_mut().filter(|registry| registry.owner == owner) else { return };
        let live: Vec<_> = registry.by_tid.iter().map(|(tid, thread)| (thread.index, Some(*tid))).collect();
        // They stay on their list until they are free, so that they are counted meanwhile. It only grows at its end.
        (live, registry.retired.clone(), std::mem::take(&mut registry.unseen))
    };
    // What a profiler before this one left behind is nobody's any more.
    let own = retired.iter().filter(|(_, whose)| *whose == owner).map(|(index, _)| *index);
    for (index, tid) in live.into_iter().chain(own.clone().map(|index| (index, None))) {
        if let Some(record) = RECORDS.get(index as usize) {
            // SAFETY: DRAIN makes us the only reader, and the record keeps its ring until `free` below.
            unsafe { record.ring.read(|entry| f(Drained::Entry(index, entry))) };
            f(Drained::Read(index, tid));
        }
    }
    for unseen in unseen {
        f(Drained::Unseen(unseen));
    }
    for index in own {
        f(Drained::Gone(index));
    }
    if let Some(registry) = lock().as_mut() {
        registry.retired.drain(..retired.len());
        retired.into_iter().for_each(|(index, whose)| registry.free(index, whose));
    }
}

/// Calls `f` for each frame id of each sample that was taken and not yet drained, for a garbage collector that must
/// keep what they refer to. Takes no lock and does not allocate; about 0.3 ns a frame with warm caches.
///
/// # Safety
/// The caller holds the lock that a [`DrainPermit`](crate::sample::runtime::DrainPermit) stands for, and all draining is done by
/// permit ([`Drain::Requested`](crate::sample::runtime::Drain::Requested)); it may be within `resolve`.
pub unsafe fn for_each_pending_frame(mut f: impl FnMut(FrameId)) {
    for record in registry::used_records() {
        // SAFETY: who reads, and who takes memory away after that, holds the caller's lock.
        unsafe {
            record.ring.peek(|entry| {
                if let Entry::Sample(sample) = entry {
                    sample.frames.iter().copied().for_each(&mut f);
                }
            });
        }
    }
}
