//! The threads that are sampled: a record each, a registry, and the sweep of /proc/self/task that finds them.
//!
//! A thread gets its record from [`thread_started`] (a runtime's hook), or from the sweep. It loses it in a TLS destructor at
//! its end where it came by itself, else when a sweep misses it.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs::DirEntry;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::own_thread;
use super::record::{RECORDS, ThreadRecord, by_signal_value};
use super::ring::{Entry, Memory};
use super::timer::{self, Plan, SampleClock, Timer};
use crate::context::fork;
use crate::context::span_slot::{self, tid};
use crate::context::thread_tags::ThreadTags;
use crate::stats::Tally;

/// Memory of all rings together. A thread beyond it gets the ring of the one that was quiet for longest, or is counted as
/// unsampled if none is.
const MAX_RING_BYTES: usize = 64 << 20;
/// Rings of ended threads that are kept mapped for the next ones.
const SPARE_RINGS: usize = 32;
/// How long retiring waits for a handler to leave. Only a stopped process (a debugger) makes it that long.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(200);

/// A profiler's number: what one that was given up does late changes nothing of the one after it. The later the higher.
pub(crate) type Owner = u64;

/// Samples that no handler took: weight that a thread's clock says is due, without a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unseen {
    pub(crate) why: Why,
    pub(crate) expiries: u64,
    pub(crate) weight: u64,
}

/// Why nobody saw the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It ran before its timer was made.
    Starting,
    /// It ended before the kernel's tick told of the expiry.
    Ended,
    /// The profiler stopped before that.
    Stopped,
}

/// How threads are sampled, while a profiler runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    pub(crate) owner: Owner,
    pub(crate) clock: SampleClock,
    pub(crate) period_ns: u64,
    /// Whether threads get timers; without, a thread gets a ring when it takes a sample itself.
    pub(crate) timers: bool,
    pub(crate) signal: i32,
    pub(crate) ring_bytes: usize,
    pub(crate) report: Report,
}

/// Which tags describe threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) id: bool,
    pub(crate) name: bool,
}

/// A thread that has a record.
#[derive(Debug)]
struct Sampled {
    index: u32,
    plan: Plan,
    /// Expiries that were due before the timer was made.
    skipped: u64,
    timer: Option<Timer>,
    /// Its samples at the last look, and the look since which there are no others.
    samples: u64,
    quiet_since: u64,
}

/// A quiet thread whose ring was given to another one, or one that is about to end. It gets a ring again when its next
/// expiry is due.
#[derive(Clone, Copy, Debug)]
struct Parked {
    plan: Plan,
    /// Expiries that were told.
    told: u64,
    /// It told that it ends. It stays in the list of threads for a while yet.
    leaves: bool,
}

/// What a thread that is not sampled has none of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsampled {
    /// The kernel's answer to timer_create.
    Timer(i32),
    /// A timer takes one of the signals that may be pending for the user, and the last of them are left to the host.
    PendingSignals,
    /// All rings together have as much memory as they may have, or the kernel gives no more.
    Ring,
}

/// All threads that have records, and what there is to give to new ones.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    sampling: Option<Sampling>,
    by_tid: HashMap<i32, Sampled>,
    tags: ThreadTags,
    /// The newest profiler that started, also when it has ended, and the newest that may not start again.
    owner: Owner,
    closed: Owner,
    /// What was counted for the one before it.
    before: Option<(Owner, Counts)>,
    /// Records whose threads ended or were left, to be drained once more, and whose they were.
    retired: Vec<(u32, Owner)>,
    free: Vec<u32>,
    spare: Vec<Memory>,
    ring_bytes: usize,
    unseen: Vec<Unseen>,
    unsampled: HashMap<i32, Unsampled>,
    parked: HashMap<i32, Parked>,
    /// Timers that may be made until the next look for threads.
    room: u64,
    /// Looks for threads so far, and the threads that found no ring since the last one.
    looks: u64,
    short_of_rings: usize,
    /// What threads did whose records are free again.
    written: Tally,
    dropped: Tally,
    deferred: u64,
    handler_ns: u64,
    random: u64,
}

/// Records ever used; those from here on are new. Changes under the registry's lock.
static USED: AtomicU32 = AtomicU32::new(0);
static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);
/// Held by the one who reads rings; null stands for the first one.
static DRAIN: AtomicPtr<Mutex<()>> = AtomicPtr::new(ptr::null_mut());
static FIRST_DRAIN: Mutex<()> = Mutex::new(());
/// As in the registry, to be asked without its lock.
static IS_SAMPLING: AtomicBool = AtomicBool::new(false);

