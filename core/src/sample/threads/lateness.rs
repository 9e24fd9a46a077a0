//! Threads whose timers are late, and are reminded.
//!
//! The kernel looks at CPU timers at its tick, of whoever runs then. Where threads share a processor and take turns in step with the
//! tick, it is always the same one that meets it: the timers of the others tell nothing for up to a second (measured on Linux 6.18, two
//! threads that burn: up to 730 ms of CPU time), and then all of it at once, in whatever span and function the thread is in by then. So
//! the CPU time of the process is compared with what samples stand for, and where much is owed each thread's clock is asked. The timer of
//! one that is late and runs is set to an expiry that is past, so its signal comes at once.
//!
//! Whether it runs is looked up in /proc, a few microseconds before. A thread that blocks in a system call in between gets its signal there:
//! what no handler restarts (`poll`, `nanosleep`, …) then ends with EINTR, which a timer of CPU time by itself does not cause.

use std::sync::atomic::Ordering;

use super::proc::is_running;
use super::registry::{Registry, lock};
use super::sampling::Owner;
use crate::profile_type::SampleClock;
use crate::sample::record::{RECORDS, REMINDED};
use crate::sample::timer;

/// What makes a thread late, in expiries and in their time. One or two may be, by the tick, which is each 10 ms on some kernels, and by how
/// the thread's time falls into it.
const LATE: u64 = 3;
const LATE_NS: u64 = 30_000_000;
/// What the process owes before threads are asked, likewise.
const OWED: u64 = 5;
const OWED_NS: u64 = 50_000_000;

/// Reminds the threads that are late, once the process has used so much CPU time; tells whether any was. Some 20 ns a thread, and
/// 0.3 µs where much is owed.
pub(crate) fn remind_late(owner: Owner, cpu_ns: u64) -> bool {
    lock().as_mut().filter(|registry| registry.samples_for(owner)).is_some_and(|registry| registry.remind_late(cpu_ns))
}

impl Registry {
    fn remind_late(&mut self, cpu_ns: u64) -> bool {
        let Some(sampling) = self.sampling.filter(|sampling| sampling.timers && sampling.clock == SampleClock::Cpu)
        else {
            return false;
        };
        let mut counted = std::mem::take(&mut self.lateness.ended);
        for thread in self.by_tid.values_mut() {
            let now = RECORDS[thread.index as usize].counted();
            counted += now - std::mem::replace(&mut thread.counted, now);
        }
        let lateness = &mut self.lateness;
        let used_ns = cpu_ns.saturating_sub(std::mem::replace(&mut lateness.cpu_ns, cpu_ns));
        lateness.owed_ns = (lateness.owed_ns + used_ns).saturating_sub(counted * sampling.period_ns);
        if lateness.owed_ns < OWED_NS.max(OWED * sampling.period_ns) && !lateness.late {
            return false;
        }
        (lateness.owed_ns, lateness.late) = (0, false);
        for (&tid, thread) in &self.by_tid {
            let record = &RECORDS[thread.index as usize];
            let Some((timer, now_ns)) = thread.timer.as_ref().zip(timer::now(SampleClock::Cpu, tid)) else { continue };
            if record.due(now_ns) < LATE.max(LATE_NS / sampling.period_ns) {
                continue;
            }
            // One that was reminded and has not taken it yet holds its signals back; one that waits would be woken.
            if record.reminded.load(Ordering::Relaxed) == REMINDED || !is_running(tid) {
                continue;
            }
            record.reminded.store(REMINDED, Ordering::Relaxed);
            if timer.set(thread.plan, thread.plan.due(now_ns).saturating_sub(1)) {
                self.lateness.late = true;
            } else {
                record.reminded.store(0, Ordering::Relaxed);
            }
        }
        self.lateness.late
    }
}
