//! Reading the rings, under the GVL.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spanprof_core::host::running;
use spanprof_core::{DrainPermit, own_thread_cpu_ns};

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
        let _end = EndOfDrain { began_ns: own_thread_cpu_ns() };
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
        DRAIN_NS.fetch_add(own_thread_cpu_ns().saturating_sub(self.began_ns), Ordering::Relaxed);
        DRAINS.store(false, Ordering::Relaxed);
    }
}

/// CPU time that drains took in this process, nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    DRAIN_NS.load(Ordering::Relaxed)
}

/// In a forked child.
pub(super) fn forget() {
    IS_REQUESTED.store(false, Ordering::Relaxed);
    DRAINS.store(false, Ordering::Relaxed);
    DRAIN_NS.store(0, Ordering::Relaxed);
}
