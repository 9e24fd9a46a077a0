//! All threads that have records, and what there is to give to new ones: how a thread gets record, ring and timer, and loses them.

use std::collections::{HashMap, HashSet};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::ring_pool::Rings;
use super::run_queue;
use super::sampling::{Lateness, Owner, Sampling, Unsampled, Unseen, Why};
use crate::context::span_slot;
use crate::context::thread_tags::ThreadTags;
use crate::os::clock;
use crate::profile_type::SampleClock;
use crate::sample::record::{RECORDS, ThreadRecord};
use crate::sample::timer::{self, Plan, Timer};
use crate::stats::Tally;

/// How long retiring waits for a handler to leave. Only a stopped process (a debugger) makes it that long.
pub(super) const LEAVE_TIMEOUT: Duration = Duration::from_millis(200);

/// A thread that has a record.
#[derive(Debug)]
pub(super) struct Sampled {
    pub(super) index: u32,
    pub(super) plan: Plan,
    /// Expiries that were due before the timer was made.
    skipped: u64,
    pub(super) timer: Option<Timer>,
    /// Its expiries when [they were looked at](super::remind_late) last.
    pub(super) counted: u64,
    /// Its samples at the last sweep, and the sweep since which there are no others.
    pub(super) samples: u64,
    pub(super) quiet_since: u64,
}

/// A thread without ring and timer: a quiet one that lent them to another one, or that is about to end, which gets them again when its next
/// expiry is due; or one that found none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub(super) plan: Plan,
    /// Expiries that were accounted for.
    pub(super) accounted: u64,
    /// It announced that it ends. It stays in the list of threads for a while yet.
    pub(super) leaves: bool,
}

/// All threads that have records, and what there is to give to new ones.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(super) sampling: Option<Sampling>,
    pub(super) by_tid: HashMap<i32, Sampled>,
    pub(super) tags: ThreadTags,
    /// The newest profiler that started, also when it has ended, and the newest that may not start again.
    pub(super) owner: Owner,
    pub(super) closed: Owner,
    /// Records whose threads ended or were left, to be drained once more, and whose they were.
    pub(super) retired: Vec<(u32, Owner)>,
    free: Vec<u32>,
    rings: Rings,
    pub(super) unseen: Vec<Unseen>,
    pub(super) unsampled: HashMap<i32, Unsampled>,
    pub(super) parked: HashMap<i32, Parked>,
    pub(super) lateness: Lateness,
    /// Timers that may be made until the next sweep.
    pub(super) room: u64,
    /// When sampling began, and whether all threads that there were then have been listed: one that comes later is a new one.
    pub(super) since_ns: u64,
    pub(super) is_listed: bool,
    /// Sweeps so far, and the threads that found no ring since the last one.
    pub(super) sweeps: u64,
    pub(super) short_of_rings: usize,
    /// What threads did whose records are free again.
    pub(super) written: Tally,
    pub(super) dropped: Tally,
    pub(super) cramped: u64,
    pub(super) deferred: u64,
    pub(super) handler_ns: u64,
    pub(super) random: u64,
}

/// Records ever used; those from here on are new. Changes under the registry's lock.
static USED: AtomicU32 = AtomicU32::new(0);
static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

/// Whether a profiler samples: as in the registry, to be asked without its lock.
pub(super) static IS_SAMPLING: AtomicBool = AtomicBool::new(false);

pub(crate) fn lock() -> MutexGuard<'static, Option<Registry>> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registry, if nobody has it at the moment.
pub(super) fn try_lock() -> Option<MutexGuard<'static, Option<Registry>>> {
    match REGISTRY.try_lock() {
        Ok(registry) => Some(registry),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The records that threads have or had.
pub(super) fn used_records() -> &'static [ThreadRecord] {
    &RECORDS[..USED.load(Ordering::Acquire) as usize]
}

