//! Owns the threads and wires the four stages: start, flush, stop.
//!
//! The profiler's thread ticks every 100 ms while threads burn CPU, and ever more rarely, down to once a second, while
//! none does. A tick checks the signal, looks for new threads, drains the rings, and cuts the window when it is due.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::{Config, Settings};
use crate::context::{names, span_slot, tags};
use crate::error::{Error, ErrorKind};
use crate::messages::{Cause, Message, Messages};
use crate::os::single_instance::Claim;
use crate::os::{background_thread, clock, fork};
use crate::profile::aggregate::Aggregate;
use crate::profile::labels::LabelOptions;
use crate::profile::pprof::{self, EncodeOptions};
use crate::profile_type::{ProfileType, SampleClock};
use crate::sample::handler::{self, WAKE};
use crate::sample::runtime::{Drain, DrainPermit, Runtime};
use crate::sample::safe_load;
use crate::sample::threads::{self, Counts, Owner, Report, Sampling, Unsampled};
use crate::stats::{Counters, Stats, Tally};
use crate::upload::uploader::Uploader;

const TICK: Duration = Duration::from_millis(100);
const IDLE_TICK: Duration = Duration::from_secs(1);
/// Looking for threads rests for this many times the CPU time that it took, so with thousands of threads it still uses no
/// more than 0.4 % of a core.
const SWEEP_REST: u32 = 250;
/// A window is no longer, since Grafana looks 30 s around a span and a profile is stamped with its window's start.
const MAX_WINDOW: Duration = Duration::from_secs(15);
/// How long a cut waits for a host that drains under its own lock, if nobody waits for what it has.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// CPU time in a tick below which the process counts as idle.
const IDLE_CPU_NS: u64 = 1_000_000;

/// The profiler of this process. Clones are the same profiler.
#[derive(Clone)]
pub struct Profiler {
    engine: Arc<Engine>,
}

impl fmt::Debug for Profiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profiler").field("config", &self.engine.config).finish_non_exhaustive()
    }
}

struct Engine {
    config: Config,
    settings: Arc<Settings>,
    runtime: &'static dyn Runtime,
    counters: Arc<Counters>,
    messages: Arc<Messages>,
    aggregate: Mutex<Aggregate>,
    uploader: Uploader,
    /// A random number: which profiler it is.
    instance: u64,
    /// Which one it is of this process, and of which process of those that forked.
    owner: Owner,
    generation: u32,
    /// Of profilers before this one.
    own_cpu_before_ns: u64,
    control: Mutex<Control>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Until `stop`: no other copy of the engine samples meanwhile.
    claim: Mutex<Option<Claim>>,
    /// Why timers sample no more.
    ended: Mutex<Option<String>>,
    /// What its threads had counted when it had stopped; before that they are asked.
    last_counts: Mutex<Option<Counts>>,
}

#[derive(Debug, Default)]
struct Control {
    stop: bool,
    stopped: bool,
    /// Flushes asked for, and how many of them were cut and encoded.
    flushes: u64,
    flushed: u64,
    /// Drains that cuts asked the host for, and up to which of them rings were read since.
    drains_wanted: u64,
    drains_done: u64,
    /// How long who waits for a flush or a stop lets the host take for a drain.
    patience: Option<Instant>,
}

/// The one that runs.
static CURRENT: Mutex<Option<Arc<Engine>>> = Mutex::new(None);
/// Told when it has stopped.
static STOPPED: Condvar = Condvar::new();
/// No profiler starts any more.
static PROCESS_ENDS: AtomicBool = AtomicBool::new(false);
/// How long a start waits for a profiler that another thread is just stopping.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Who waits for a flush or a stop waits no longer, as there is no instant of any time.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