pub(crate) fn lock() -> MutexGuard<'static, Option<Registry>> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// Calls `f` for each frame word of each sample that was taken and not yet drained, for a garbage collector that must
/// keep what they refer to. Takes no lock and does not allocate; about 0.3 ns a word with warm caches.
///
/// # Safety
/// The caller holds the lock that a [`DrainPermit`](super::runtime::DrainPermit) stands for, and all draining is done by
/// permit ([`Drain::Requested`](super::runtime::Drain::Requested)); it may be within `resolve`.
pub unsafe fn for_each_pending_word(mut f: impl FnMut(u64)) {
    for record in &RECORDS[..USED.load(Ordering::Acquire) as usize] {
        // SAFETY: who reads, and who takes memory away after that, holds the caller's lock.
        unsafe {
            record.ring.look(|entry| {
                if let Entry::Sample(sample) = entry {
                    sample.frames.iter().copied().for_each(&mut f);
                }
            });
        }
    }
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
        registry.before = Some((registry.owner, registry.counts()));
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

/// The threads that there must be: the main one and the caller.
fn certain() -> HashSet<i32> {
    // SAFETY: getpid takes nothing and cannot fail; it is the id of the main thread.
    let main = unsafe { libc::getpid() };
    let own = own_thread::tids();
    [main, tid()].into_iter().filter(|tid| !own.contains(tid)).collect()
}

/// Kernel ids of the process's threads, ours left out.
fn alive() -> io::Result<HashSet<i32>> {
    let tasks: Vec<DirEntry> = std::fs::read_dir("/proc/self/task")?.collect::<io::Result<_>>()?;
    let mut alive: HashSet<i32> = tasks.iter().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    for own in own_thread::tids() {
        alive.remove(&own);
    }
    Ok(alive)
}

/// Whether no thread runs but ours. The first one of a process stays on the list when it has ended before the others.
pub(crate) fn is_host_gone() -> bool {
    let has_ended = |tid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
        status.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'))
    };
    alive().is_ok_and(|alive| !alive.is_empty() && alive.iter().all(has_ended))
}

/// How many more timers may be made, and by how many there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    left: u64,
    too_many: u64,
}

/// A timer holds one of the signals that may be pending for the whole user (`ulimit -i`). A host that needs some itself, as
/// .NET does to suspend a thread, hangs without. So a part is left to it: one for each thread, 64 at least, half at most.
fn room_for_timers(threads: usize) -> Room {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    pending_signals(&status).map_or(Room { left: u64::MAX, too_many: 0 }, |(used, limit)| {
        let reserve = (threads as u64).max(64).min(limit / 2);
        let usable = limit - reserve;
        Room { left: usable.saturating_sub(used), too_many: used.saturating_sub(usable) }
    })
}

/// Signals that are pending or reserved for the user, and how many may be, by the text of /proc/self/status.
fn pending_signals(status: &str) -> Option<(u64, u64)> {
    let (used, limit) = status.lines().find_map(|line| line.strip_prefix("SigQ:"))?.trim().split_once('/')?;
    Some((used.parse().ok()?, limit.parse().ok()?))
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
    // A thread that does not exist here may hold the parent's.
    DRAIN.store(Box::leak(Box::default()), Ordering::Release);
    if let Some(registry) = lock().as_mut() {
        registry.forget_all();
        registry.tags.after_fork(parents, own);
    }
}

/// What [`drain`] passes on.
pub(crate) enum Drained<'a> {
    /// An entry of one thread's ring, with a number that is the thread's own as long as it lives.
    Entry(u32, Entry<'a>),
    /// A thread's record is free; its number may be another's next.
    Gone(u32),
    Unseen(Unseen),
}

/// Not held over a fork: who drains may wait for the host. A child has a new one ([`forget_all`]).
fn lock_drain() -> MutexGuard<'static, ()> {
    let drain = DRAIN.load(Ordering::Acquire);
    // SAFETY: null or leaked, so it lives for ever.
    let drain = unsafe { drain.as_ref() }.unwrap_or(&FIRST_DRAIN);
    drain.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes on all that there is to read of this profiler, and frees the records of threads that ended. One caller at a time,