/// Moves a record's generation on and waits, `until` then at most, until no handler is in it.
fn retire(index: u32, until: Instant) {
    let record = &RECORDS[index as usize];
    record.gate.close();
    while !record.gate.is_empty() && Instant::now() < until {
        std::thread::yield_now();
    }
}

impl Registry {
    /// Whether this profiler, and no other, samples.
    pub(super) fn samples_for(&self, owner: Owner) -> bool {
        self.sampling.is_some_and(|sampling| sampling.owner == owner)
    }

    /// Gives a thread a record, and a timer where there are any. `is_new`: it may have started after the profiler did.
    pub(super) fn begin(&mut self, tid: i32, is_new: bool) {
        let Some(sampling) = self.sampling else { return };
        if self.by_tid.contains_key(&tid) {
            return;
        }
        let Some(now) = timer::now(sampling.clock, tid) else { return };
        self.forget_other(tid, now);
        let is_due = self.parked.get(&tid).is_none_or(|parked| parked.plan.due(now) > parked.accounted);
        if is_due || self.unsampled.contains_key(&tid) {
            self.begin_now(tid, now, is_new, sampling);
        }
    }

    /// The record of a thread that takes samples itself. It gets one if it has none, also before its next expiry is due.
    pub(super) fn own(&mut self, tid: i32) -> Option<u32> {
        let sampling = self.sampling?;
        if !self.by_tid.contains_key(&tid) {
            // Its CPU clock tells whether it is there still.
            timer::now(SampleClock::Cpu, tid)?;
            let now = timer::now(sampling.clock, tid)?;
            self.forget_other(tid, now);
            self.begin_now(tid, now, true, sampling);
        }
        self.by_tid.get(&tid).map(|thread| thread.index)
    }

    /// A clock that went back, by more than rounding, is that of a new thread with the number of one that left.
    fn forget_other(&mut self, tid: i32, now: u64) {
        let went_back = |Parked { plan, accounted, .. }: &Parked| {
            plan.due(now) + 1 < *accounted || now.saturating_add(plan.period_ns) < plan.first_ns
        };
        if self.parked.get(&tid).is_some_and(went_back) {
            self.parked.remove(&tid);
        }
    }

    fn begin_now(&mut self, tid: i32, now: u64, is_new: bool, sampling: Sampling) {
        let (plan, accounted) = match self.parked.get(&tid) {
            Some(parked) => (parked.plan, parked.accounted),
            None => {
                let start = if is_new && self.counts_from_birth(now, sampling) { 0 } else { now };
                // A random first expiry: with a full first period threads shorter than it would never be seen.
                let first_ns = start + 1 + self.next_random() % sampling.period_ns;
                (Plan { first_ns, period_ns: sampling.period_ns }, 0)
            }
        };
        match self.try_begin(tid, plan, now, accounted, sampling) {
            Ok(()) => {
                self.parked.remove(&tid);
                self.unsampled.remove(&tid);
            }
            Err(why) => {
                self.short_of_rings += usize::from(why == Unsampled::Ring);
                self.unsampled.insert(tid, why);
                // What it counts from does not change until it has a ring.
                self.parked.entry(tid).or_insert(Parked { plan, accounted, leaves: false });
            }
        }
    }

    /// Whether all CPU time of a thread that was not listed at the start is to count: then it started after the profiler. One that has
    /// burnt more than that allows was there before, and the kernel left it out as another one ended while the list was read.
    fn counts_from_birth(&self, now: u64, sampling: Sampling) -> bool {
        let is_of_cpu = sampling.timers && sampling.clock == SampleClock::Cpu;
        is_of_cpu && self.is_listed && now <= clock::monotonic_ns().saturating_sub(self.since_ns)
    }