impl Profiler {
    /// Checks the settings and starts sampling every thread of the process.
    ///
    /// Takes a few milliseconds and never waits for the server; where another thread stops a profiler at the moment, up to 5 s
    /// for that. Errors: `InvalidConfig` names the field, the value and what is allowed; `Disabled`, also once the process
    /// ends ([`end_process`](Self::end_process)); `AlreadyRunning`, `System`. Nothing runs after an error.
    pub fn start(config: Config, runtime: &'static dyn Runtime) -> Result<Self, Error> {
        if !(config.enabled && (config.cpu_enabled || !config.profile_types.is_empty())) {
            return Err(Error::new(ErrorKind::Disabled, "profiling is switched off by configuration or environment"));
        }
        let settings = Arc::new(config.validate()?);
        let mut current = wait_for_stopping(lock_current());
        if PROCESS_ENDS.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Disabled, "the process ends, so no profiler starts"));
        }
        if fork::forked() {
            leave_behind(&mut current);
        }
        if current.is_some() {
            return Err(Error::new(ErrorKind::AlreadyRunning, "a profiler runs in this process already"));
        }
        fork::install(lock_all);
        let claim = Claim::new().ok_or_else(|| {
            let why = "another copy of the profiler's engine samples this process; remove one of the two packages";
            Error::new(ErrorKind::AlreadyRunning, why)
        })?;
        // No ring holds a sample of what was let go until now.
        tags::next_window();
        tags::next_window();
        if runtime.needs_safe_load() {
            safe_load::enable_safe_load();
        }
        handler::set_runtime(runtime);
        let signal = handler::install(runtime.signal())?;
        let (counters, messages) = (Arc::new(Counters::default()), Arc::new(Messages::default()));
        let by_timer = match settings.clock {
            SampleClock::Cpu => ProfileType::process_cpu(settings.period_ns),
            SampleClock::Wall => ProfileType::wall(settings.period_ns),
        };
        let profile_types = std::iter::once(by_timer).chain(config.profile_types.iter().copied()).collect();
        let engine = Arc::new(Engine {
            aggregate: Mutex::new(Aggregate::new(profile_types)),
            uploader: Uploader::start(settings.clone(), counters.clone(), messages.clone())?,
            config,
            settings,
            runtime,
            counters,
            messages,
            instance: RandomState::new().hash_one(std::process::id()),
            owner: threads::new_owner(),
            generation: fork::generation(),
            own_cpu_before_ns: background_thread::cpu_ns(),
            control: Mutex::new(Control::default()),
            changed: Condvar::new(),
            thread: Mutex::new(None),
            claim: Mutex::new(Some(claim)),
            ended: Mutex::new(None),
            last_counts: Mutex::new(None),
        });
        let sampler = engine.clone();
        let thread = background_thread::spawn("spanprof", move || sampler.run()).map_err(|error| {
            Error::new(ErrorKind::System, format!("the profiler's thread could not be started: {error}"))
        })?;
        *engine.thread() = Some(thread);
        threads::start(engine.sampling(signal));
        *current = Some(engine.clone());
        Ok(Self { engine })
    }

    /// Encodes what was sampled so far and waits until it is uploaded, `timeout` at most. True: all of it is settled. False at
    /// once for the parent's profiler in a forked child.
    pub fn flush(&self, timeout: Duration) -> bool {
        if self.engine.is_parents() {
            return false;
        }
        let timeout = timeout.min(LONGEST);
        let deadline = Instant::now() + timeout;
        let mut control = self.engine.control();
        control.flushes += 1;
        control.patience = control.patience.max(Some(Instant::now() + timeout / 2));
        let wanted = control.flushes;
        drop(control);
        WAKE.wake();
        let cut = self.engine.wait(deadline, |control| control.flushed >= wanted || control.stopped);
        cut && self.engine.uploader.flush(deadline.saturating_duration_since(Instant::now()))
    }

    /// Ends sampling, tries once to upload what there is, and ends the profiler's threads, all within `timeout`.
    /// True: all of it was delivered, and nothing was left behind. What was refused or dropped is counted in
    /// [`stats`](Self::stats). Again: nothing happens, and the answer is the same. False at once for the parent's profiler in a
    /// forked child.
    ///
    /// Whatever becomes of the rest, when this returns no timer runs and no handler looks at the host.
    pub fn stop(&self, timeout: Duration) -> bool {
        if self.engine.is_parents() {
            return false;
        }
        let timeout = timeout.min(LONGEST);
        let deadline = Instant::now() + timeout;
        let mut control = self.engine.control();
        control.stop = true;
        control.patience = control.patience.max(Some(Instant::now() + timeout / 2));
        drop(control);
        // By the caller: the profiler's thread may get no CPU, and the host goes on to free what handlers look at.
        threads::close(self.engine.owner);
        WAKE.wake();
        let cut = self.engine.wait(deadline, |control| control.stopped);
        let thread = if cut { self.engine.thread().take() } else { None };
        let ended = thread.is_none_or(|thread| background_thread::join_until(thread, deadline));
        let sent = self.engine.uploader.stop(deadline.saturating_duration_since(Instant::now()));
        let mut current = lock_current();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &self.engine)) {
            // While no other one can have started, whose threads count from zero again.
            *self.engine.last_counts() = Some(threads::counts(self.engine.owner));
            *current = None;
            drop(self.engine.claim.lock().unwrap_or_else(PoisonError::into_inner).take());
            STOPPED.notify_all();
        }
        cut && ended && sent
    }

    /// For a host's last hook: stops the profiler that runs, if there is one, as [`stop`](Self::stop) does, and lets none start
    /// after it in this process or its children. True: as there.
    pub fn end_process(timeout: Duration) -> bool {
        PROCESS_ENDS.store(true, Ordering::Relaxed);
        // After the lock, as a start may be under way.
        let last = lock_current().clone();
        last.is_none_or(|engine| engine.is_parents() || Self { engine }.stop(timeout))
    }

    /// What became of every sample so far. Waits for nothing that the profiler's thread does. Nothing at all for the parent's
    /// profiler in a forked child.
    pub fn stats(&self) -> Stats {
        if self.engine.is_parents() { Stats::default() } else { self.engine.stats() }
    }

    /// Why timers sample no more although nobody stopped the profiler: another library took their signal, and there is no
    /// other. Events ([`sample_here`](crate::sample_here)) go on. `None` while all is well; it may come back to that. A lock.
    pub fn ended(&self) -> Option<String> {
        if self.engine.is_parents() { None } else { self.engine.ended().clone() }
    }

    /// Whether a stop has begun, also when it is over: nothing is sampled any more. A lock.
    pub fn is_stopping(&self) -> bool {
        !self.engine.is_parents() && self.engine.control().stop
    }

    /// What a user should be told since the last call: for the host's logger.
    pub fn take_messages(&self) -> Vec<Message> {
        if self.engine.is_parents() { Vec::new() } else { self.engine.messages.take() }
    }

    /// Reads the rings, for a host that answered [`Drain::Requested`] and holds its lock now.
    pub fn drain(&self, _permit: &DrainPermit) {
        if self.engine.is_parents() {
            return;
        }
        // What is asked for from here on is not answered by this drain: it may be past some rings.
        let (is_last, wanted) = {
            let control = self.engine.control();
            (control.stop, control.drains_wanted)
        };
        self.engine.drain(is_last);
        let mut control = self.engine.control();
        control.drains_done = control.drains_done.max(wanted);
        drop(control);
        self.engine.changed.notify_all();
    }

    /// In the child after a fork ([`forked`](crate::forked)): leaves the parent's profiler behind, with all its data, and
    /// starts one of the same configuration. Call it where the host may allocate and start threads.
    pub fn restart_in_child(self) -> Result<Self, Error> {
        // The parent's engine is never dropped: its locks may be held by threads that do not exist here.
        let old = std::mem::ManuallyDrop::new(self);
        Self::start(old.engine.config.clone(), old.engine.runtime)
    }
}