/// others wait.
pub(crate) fn drain(owner: Owner, mut f: impl FnMut(Drained<'_>)) {
    let _one = lock_drain();
    // Rings are read without the registry's lock: threads that start must not wait for it. Records stay until `free`.
    let (live, retired, unseen) = {
        let mut registry = lock();
        let Some(registry) = registry.as_mut().filter(|registry| registry.owner == owner) else { return };
        let live: Vec<u32> = registry.by_tid.values().map(|thread| thread.index).collect();
        // They stay on their list until they are free, so that they are counted meanwhile. It only grows at its end.
        (live, registry.retired.clone(), std::mem::take(&mut registry.unseen))
    };
    // What a profiler before this one left behind is nobody's any more.
    let own = retired.iter().filter(|(_, whose)| *whose == owner).map(|(index, _)| index);
    for &index in live.iter().chain(own.clone()) {
        if let Some(record) = RECORDS.get(index as usize) {
            // SAFETY: DRAIN makes us the only reader, and the record keeps its ring until `free` below.
            unsafe { record.ring.read(|entry| f(Drained::Entry(index, entry))) };
        }
    }
    for unseen in unseen {
        f(Drained::Unseen(unseen));
    }
    for &index in own {
        f(Drained::Gone(index));
    }
    if let Some(registry) = lock().as_mut() {
        registry.retired.drain(..retired.len());
        retired.into_iter().for_each(|(index, whose)| registry.free(index, whose));
    }
}

/// Counts over all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) written: Tally,
    pub(crate) dropped: Tally,
    pub(crate) deferred: u64,
    pub(crate) handler_ns: u64,
    pub(crate) threads: u64,
    pub(crate) without_timer: u64,
    pub(crate) without_ring: u64,
}