    /// Of the expiries of the plan that are over by `now`, `accounted` were accounted for.
    fn try_begin(
        &mut self,
        tid: i32,
        plan: Plan,
        now: u64,
        accounted: u64,
        sampling: Sampling,
    ) -> Result<(), Unsampled> {
        if sampling.timers && self.room == 0 {
            return Err(Unsampled::PendingSignals);
        }
        let skipped = plan.due(now);
        let memory = self.rings.take(sampling.ring_bytes).ok_or(Unsampled::Ring)?;
        let Some(index) = self.record() else {
            self.rings.give_back(memory, true);
            return Err(Unsampled::Ring);
        };
        let record = &RECORDS[index as usize];
        record.ring.give(memory);
        record.period_ns.store(sampling.period_ns, Ordering::Relaxed);
        record.expiries.store(0, Ordering::Relaxed);
        record.ahead.store(0, Ordering::Relaxed);
        let has_clock = sampling.timers && sampling.clock == SampleClock::Cpu;
        let next_ns = plan.first_ns.saturating_add(skipped.saturating_mul(plan.period_ns));
        record.first_ns.store(if has_clock { next_ns } else { u64::MAX }, Ordering::Relaxed);
        let asked = has_clock && sampling.run_queues;
        record.begin_claims(asked.then(|| run_queue::queued_ns(tid)).flatten());
        record.taken_up.store(0, Ordering::Relaxed);
        record.reminded.store(0, Ordering::Relaxed);
        record.thread_tags.store(self.tags.of(tid).0, Ordering::Relaxed);
        record.slot.store(ptr::from_ref(span_slot::claim(tid)).cast_mut(), Ordering::Relaxed);
        let value = u64::from(record.gate.open()) << 32 | u64::from(index);
        let start = || Timer::start(sampling.clock, tid, sampling.signal, value, plan, skipped);
        let timer = sampling.timers.then(start).transpose().map_err(|error| {
            span_slot::release(tid);
            retire(index, Instant::now() + LEAVE_TIMEOUT);
            self.retired.push((index, sampling.owner));
            Unsampled::Timer(error.raw_os_error().unwrap_or(0))
        })?;
        if timer.is_some() {
            self.room = self.room.saturating_sub(1);
            self.note_unseen(Why::Starting, skipped.saturating_sub(accounted), plan);
        }
        let quiet_since = self.sweeps;
        self.by_tid.insert(tid, Sampled { index, plan, skipped, timer, counted: 0, samples: 0, quiet_since });
        Ok(())
    }

    fn note_unseen(&mut self, why: Why, expiries: u64, plan: Plan) {
        if expiries > 0 {
            self.unseen.push(Unseen { why, expiries, weight: expiries * plan.period_ns });
        }
    }

    /// Takes a thread's timer and record away; returns what is known of it, if it can go on.
    fn end(&mut self, tid: i32, why: Why, until: Instant) -> Option<Parked> {
        self.unsampled.remove(&tid);
        let parked = self.parked.remove(&tid).map(|Parked { plan, accounted, .. }| (plan, accounted));
        let (plan, accounted) = self.take_away(tid, until).or(parked)?;
        let Some(Sampling { clock: SampleClock::Cpu, timers: true, .. }) = self.sampling else { return None };
        let due = plan.due(timer::now(SampleClock::Cpu, tid)?);
        self.note_unseen(why, due.saturating_sub(accounted), plan);
        Some(Parked { plan, accounted: due.max(accounted), leaves: true })
    }

    /// The thread itself is about to end. A sweep that finds it still there must not take it for one that just started:
    /// all its CPU time would count twice.
    pub(super) fn leave(&mut self, tid: i32) {
        if let Some(parked) = self.end(tid, Why::Ended, Instant::now() + LEAVE_TIMEOUT) {
            self.parked.insert(tid, parked);
        }
    }

