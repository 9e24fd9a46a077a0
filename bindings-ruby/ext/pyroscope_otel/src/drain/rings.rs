//! Reading the rings, under the GVL.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spanprof_core::DrainPermit;
use spanprof_core::host::running;

use crate::symbols::functions;
use crate::value::Gvl;

/// A request that nobody has answered.
pub(super) static IS_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Somebody drains; a drain may run Ruby's jobs, hence another drain.
static DRAINS: AtomicBool = AtomicBool::new(false);
/// CPU time of draining and looking up names, which the program's threads do for us.
static DRAIN_NS: AtomicU64 = AtomicU64::new(0);

/// Answers the request, if there is one.
pub(super) fn drain() {
    // SAFETY: called by Ruby.
    let gvl = unsafe { Gvl::held() };
    if IS_REQUESTED.load(Ordering::Relaxed) && !DRAINS.swap(true, Ordering::Relaxed) {
        let _end = EndOfDrain { began_ns: thread_cpu_ns() };
        IS_REQUESTED.store(false, Ordering::Relaxed);
        functions::rotate_generations(gvl);
        if let Some(profiler) = running() {
            // SAFETY: the GVL is held until this returns.
            profiler.drain(&unsafe { DrainPermit::new() });
        }
    }
}

struct EndOfDrain {
    began_ns: u64,
}

impl Drop for EndOfDrain {
    fn drop(&mut self) {
        DRAIN_NS.fetch_add(thread_cpu_ns().saturating_sub(self.began_ns), Ordering::Relaxed);
        DRAINS.store(false, Ordering::Relaxed);
    }
}

/// CPU time that drains took in this process, nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    DRAIN_NS.load(Ordering::Relaxed)
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that each thread has, and a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// In a forked child.
pub(super) fn forget() {
    IS_REQUESTED.store(false, Ordering::Relaxed);
    DRAINS.store(false, Ordering::Relaxed);
    DRAIN_NS.store(0, Ordering::Relaxed);
}
