//! Whose time a span's is, for exact sums: of the threads that are in it at once one *owns* it, and what others wait for is beside it.
//! So what is added is never more than the span's wall time.
//!
//! Managed code makes the first that comes its owner, and none as that one leaves (`Context/SpanTimes.cs`). Who is still in the span then
//! and waits becomes the owner at the wait's end, and has of the wait what came after.

use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use spanprof_core::{SpanTimes, monotonic_ns, own_thread_cpu_ns};

use crate::span::record;
use crate::stack::wait_calls;

/// Memory of managed code's, which frees none of it: a thread that is late adds to what is there. `Interop/Times.cs` has the same.
#[repr(C)]
#[derive(Debug, Default)]
struct Times {
    sums: SpanTimes,
    /// The block of the thread that owns the span, 0: none does.
    owner: AtomicU64,
    /// Since when none does, by CLOCK_MONOTONIC.
    free_since: AtomicU64,
}

const _: () = assert!(offset_of!(Times, sums) == 0 && offset_of!(Times, owner) == 208);
const _: () = assert!(offset_of!(Times, free_since) == 216 && size_of::<Times>() == 224);

/// What of a wait of the calling thread, which is just over, is its span's own. `times` are those in a [`Times`], as all of this
/// package's spans have them. Async-signal-safe.
pub(crate) fn own(times: &SpanTimes, ns: u64) -> u64 {
    let times: *const Times = ptr::with_exposed_provenance(ptr::from_ref(times).addr());
    // SAFETY: managed code made one, and frees none.
    let Times { owner, free_since, .. } = unsafe { &*times };
    let own = record::own().addr() as u64;
    match owner.load(Ordering::Relaxed) {
        found if found == own => ns,
        0 if owner.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok() => {
            ns.min(monotonic_ns().saturating_sub(free_since.load(Ordering::Relaxed)))
        }
        _ => 0,
    }
}

/// Spans have times from now on (1), or those of one processor fewer do (0).
#[unsafe(no_mangle)]
pub extern "C" fn spanprof_want_times(wanted: u32) {
    if wanted == 0 {
        spanprof_core::unwant_span_times();
    } else {
        spanprof_core::want_span_times();
    }
}

/// The calling thread's CPU time in nanoseconds. 0.3 µs: a system call.
#[unsafe(no_mangle)]
pub extern "C" fn spanprof_own_cpu() -> u64 {
    own_thread_cpu_ns()
}

/// A span has ended that lasted `wall_ns`, and its own thread ran for `cpu_ns` meanwhile.
///
/// # Safety
/// `times` are of a span of this package.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spanprof_add_cpu(times: *const SpanTimes, cpu_ns: u64, wall_ns: u64) {
    // SAFETY: the caller's promise: they begin with the sums, and are never freed.
    unsafe { &*times }.add_cpu(cpu_ns, wall_ns);
}

/// What the calling thread waits for from here on is of one kind (`end` 0), so that is learned how these are told from other waits: 1, unless
/// another thread is at it. Or that was all, it was of this `kind`, and it may have waited for something else (1) or not (2): 1 if it is known.
#[unsafe(no_mangle)]
pub extern "C" fn spanprof_learn_wait(kind: u32, end: u32) -> u8 {
    u8::from(if end == 0 { wait_calls::begin() } else { wait_calls::end(kind as usize, end == 2) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_owns_a_span_and_who_stays_has_of_a_wait_what_came_after_that_one_left() {
        record::spanprof_block();
        let times = Box::new(Times::default());
        let sums: *const SpanTimes = ptr::with_exposed_provenance((&raw const *times).expose_provenance());
        // SAFETY: they live to the end of the test.
        let own = |ns| own(unsafe { &*sums }, ns);
        times.owner.store(1, Ordering::Relaxed);
        assert_eq!(own(5_000), 0, "another thread's");
        let left = monotonic_ns();
        times.free_since.store(left, Ordering::Relaxed);
        times.owner.store(0, Ordering::Relaxed);
        let credit = own(u64::MAX);
        assert!(credit <= monotonic_ns() - left, "{credit}");
        assert_eq!(own(5_000), 5_000, "its own from then on");
    }
}