/// What was counted for a profiler: as it is, as it was when the next one started, or nothing from before that.
pub(crate) fn counts(owner: Owner) -> Counts {
    let registry = lock();
    match registry.as_ref() {
        Some(registry) if registry.owner == owner => registry.counts(),
        Some(Registry { before: Some((before, counts)), .. }) if *before == owner => *counts,
        _ => Counts::default(),
    }
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
    fn samples_for(&self, owner: Owner) -> bool {
        self.sampling.is_some_and(|sampling| sampling.owner == owner)
    }

    fn counts(&self) -> Counts {
        let without_ring = self.unsampled.values().filter(|why| **why == Unsampled::Ring).count();
        let parked = self.parked.iter().filter(|(tid, parked)| !parked.leaves && !self.unsampled.contains_key(tid));
        let mut counts = Counts {
            written: self.written,
            dropped: self.dropped,
            deferred: self.deferred,
            handler_ns: self.handler_ns,
            threads: (self.by_tid.len() + parked.count()) as u64,
            without_timer: (self.unsampled.len() - without_ring) as u64,
            without_ring: without_ring as u64,
        };
        let live = self.by_tid.values().map(|thread| thread.index);
        let retired = self.retired.iter().filter(|(_, whose)| *whose == self.owner).map(|(index, _)| *index);
        for record in live.chain(retired).filter_map(|index| RECORDS.get(index as usize)) {
            counts.deferred += record.deferred.load(Ordering::Relaxed);
            counts.written += record.written();
            counts.dropped += record.dropped();
            counts.handler_ns += record.handler_ns.load(Ordering::Relaxed);
        }
        counts
    }

    /// Gives a thread a record and a timer. `is_new`: it started after the profiler did, so all its CPU time counts.
    fn begin(&mut self, tid: i32, is_new: bool) {
        let Some(sampling) = self.sampling else { return };
        if self.by_tid.contains_key(&tid) || !sampling.timers {
            return;
        }
        let Some(now) = timer::now(sampling.clock, tid) else { return };
        // A clock that went back, by more than rounding, is that of a new thread with the number of one that left.
        if self.parked.get(&tid).is_some_and(|parked| parked.plan.due(now) + 1 < parked.told) {
            self.parked.remove(&tid);
        }
        if self.parked.get(&tid).is_none_or(|parked| parked.plan.due(now) > parked.told) {
            self.begin_now(tid, now, is_new, sampling);
        }
    }

    /// The record of the calling thread, which takes a sample itself.
    fn own(&mut self, tid: i32) -> Option<u32> {
        let sampling = self.sampling?;
        if !self.by_tid.contains_key(&tid) {
            self.begin_now(tid, timer::now(sampling.clock, tid)?, true, sampling);
        }
        self.by_tid.get(&tid).map(|thread| thread.index)
    }

    fn begin_now(&mut self, tid: i32, now: u64, is_new: bool, sampling: Sampling) {
        let begun = match self.parked.get(&tid) {
            Some(&Parked { plan, told, .. }) => self.try_begin(tid, plan, plan.due(now), told, sampling),
            None => {
                let from_birth = is_new && sampling.timers && sampling.clock == SampleClock::Cpu;
                let start = if from_birth { 0 } else { now };
                // A random first expiry: with a full first period threads shorter than it would never be seen.
                let first_ns = start + 1 + self.next_random() % sampling.period_ns;
                let plan = Plan { first_ns, period_ns: sampling.period_ns };
                self.try_begin(tid, plan, plan.due(now), 0, sampling)
            }
        };
        match begun {
            Ok(()) => {
                self.parked.remove(&tid);
                self.unsampled.remove(&tid);
            }
            Err(why) => {
                self.short_of_rings += usize::from(why == Unsampled::Ring);
                self.unsampled.insert(tid, why);
            }
        }
    }

    /// `skipped` expiries of the plan are over, of which `told` were told.
    fn try_begin(
        &mut self,
        tid: i32,
        plan: Plan,
        skipped: u64,
        told: u64,
        sampling: Sampling,
    ) -> Result<(), Unsampled> {
        if sampling.timers && self.room == 0 {
            return Err(Unsampled::PendingSignals);
        }
        let memory = self.memory(sampling.ring_bytes).ok_or(Unsampled::Ring)?;
        let Some(index) = self.record() else {
            self.spare(memory);
            return Err(Unsampled::Ring);
        };
        let record = &RECORDS[index as usize];
        record.ring.give(memory);
        record.period_ns.store(sampling.period_ns, Ordering::Relaxed);
        record.expiries.store(0, Ordering::Relaxed);
        record.taken_up.store(0, Ordering::Relaxed);
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
            self.note_unseen(Why::Starting, skipped.saturating_sub(told), plan);
        }
        let quiet_since = self.looks;
        self.by_tid.insert(tid, Sampled { index, plan, skipped, timer, samples: 0, quiet_since });
        Ok(())
    }

    fn note_unseen(&mut self, why: Why, expiries: u64, plan: Plan) {
        if expiries > 0 {
            self.unseen.push(Unseen { why, expiries, weight: expiries * plan.period_ns });
        }
    }

    /// Takes a thread's timer and record away; returns what is told of it, if it can go on.
    fn end(&mut self, tid: i32, why: Why, until: Instant) -> Option<Parked> {
        self.unsampled.remove(&tid);
        let parked = self.parked.remove(&tid).map(|Parked { plan, told, .. }| (plan, told));
        let (plan, told) = self.take_away(tid, until).or(parked)?;
        let Some(Sampling { clock: SampleClock::Cpu, timers: true, .. }) = self.sampling else { return None };
        let due = plan.due(timer::now(SampleClock::Cpu, tid)?);
        self.note_unseen(why, due.saturating_sub(told), plan);
        Some(Parked { plan, told: due.max(told), leaves: true })
    }

    /// The thread itself is about to end. A sweep that finds it still there must not take it for one that just started:
    /// all its CPU time would count twice.
    fn leave(&mut self, tid: i32) {
        if let Some(parked) = self.end(tid, Why::Ended, Instant::now() + LEAVE_TIMEOUT) {
            self.parked.insert(tid, parked);
        }
    }

    /// Takes timer and record from a thread; returns its plan, and how many expiries of it were told. Waits `until` then for a
    /// handler to leave.
    fn take_away(&mut self, tid: i32, until: Instant) -> Option<(Plan, u64)> {
        let Sampled { index, plan, skipped, timer, .. } = self.by_tid.remove(&tid)?;
        self.room = self.room.saturating_add(u64::from(timer.is_some()));
        // No signal comes after this but those that are on their way.
        drop(timer);
        retire(index, until);
        span_slot::release(tid);
        self.retired.push((index, self.owner));
        Some((plan, skipped + RECORDS[index as usize].expiries.load(Ordering::Relaxed)))
    }

    /// Notes which threads are quiet, and takes the rings of the quietest for those that found none. They are free when
    /// they have been drained.
    fn part_with_rings(&mut self) {
        self.looks += 1;
        for thread in self.by_tid.values_mut() {
            let samples = RECORDS[thread.index as usize].samples();
            if samples != thread.samples {
                (thread.samples, thread.quiet_since) = (samples, self.looks);
            }
        }
        let wanted = std::mem::take(&mut self.short_of_rings);
        if wanted > 0 {
            let looks = self.looks;
            self.park(wanted, |thread| thread.quiet_since < looks);
        }
    }

    /// Gives signals back to the user's other programs, or to the host: there are too many timers by that.
    fn part_with_timers(&mut self, too_many: u64) {
        if too_many > 0 {
            self.park(usize::try_from(too_many).unwrap_or(usize::MAX), |thread| thread.timer.is_some());
        }
    }

    /// Takes timer and ring from this many threads of a kind, from the quietest first.
    fn park(&mut self, wanted: usize, is_one: impl Fn(&Sampled) -> bool) {
        let some = self.by_tid.iter().filter(|(_, thread)| is_one(thread));
        let mut some: Vec<(u64, i32)> = some.map(|(&tid, thread)| (thread.quiet_since, tid)).collect();
        some.sort_unstable();
        let until = Instant::now() + LEAVE_TIMEOUT;
        for (_, tid) in some.into_iter().take(wanted) {
            if let Some((plan, told)) = self.take_away(tid, until) {
                self.parked.insert(tid, Parked { plan, told, leaves: false });
            }
        }
    }

    /// Makes the handler see the tags of a thread.
    fn show_tags(&self, tid: i32) {
        if let Some(record) = self.by_tid.get(&tid).and_then(|thread| RECORDS.get(thread.index as usize)) {
            record.thread_tags.store(self.tags.of(tid).0, Ordering::Relaxed);
        }
    }

    /// Describes a thread of which the runtime said nothing, as the kernel knows it.
    fn describe(&mut self, tid: i32, report: Report) {
        if self.tags.is_described(tid) || !self.by_tid.contains_key(&tid) {
            return;
        }
        let mut description = Vec::new();
        if report.id {
            description.push(("thread_id".to_owned(), tid.to_string()));
        }
        if report.name {
            let name = std::fs::read(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
            description.push(("thread_name".to_owned(), String::from_utf8_lossy(&name).trim_end().to_owned()));
        }
        self.tags.describe(tid, description);
        self.show_tags(tid);
    }

    /// Gives a drained record back. One that a handler has not left yet is drained once more.
    fn free(&mut self, index: u32, whose: Owner) {
        let record = &RECORDS[index as usize];
        if !record.gate.is_empty() {
            self.retired.push((index, whose));
            return;
        }
        if let Some(memory) = record.ring.take() {
            self.spare(memory);
        }
        if whose == self.owner {
            self.written += record.written();
            self.dropped += record.dropped();
            self.deferred += record.deferred.load(Ordering::Relaxed);
            self.handler_ns += record.handler_ns.load(Ordering::Relaxed);
        }
        for counter in [
            &record.deferred,
            &record.written_samples,
            &record.written_weight,
            &record.dropped_samples,
            &record.dropped_weight,
            &record.handler_ns,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        self.free.push(index);
    }

    fn sweep(&mut self, alive: HashSet<i32>, is_new: bool) {
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

    fn stop(&mut self) {
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

    fn forget_all(&mut self) {
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

    fn forget_counts(&mut self) {
        (self.written, self.dropped) = (Tally::default(), Tally::default());
        (self.deferred, self.handler_ns) = (0, 0);
    }

    fn record(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = USED.load(Ordering::Relaxed);
        RECORDS.get(index as usize)?;
        // Release: pairs with `for_each_pending_word`; the record is as it was made.
        USED.store(index + 1, Ordering::Release);
        Some(index)
    }

    fn memory(&mut self, bytes: usize) -> Option<Memory> {
        if let Some(at) = self.spare.iter().position(|memory| memory.bytes() == bytes) {
            return Some(self.spare.swap_remove(at));
        }
        if self.ring_bytes + bytes > MAX_RING_BYTES {
            return None;
        }
        let memory = Memory::map(bytes).ok()?;
        self.ring_bytes += bytes;
        Some(memory)
    }

    fn spare(&mut self, memory: Memory) {
        if self.sampling.is_some() && self.spare.len() < SPARE_RINGS {
            self.spare.push(memory);
        } else {
            self.ring_bytes -= memory.bytes();
            if self.sampling.is_none() {
                for spare in self.spare.drain(..) {
                    self.ring_bytes -= spare.bytes();
                }
            }
        }
    }

    /// xorshift64: spreads first expiries, no more is asked of it.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
