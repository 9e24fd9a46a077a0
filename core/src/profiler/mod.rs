//! Owns the threads and wires the four stages: start, flush, stop.

mod engine;
pub(crate) mod process;
mod report;
mod ticks;
mod window;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use self::engine::Engine;
use self::process::{CHANGED, Start, lock_all, lock_current};
use crate::config::Config;
use crate::context::tags;
use crate::error::{Error, ErrorKind};
use crate::messages::{Cause, Message};
use crate::os::single_instance::Claim;
use crate::os::{background_thread, fork};
use crate::sample::handler::{self, WAKE};
use crate::sample::runtime::{DrainPermit, Runtime};
use crate::sample::{kernel_clock, safe_load, threads, waits};
use crate::stats::Stats;

/// Who waits for a flush or a stop waits no longer, as there is no instant of any time.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

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

impl Profiler {
    /// Checks the settings and starts sampling every thread of the process.
    ///
    /// Takes a few milliseconds and never waits for the server; where another thread stops or starts a profiler at the moment, up to 5 s
    /// for that, and where one loads a library as long as that takes. Errors: `InvalidConfig` names the field, the value and what is
    /// allowed; `Disabled`, also once the process ends ([`end_process`](Self::end_process)); `AlreadyRunning`; `System`, also in a child made past `fork`. Nothing runs after
    /// an error.
    pub fn start(config: Config, runtime: &'static dyn Runtime) -> Result<Self, Error> {
        if !(config.enabled && (config.cpu_enabled || !config.profile_types.is_empty())) {
            return Err(Error::new(ErrorKind::Disabled, "profiling is switched off by configuration or environment"));
        }
        let settings = Arc::new(config.validate()?);
        // Before the lock, which a child of a fork that knew nothing of it would find taken for ever.
        fork::install(lock_all, waits::look_at_loader);
        kernel_clock::prefer();
        let start = Start::begin()?;
        let claim = Claim::new().ok_or_else(|| {
            let why = "another copy of the profiler's engine samples this process; remove one of the two packages";
            Error::new(ErrorKind::AlreadyRunning, why)
        })?;
        // No ring holds a sample of what was let go until now.
        tags::rotate_generations();
        tags::rotate_generations();
        if runtime.needs_safe_load() {
            safe_load::enable_safe_load();
        }
        handler::set_runtime(runtime);
        let signal = handler::install(runtime.signal())?;
        let engine = Arc::new(Engine::new(config, settings, runtime, claim)?);
        let sampler = engine.clone();
        let thread = background_thread::spawn("spanprof", move || sampler.run()).map_err(|error| {
            Error::new(ErrorKind::System, format!("the profiler's thread could not be started: {error}"))
        })?;
        *engine.thread() = Some(thread);
        threads::start(engine.sampling(signal));
        engine.measure_waits();
        let ended = start.end(&engine);
        let profiler = Self { engine };
        if let Err(error) = ended {
            profiler.stop(Duration::ZERO);
            return Err(error);
        }
        Ok(profiler)
    }

    /// Encodes what was sampled so far and waits until it is uploaded, `timeout` at most. True: all of it is settled, also
    /// what was refused or dropped, as [`stats`](Self::stats) says. False at once for the parent's profiler in a forked child.
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
        let encoded = self.engine.wait(deadline, |control| control.flushed >= wanted || control.stopped);
        encoded && self.engine.uploader.flush(deadline.saturating_duration_since(Instant::now()))
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
        self.engine.uploader.begin_stop();
        let mut control = self.engine.control();
        control.stop = true;
        control.patience = control.patience.max(Some(Instant::now() + timeout / 2));
        drop(control);
        // By the caller: the profiler's thread may get no CPU, and the host goes on to free what handlers look at.
        self.engine.close();
        WAKE.wake();
        let stopped = self.engine.wait(deadline, |control| control.stopped);
        let thread = if stopped { self.engine.thread().take() } else { None };
        let ended = thread.is_none_or(|thread| background_thread::join_until(thread, deadline));
        let sent = self.engine.uploader.stop(deadline.saturating_duration_since(Instant::now()));
        let mut current = lock_current();
        if current.engine.as_ref().is_some_and(|current| Arc::ptr_eq(current, &self.engine)) {
            // While no other one can have started, whose threads count from zero again.
            *self.engine.last_counts() = Some(threads::counts(self.engine.owner));
            current.engine = None;
            drop(self.engine.claim.lock().unwrap_or_else(PoisonError::into_inner).take());
            CHANGED.notify_all();
        }
        stopped && ended && sent
    }

    /// For a host's last hook: stops the profiler that runs, if there is one, as [`stop`](Self::stop) does, and lets none start
    /// after it in this process or its children. True: as there.
    pub fn end_process(timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout.min(LONGEST);
        let last = process::end_process(timeout.min(LONGEST));
        let left = || deadline.saturating_duration_since(Instant::now());
        last.is_none_or(|engine| engine.is_parents() || Self { engine }.stop(left()))
    }

    /// What became of every sample so far. Waits for nothing that the profiler's thread does. Nothing at all for the parent's
    /// profiler in a forked child.
    pub fn stats(&self) -> Stats {
        if self.engine.is_parents() { Stats::default() } else { self.engine.stats() }
    }

    /// Measures no waits any more, as a host made one of a millisecond to see, and it was not seen as one. Nothing where none could be seen
    /// yet, as a thread of the program asked ld.so for modules: they are seen from later on.
    pub fn saw_no_wait(&self) {
        if !waits::began_pending() {
            self.measure_no_waits("a wait of a millisecond was not seen as one");
        }
    }

    /// Measures no waits any more, as a host found that they are not what they should be; `why` is told to the user.
    pub fn measure_no_waits(&self, why: &str) {
        if !self.engine.is_parents() {
            waits::stop(self.engine.owner);
            self.engine.messages.report(Cause::NoWaits, &[why]);
        }
    }

    /// Tells the user `why` a host takes no samples of flows that are suspended.
    pub fn measure_no_awaits(&self, why: &str) {
        if !self.engine.is_parents() {
            self.engine.messages.report(Cause::NoAwaits, &[why]);
        }
    }

    /// What it was started with.
    pub fn config(&self) -> &Config {
        &self.engine.config
    }

    /// Why timers sample no more although nobody stopped the profiler: another library took their signal, and there is no
    /// other. Events ([`sample_here`](crate::sample_here)) go on, and it may come back to `None`, which is that all is well.
    /// Or the profiler's thread panicked, in the host's runtime or by an error of ours; then nothing is sampled. A lock.
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

    /// Reads the rings, for a host that answered [`Drain::Requested`](crate::Drain::Requested) and holds its lock now.
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