/// In the child after a fork where no profiler is to run: leaves the parent's behind, if there was one, so that
/// [`forked`](crate::forked) is false again. [`Profiler::start`] does so itself.
pub fn leave_parent_behind() {
    if fork::forked() {
        let mut current = lock_current();
        // Another thread may have done so meanwhile, and started one.
        if fork::forked() {
            leave_behind(&mut current);
        }
    }
}

fn leave_behind(current: &mut Option<Arc<Engine>>) {
    // Never dropped: its locks may be held by threads that do not exist here.
    let _ = std::mem::ManuallyDrop::new(current.take());
    background_thread::forget();
    threads::forget_all();
    safe_load::forget_others();
    // Of the parent's names nothing is left, and a span that was sampled there has to be defined here again.
    drop(names::next_window());
    fork::clear();
}

/// Waits, 5 s at most, until a profiler that another thread stops has stopped.
fn wait_for_stopping(current: MutexGuard<'static, Option<Arc<Engine>>>) -> MutexGuard<'static, Option<Arc<Engine>>> {
    let is_stopping = |current: &mut Option<Arc<Engine>>| {
        current.as_ref().is_some_and(|engine| !engine.is_parents() && engine.control().stop)
    };
    STOPPED.wait_timeout_while(current, STOP_PATIENCE, is_stopping).unwrap_or_else(PoisonError::into_inner).0
}

/// All static locks of the engine in the order in which they are taken within each other.
fn lock_all() -> Vec<Box<dyn Any>> {
    vec![
        Box::new(lock_current()),
        Box::new(threads::lock()),
        Box::new(span_slot::lock()),
        Box::new(tags::lock()),
        Box::new(names::lock()),
        Box::new(background_thread::lock()),
    ]
}

fn lock_current() -> MutexGuard<'static, Option<Arc<Engine>>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a tick compares with the one before.
struct Pulse {
    cpu_ns: u64,
    tasks: u64,
    swept: Instant,
    /// CPU time that this took.
    sweep: Duration,
    tick: Duration,
    /// No thread of the host's is left.
    is_alone: bool,
}

impl Engine {
    fn run(&self) {
        let mut pulse =
            Pulse { cpu_ns: 0, tasks: 0, swept: Instant::now(), sweep: Duration::ZERO, tick: TICK, is_alone: false };
        // Sets of tags are counted since the process started.
        let mut told = [0, 0, 0, 0, tags::overflowed().0, tags::overflowed().1];
        let mut faults_lost = false;
        let window = self.settings.upload_interval.min(MAX_WINDOW);
        loop {
            WAKE.sleep(pulse.tick);
            let (stop, flushes, flushed) = {
                let control = self.control();
                (control.stop, control.flushes, control.flushed)
            };
            if stop {
                self.end(&mut told);
                return;
            }
            self.keep_signal();
            // Told at the second look: some borrow the handlers for a moment, as Ruby does to compact its heap.
            let lost = safe_load::is_replaced();
            if std::mem::replace(&mut faults_lost, lost) && lost {
                self.messages.tell(Cause::FaultsLost, &[]);
            }
            self.look_for_threads(&mut pulse);
            if pulse.is_alone {
                self.end_with_host(&mut told);
                return;
            }
            if self.runtime.request_drain() == Drain::Now {
                self.drain(false);
            }
            let due = {
                let aggregate = self.aggregate();
                aggregate.age() >= window || aggregate.must_cut()
            };
            if due || flushes > flushed {
                self.cut(false);
                self.tell_losses(&mut told);
                self.control().flushed = flushes;
                self.changed.notify_all();
            }
        }
    }

    fn end(&self, told: &mut [u64; 6]) {
        threads::close(self.owner);
        self.cut(true);
        self.tell_losses(told);
        let mut control = self.control();
        control.flushed = control.flushes;
        control.stopped = true;
        drop(control);
        self.changed.notify_all();
    }

    /// Sends what there is and ends our threads, as those of the host have all ended: a child that was forked by a thread and
    /// has come to the end of that thread's function. We would keep it alive for ever.
    fn end_with_host(&self, told: &mut [u64; 6]) {
        self.control().stop = true;
        self.end(told);
        self.uploader.stop(STOP_PATIENCE);
    }

    fn sampling(&self, signal: i32) -> Sampling {
        Sampling {
            owner: self.owner,
            clock: self.settings.clock,
            period_ns: self.settings.period_ns.unsigned_abs(),
            timers: self.config.cpu_enabled,
            signal,
            ring_bytes: self.runtime.ring_bytes(),
            report: Report { id: self.settings.report_thread_id, name: self.settings.report_thread_name },
        }
    }

    /// A real-time signal without a handler kills the host, so timers go at once if ours was replaced.
    fn keep_signal(&self) {
        let mut ended = self.ended();
        if !self.config.cpu_enabled || (ended.is_none() && handler::is_installed()) {
            return;
        }
        let lost = handler::signal();
        if ended.is_none() {
            threads::stop(self.owner);
        }
        match handler::install(self.runtime.signal()) {
            Ok(signal) => {
                self.messages.tell(Cause::SignalLost, &[&lost.to_string(), &signal.to_string()]);
                if ended.take().is_some() {
                    threads::stop(self.owner);
                }
                threads::start_again(self.sampling(signal));
            }
            Err(error) if ended.is_none() => {
                self.messages.tell(Cause::NoSignal, &[error.message()]);
                *ended = Some(error.message().to_owned());
                // What the host samples itself needs no timer.
                threads::start_again(Sampling { timers: false, ..self.sampling(lost) });
            }
            Err(_) => {}
        }
    }

    fn ended(&self) -> MutexGuard<'_, Option<String>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_for_threads(&self, pulse: &mut Pulse) {
        let cpu_ns = clock::process_cpu_ns().saturating_sub(background_thread::cpu_ns());
        // Each thread is a folder in it, so its link count is the number of threads and two.
        let tasks = std::fs::metadata("/proc/self/task").map_or(0, |folder| folder.nlink());
        let came_or_went = tasks != pulse.tasks;
        let busy = cpu_ns.saturating_sub(pulse.cpu_ns) > IDLE_CPU_NS || came_or_went;
        // Where threads tell of themselves, the others matter that came while as many went.
        let soon = if self.runtime.tells_threads() { came_or_went } else { busy };
        let rest = if soon { (pulse.sweep * SWEEP_REST).min(IDLE_TICK) } else { IDLE_TICK };
        if pulse.swept.elapsed() >= rest {
            let began = clock::own_thread_cpu();
            match threads::sweep(self.owner) {
                Ok(unsampled) => self.tell_unsampled(&unsampled),
                Err(error) => self.messages.tell(Cause::NoThreadList, &[&error.to_string()]),
            }
            pulse.sweep = clock::own_thread_cpu().saturating_sub(began);
            pulse.swept = Instant::now();
        }
        pulse.is_alone = !busy && tasks <= 3 + background_thread::tids().len() as u64 && threads::is_host_gone();
        pulse.tick = if busy { TICK } else { (pulse.tick * 2).min(IDLE_TICK) };
        (pulse.cpu_ns, pulse.tasks) = (cpu_ns, tasks);
    }

    fn tell_unsampled(&self, unsampled: &[Unsampled]) {
        let errors = unsampled.iter().filter_map(|why| match why {
            Unsampled::Timer(error) => Some(*error),
            Unsampled::PendingSignals | Unsampled::Ring => None,
        });
        let (without_timer, error) = errors.fold((0, 0), |(threads, _), error| (threads + 1, error));
        if without_timer > 0 {
            let error = std::io::Error::from_raw_os_error(error).to_string();
            self.messages.tell(Cause::NoTimer, &[&without_timer.to_string(), &error]);
        }
        let without_signal = unsampled.iter().filter(|why| **why == Unsampled::PendingSignals).count();
        if without_signal > 0 {
            self.messages.tell(Cause::NoSignals, &[&without_signal.to_string()]);
        }
        let without_ring = unsampled.len() - without_timer - without_signal;
        if without_ring > 0 {
            self.messages.tell(Cause::NoRing, &[&without_ring.to_string()]);
        }
    }

    /// Tells what was lost until now, where that grew with the last window.
    fn tell_losses(&self, told: &mut [u64; 6]) {
        let counted = self.counters.snapshot();
        let (tag_sets, thread_tags) = tags::overflowed();
        let counts = self.counts();
        let lost = [
            (Cause::RingFull, counts.dropped.samples.saturating_sub(counts.cramped)),
            (Cause::StackSmall, counts.cramped),
            (Cause::WindowFull, counted.dropped_window.samples),
            (Cause::NamesCut, counted.names_cut),
            (Cause::TagSetsLost, tag_sets),
            (Cause::ThreadTagsLost, thread_tags),
        ];
        for (told, (cause, number)) in told.iter_mut().zip(lost) {
            if std::mem::replace(told, number) < number {
                self.messages.tell(cause, &[&number.to_string()]);
            }
        }
    }

    fn drain(&self, is_last: bool) {
        let words = {
            let mut aggregate = self.aggregate();
            threads::drain(self.owner, |drained| aggregate.add(drained, self.runtime, &self.counters));
            aggregate.mend(self.runtime, &self.counters, is_last);
            aggregate.take_unresolved()
        };
        if !words.is_empty() {
            let resolved = self.runtime.resolve(&words);
            self.aggregate().learn(words, resolved);
        }
    }

    /// Ends the window: drains, swaps it out, encodes it, hands it to the uploader.
    fn cut(&self, is_last: bool) {
        // One that was given up has no window to turn: it is the next one's.
        let is_newest = threads::is_newest(self.owner);
        let final_names = if is_newest {
            tags::next_window();
            names::next_window()
        } else {
            HashMap::new()
        };
        let (wanted, patience) = {
            let mut control = self.control();
            control.drains_wanted += 1;
            (control.drains_wanted, control.patience.take())
        };
        match self.runtime.request_drain() {
            Drain::Now => self.drain(is_last),
            Drain::Requested => {
                let timeout = Instant::now() + DRAIN_TIMEOUT;
                self.wait(patience.map_or(timeout, |patience| patience.max(timeout)), |control| {
                    control.drains_done >= wanted
                });
            }
        }
        let cut = self.aggregate().cut(final_names, self.runtime.keeps_words(), &self.counters);
        if is_newest {
            self.runtime.window_cut();
        }
        let mut window = cut.finish(&self.counters);
        window.comment = self.comment();
        self.counters.windows.fetch_add(1, Ordering::Relaxed);
        let max_tags = self.settings.room_for_tags();
        if window.tag_sets.iter().any(|set| set.len() > max_tags) {
            self.messages.tell(Cause::TooManyLabels, &[&max_tags.to_string()]);
        }
        let labels = LabelOptions {
            trace_ids: self.uploader.trace_ids(),
            span_names: self.settings.span_names,
            legacy_labels: self.settings.legacy_labels,
            max_tags,
        };
        let options = EncodeOptions { labels, ..EncodeOptions::default() };
        self.uploader.send(pprof::encode(&window, &options));
    }

    /// What travels with each window's first profile, for a viewer that shows how its profilers are: pprof's field for free
    /// text, which other servers keep or ignore.
    fn comment(&self) -> String {
        let stats = self.stats();
        let pairs =
            stats.tallies().map(|(name, Tally { samples, weight })| (name, serde_json::json!([samples, weight])));
        let numbers = stats.numbers().map(|(name, number)| (name, number.into()));
        let counts: serde_json::Map<String, serde_json::Value> =
            pairs.into_iter().chain(numbers).map(|(name, value)| (name.to_owned(), value)).collect();
        let (package, version) = &self.config.package;
        let said = serde_json::json!({
            "instance": format!("{:016x}", self.instance),
            "pid": self.config.report_pid.then(std::process::id),
            "package": format!("{package} {version}"),
            "last_error": stats.last_error,
            "stats": counts,
        });
        format!("spanprof.stats {said}")
    }

    fn stats(&self) -> Stats {
        // What left comes first: what is taken meanwhile is pending, and nothing is subtracted that was not counted yet.
        let left = self.counters.snapshot();
        let unseen = self.counters.unseen.get();
        let counts = self.counts();
        let (tag_sets, thread_tags) = tags::overflowed();
        let mut taken = counts.written;
        taken += counts.dropped;
        taken += unseen;
        let mut settled = counts.dropped;
        settled += left.dropped_window;
        settled += left.encoded;
        Stats {
            taken,
            dropped_ring: counts.dropped,
            pending: Tally {
                samples: taken.samples.saturating_sub(settled.samples),
                weight: taken.weight.saturating_sub(settled.weight),
            },
            threads: counts.threads,
            threads_unsampled: counts.without_timer + counts.without_ring,
            threads_without_timer: counts.without_timer,
            threads_without_ring: counts.without_ring,
            deferred: counts.deferred,
            handler_ns: counts.handler_ns,
            own_cpu_ns: background_thread::cpu_ns().saturating_sub(self.own_cpu_before_ns),
            tag_sets_lost: tag_sets + thread_tags,
            ..left
        }
    }

    /// What its threads count, or had counted when it stopped.
    fn counts(&self) -> Counts {
        // Asked first: where none are kept afterwards, nobody else counted yet.
        let counts = threads::counts(self.owner);
        self.last_counts().unwrap_or(counts)
    }

    /// Whether it is of the process that this one was forked from. Its locks may be held by threads that do not exist here.
    fn is_parents(&self) -> bool {
        self.generation != fork::generation()
    }

    fn wait(&self, deadline: Instant, done: impl Fn(&Control) -> bool) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.control(), left, |control| !done(control));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_counts(&self) -> MutexGuard<'_, Option<Counts>> {
        self.last_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aggregate(&self) -> MutexGuard<'_, Aggregate> {
        self.aggregate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