    /// Takes timer and record from a thread; returns its plan, and how many expiries of it were accounted for. Waits `until` then for a
    /// handler to leave.
    pub(super) fn take_away(&mut self, tid: i32, until: Instant) -> Option<(Plan, u64)> {
        let Sampled { index, plan, skipped, timer, counted, .. } = self.by_tid.remove(&tid)?;
        self.lateness.ended += RECORDS[index as usize].counted() - counted;
        self.room = self.room.saturating_add(u64::from(timer.is_some()));
        // No signal comes after this but those that are on their way.
        drop(timer);
        let asked = self.sampling.is_some_and(|sampling| sampling.run_queues);
        RECORDS[index as usize].end_claims(asked.then(|| run_queue::queued_ns(tid)).flatten());
        retire(index, until);
        span_slot::release(tid);
        self.retired.push((index, self.owner));
        Some((plan, skipped + RECORDS[index as usize].expiries.load(Ordering::Relaxed)))
    }

    /// Gives a drained record back. One that a handler has not left yet is drained once more.
    pub(super) fn free(&mut self, index: u32, whose: Owner) {
        let record = &RECORDS[index as usize];
        if !record.gate.is_empty() {
            self.retired.push((index, whose));
            return;
        }
        if let Some(memory) = record.ring.take() {
            self.rings.give_back(memory, self.sampling.is_some());
        }
        self.settle(record, whose);
        self.free.push(index);
    }

    /// `is_new`: threads that are not known may have started after the profiler did.
    pub(super) fn sweep(&mut self, alive: HashSet<i32>, is_new: bool) {
        // A thread that is not on the list may have started since the list was made: its clock tells.
        let gone = |tid: &&i32| !alive.contains(tid) && timer::now(SampleClock::Cpu, **tid).is_none();
        let known = self.by_tid.keys().chain(self.unsampled.keys()).chain(self.parked.keys()).chain(self.tags.tids());
        let gone: HashSet<i32> = known.filter(gone).copied().collect();
        let until = Instant::now() + LEAVE_TIMEOUT;
        for tid in gone {
            self.end(tid, Why::Ended, until);
            self.tags.end(tid);
        }
        let report = self.sampling.map(|sampling| sampling.report).filter(|report| report.id || report.name);
        for tid in alive {
            self.begin(tid, is_new);
            // Not at the start, when the runtime has had no chance to say what it knows.
            if is_new && let Some(report) = report {
                self.describe(tid, report);
            }
        }
        self.part_with_rings();
    }

    pub(super) fn stop(&mut self) {
        // All timers go before the first wait: a thread that a debugger holds in its handler holds up no other.
        for thread in self.by_tid.values_mut() {
            thread.timer = None;
        }
        for thread in self.by_tid.values() {
            RECORDS[thread.index as usize].gate.close();
        }
        let until = Instant::now() + LEAVE_TIMEOUT;
        let threads: Vec<i32> = self.by_tid.keys().chain(self.parked.keys()).copied().collect();
        for tid in threads {
            self.end(tid, Why::Stopped, until);
        }
        self.sampling = None;
        self.unsampled.clear();
    }

    pub(super) fn forget_all(&mut self) {
        for (tid, thread) in std::mem::take(&mut self.by_tid) {
            // The parent's timers do not exist here, and their numbers may soon be those of new ones.
            let _ = ManuallyDrop::new(thread.timer);
            span_slot::release(tid);
            self.retired.push((thread.index, self.owner));
        }
        for (index, whose) in std::mem::take(&mut self.retired) {
            let record = &RECORDS[index as usize];
            record.gate.close();
            // Handlers that were inside ran on threads that no longer exist.
            record.gate.abandon();
            self.free(index, whose);
        }
        self.sampling = None;
        self.unseen.clear();
        self.parked.clear();
        self.unsampled.clear();
        self.forget_counts();
    }

    fn record(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = USED.load(Ordering::Relaxed);
        RECORDS.get(index as usize)?;
        // Release: pairs with `used_records`; the record is as it was made.
        USED.store(index + 1, Ordering::Release);
        Some(index)
    }

    /// xorshift64: spreads first expiries, no more is asked of it.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::os::thread_id::tid;
    use crate::sample::threads::sampling::Report;

    const PERIOD_NS: u64 = 1_000_000;

