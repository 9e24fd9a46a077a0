//! One timer a thread: it counts that thread's CPU time and signals that very thread.
//!
//! The kernel looks at CPU timers at its tick, so an expiry may be seen late and several at once; `si_overrun` counts
//! them exactly. What a thread's clock says is due and its timer did not get to tell is the closing sample's.

use std::io;
use std::mem;
use std::time::Duration;

use crate::os::clock::{self, timespec};
use crate::profile_type::SampleClock;

/// The plan of a thread's expiries: `first`, then one each `period`, on the thread's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) first_ns: u64,
    pub(crate) period_ns: u64,
}

impl Plan {
    /// Expiries due when the clock shows `now_ns`.
    pub(crate) fn due(&self, now_ns: u64) -> u64 {
        match now_ns.checked_sub(self.first_ns) {
            Some(since) => since / self.period_ns + 1,
            None => 0,
        }
    }
}

/// A kernel timer, by its number; dropped = deleted. The kernel is asked without libc, as a program may have preloaded functions that change the
/// time (libfaketime).
#[derive(Debug)]
pub(crate) struct Timer(libc::c_int);

impl Timer {
    /// Makes a timer that signals thread `tid` with `signal` and `value` by `plan`, starting with the expiry number
    /// `skipped`. The clock stands on the thread's CPU time or on monotonic time.
    pub(crate) fn start(
        clock: SampleClock,
        tid: i32,
        signal: i32,
        value: u64,
        plan: Plan,
        skipped: u64,
    ) -> io::Result<Self> {
        // SAFETY: a sigevent is plain bits.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = tid;
        #[expect(clippy::cast_possible_truncation, reason = "only 64-bit targets are sampled")]
        let value = value as usize;
        event.sigev_value.sival_ptr = std::ptr::without_provenance_mut(value);
        let clock_id = clock_of(clock, tid);
        let mut id = 0;
        // SAFETY: both pointers are valid; the kernel checks clock, signal and thread.
        if unsafe { libc::syscall(libc::SYS_timer_create, clock_id, &raw mut event, &raw mut id) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let timer = Self(id);
        if timer.set(plan, skipped) { Ok(timer) } else { Err(io::Error::last_os_error()) }
    }

    /// Goes on with the plan from the expiry number `skipped` on. One that is due comes at once. What was due before it and not told is
    /// not told any more. False: the kernel refused.
    pub(crate) fn set(&self, plan: Plan, skipped: u64) -> bool {
        let at = plan.first_ns.saturating_add(skipped.saturating_mul(plan.period_ns));
        let times = libc::itimerspec {
            it_interval: timespec(Duration::from_nanos(plan.period_ns)),
            it_value: timespec(Duration::from_nanos(at)),
        };
        // SAFETY: the timer is ours and `times` is valid.
        let done = unsafe {
            let before = std::ptr::null_mut::<libc::itimerspec>();
            libc::syscall(libc::SYS_timer_settime, self.0, libc::TIMER_ABSTIME, &raw const times, before)
        };
        done == 0
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the id is ours and deleted once.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
}

/// What the clock of a thread's timer shows now; `None` if the thread is gone.
pub(crate) fn now(clock: SampleClock, tid: i32) -> Option<u64> {
    clock::read(clock_of(clock, tid))
}

fn clock_of(clock: SampleClock, tid: i32) -> libc::clockid_t {
    match clock {
        SampleClock::Cpu => clock::thread_cpu_clock(tid),
        SampleClock::Wall => libc::CLOCK_MONOTONIC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_counts_the_first_expiry_and_each_period_after_it() {
        let plan = Plan { first_ns: 3, period_ns: 10 };
        assert_eq!([0, 2, 3, 12, 13, 33].map(|now| plan.due(now)), [0, 0, 1, 1, 2, 4]);
    }
}
