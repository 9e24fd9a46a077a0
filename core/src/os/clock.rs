//! Clocks: wall time for stamps, monotonic time for durations, CPU time for weights.

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel's `clock_gettime`; null: libc's, or what the program put in its place.
static SOURCE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// Where clocks are read from now on.
///
/// # Safety
/// A function like `clock_gettime`, async-signal-safe, which stays where it is.
pub(crate) unsafe fn set_source(function: *const ()) {
    SOURCE.store(function.cast_mut(), Ordering::Relaxed);
}

/// Whether that was told.
#[cfg(test)]
pub(crate) fn has_source() -> bool {
    !SOURCE.load(Ordering::Relaxed).is_null()
}

/// Nanoseconds since the epoch, by CLOCK_REALTIME.
pub(crate) fn unix_nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// CLOCK_MONOTONIC. Async-signal-safe, and no system call. Hot: about 20 ns.
#[inline]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// CPU time of the whole process, nanoseconds.
pub(crate) fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// CPU time of a thread of this process; `None` if there is no such thread.
pub(crate) fn thread_cpu_ns(tid: i32) -> Option<u64> {
    read(thread_cpu_clock(tid))
}

/// CPU time of the calling thread.
pub(crate) fn own_thread_cpu() -> Duration {
    Duration::from_nanos(own_thread_cpu_ns())
}

/// CPU time of the calling thread, nanoseconds. Async-signal-safe; a system call.
#[inline]
pub fn own_thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// The kernel's clock id of a thread's CPU time (CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED), good from any thread.
pub(crate) fn thread_cpu_clock(tid: i32) -> libc::clockid_t {
    (!tid << 3) | 6
}

/// Nanoseconds of a clock.
pub(crate) fn read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let source = SOURCE.load(Ordering::Relaxed);
    let clock_gettime: ClockGettime = if source.is_null() {
        libc::clock_gettime
    } else {
        // SAFETY: such a function, as who set it promises.
        unsafe { mem::transmute::<*mut (), ClockGettime>(source) }
    };
    // SAFETY: `time` is valid to write to; an unknown clock is an error, not undefined.
    let done = unsafe { clock_gettime(clock, &raw mut time) } == 0;
    let nanos =
        u64::try_from(time.tv_sec).ok()?.checked_mul(1_000_000_000)?.checked_add(u64::try_from(time.tv_nsec).ok()?)?;
    done.then_some(nanos)
}

/// The kernel's form of a duration.
pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