    fn registry(is_listed: bool, since_ns: u64) -> Registry {
        let sampling = Sampling {
            owner: 1,
            clock: SampleClock::Cpu,
            period_ns: PERIOD_NS,
            timers: true,
            // Ignored where it has no handler.
            signal: libc::SIGURG,
            ring_bytes: 4096,
            run_queues: false,
            report: Report::default(),
        };
        Registry { sampling: Some(sampling), room: 8, random: 1, is_listed, since_ns, ..Registry::default() }
    }

    /// Calls `then` with the number of a thread that has used so much CPU time and waits now, and with what its clock shows.
    fn with_thread(cpu_ns: u64, then: impl FnOnce(i32, u64)) {
        let (tell, told) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let clock = || timer::now(SampleClock::Cpu, tid()).expect("its own clock");
            while clock() < cpu_ns {}
            tell.send(tid()).expect("a test");
            let _ = ends.recv();
        });
        let tid = told.recv().expect("a thread");
        then(tid, timer::now(SampleClock::Cpu, tid).expect("it waits"));
        drop(end);
        thread.join().expect("no panic");
    }

    fn unseen_ns(registry: &Registry) -> u64 {
        registry.unseen.iter().map(|unseen| unseen.weight).sum()
    }

    #[test]
    fn a_thread_that_started_after_the_profiler_counts_from_its_birth() {
        let _records = lock();
        let mut registry = registry(true, clock::monotonic_ns());
        with_thread(5 * PERIOD_NS, |tid, cpu_ns| {
            assert!(registry.own(tid).is_some());
            let unseen_ns = unseen_ns(&registry);
            assert!((4 * PERIOD_NS..=cpu_ns + PERIOD_NS).contains(&unseen_ns), "{unseen_ns} of {cpu_ns}");
        });
        registry.stop();
    }

    #[test]
    fn an_older_thread_that_had_no_ring_at_the_start_counts_from_the_start_when_it_takes_a_sample() {
        let _records = lock();
        let mut registry = registry(true, 0);
        registry.room = 0;
        with_thread(5 * PERIOD_NS, |tid, cpu_ns| {
            registry.sweep([tid].into(), false);
            assert_eq!((registry.own(tid), registry.unsampled.len()), (None, 1));
            registry.room = 8;
            assert!(registry.own(tid).is_some());
            let plan = registry.by_tid[&tid].plan;
            assert!(plan.first_ns + PERIOD_NS > cpu_ns, "{plan:?} of {cpu_ns}");
            assert_eq!((unseen_ns(&registry), registry.parked.len(), registry.unsampled.len()), (0, 0, 0));
        });
        registry.stop();
    }

    #[test]
    fn an_older_thread_that_was_not_listed_at_the_start_counts_from_its_first_sample() {
        let _records = lock();
        // Without a list nothing tells when it started, and one that the kernel left out has burnt more than a new one could.
        for is_listed in [false, true] {
            let mut registry = registry(is_listed, 0);
            with_thread(5 * PERIOD_NS, |tid, _| {
                registry.since_ns = if is_listed { clock::monotonic_ns() } else { 0 };
                assert!(registry.own(tid).is_some());
                assert_eq!(unseen_ns(&registry), 0);
            });
            registry.stop();
        }
    }

    #[test]
    fn a_new_thread_with_the_number_of_one_that_had_no_ring_has_a_plan_of_its_own() {
        let _records = lock();
        let mut registry = registry(true, 0);
        with_thread(PERIOD_NS, |tid, cpu_ns| {
            let plan = Plan { first_ns: cpu_ns + 100 * PERIOD_NS, period_ns: PERIOD_NS };
            registry.parked.insert(tid, Parked { plan, accounted: 0, leaves: false });
            assert!(registry.own(tid).is_some());
            assert!(registry.by_tid[&tid].plan.first_ns <= PERIOD_NS);
        });
        registry.stop();
    }
}
