//! What a profiler is made of, and the locks in it.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::config::{Config, Settings};
use crate::error::Error;
use crate::messages::{Cause, Messages};
use crate::os::single_instance::Claim;
use crate::os::{background_thread, fork};
use crate::profile::aggregate::Aggregate;
use crate::profile_type::{ProfileType, ProfileTypeId, SampleClock};
use crate::sample::runtime::Runtime;
use crate::sample::threads::{self, Counts, Owner, Report, Sampling};
use crate::sample::waits;
use crate::stats::Counters;
use crate::upload::uploader::Uploader;

/// A profiler: its settings, what it counts, and what its threads share with its callers.
pub(super) struct Engine {
    pub(super) config: Config,
    pub(super) settings: Arc<Settings>,
    pub(super) runtime: &'static dyn Runtime,
    pub(super) counters: Arc<Counters>,
    pub(super) messages: Arc<Messages>,
    pub(super) aggregate: Mutex<Aggregate>,
    /// The profile type of all time of spans, if there is one.
    pub(super) wall: Option<ProfileTypeId>,
    pub(super) uploader: Uploader,
    /// A random number: which profiler it is.
    pub(super) instance: u64,
    /// Which one it is of this process, and of which process of those that forked.
    pub(super) owner: Owner,
    pub(super) generation: u32,
    /// Of profilers before this one.
    pub(super) own_cpu_before_ns: u64,
    pub(super) control: Mutex<Control>,
    pub(super) changed: Condvar,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
    /// Until `stop`: no other copy of the engine samples meanwhile.
    pub(super) claim: Mutex<Option<Claim>>,
    /// Why timers sample no more.
    pub(super) ended: Mutex<Option<String>>,
    /// What its threads had counted when it had stopped; before that they are asked.
    pub(super) last_counts: Mutex<Option<Counts>>,
}

/// What callers ask of the profiler's thread, and how far it has done that.
#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) stop: bool,
    pub(super) stopped: bool,
    /// Flushes asked for, and how many of them were encoded.
    pub(super) flushes: u64,
    pub(super) flushed: u64,
    /// Drains that rotations asked the host for, and up to which of them rings were read since.
    pub(super) drains_wanted: u64,
    pub(super) drains_done: u64,
    /// How long who waits for a flush or a stop lets the host take for a drain.
    pub(super) patience: Option<Instant>,
}

impl Engine {
    /// One whose thread runs not yet; its uploader's does.
    ///
    /// # Errors
    /// The upload thread could not be made.
    pub(super) fn new(
        config: Config,
        settings: Arc<Settings>,
        runtime: &'static dyn Runtime,
        claim: Claim,
    ) -> Result<Self, Error> {
        let (counters, messages) = (Arc::new(Counters::default()), Arc::new(Messages::default()));
        let by_timer = match settings.clock {
            SampleClock::Cpu => ProfileType::process_cpu(settings.period_ns),
            SampleClock::Wall => ProfileType::wall(settings.period_ns),
        };
        let mut profile_types: Vec<_> = std::iter::once(by_timer).chain(config.profile_types.iter().copied()).collect();
        let wall = (settings.wall_time && runtime.measures_waits()).then(|| {
            profile_types.push(ProfileType::wall_time(settings.period_ns));
            ProfileTypeId(u8::try_from(profile_types.len() - 1).unwrap_or(u8::MAX))
        });
        Ok(Self {
            aggregate: Mutex::new(Aggregate::new(profile_types)),
            wall,
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
        })
    }

    pub(super) fn sampling(&self, signal: i32) -> Sampling {
        Sampling {
            owner: self.owner,
            clock: self.settings.clock,
            period_ns: self.settings.period_ns.unsigned_abs(),
            timers: self.config.cpu_enabled,
            signal,
            ring_bytes: self.runtime.ring_bytes(),
            run_queues: self.wall.is_some(),
            report: Report { id: self.settings.report_thread_id, name: self.settings.report_thread_name },
        }
    }

    /// Measures waits, if that was asked for and can be.
    pub(super) fn measure_waits(&self) {
        waits::forget_counts();
        let Some(wall) = self.wall else { return };
        if waits::start(self.owner, wall, self.config.every_wait) == 0 {
            waits::stop(self.owner);
            self.messages.report(Cause::NoWaits, &[waits::why_none()]);
        }
    }

    /// Ends sampling for good: no timer runs, and no wait is measured.
    pub(super) fn close(&self) {
        threads::close(self.owner);
        waits::stop(self.owner);
    }

    /// What its threads count, or had counted when it stopped.
    pub(super) fn counts(&self) -> Counts {
        // Asked first: where none are kept afterwards, nobody else counted yet.
        let counts = threads::counts(self.owner);
        self.last_counts().unwrap_or(counts)
    }

    /// Whether it is of the process that this one was forked from. Its locks may be held by threads that do not exist here.
    pub(super) fn is_parents(&self) -> bool {
        self.generation != fork::generation() || fork::is_past_hooks()
    }

    pub(super) fn wait(&self, deadline: Instant, done: impl Fn(&Control) -> bool) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.control(), left, |control| !done(control));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ended(&self) -> MutexGuard<'_, Option<String>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last_counts(&self) -> MutexGuard<'_, Option<Counts>> {
        self.last_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn aggregate(&self) -> MutexGuard<'_, Aggregate> {
        self.aggregate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
