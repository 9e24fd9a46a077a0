//! What the upload thread shares with those who queue profiles, flush and stop: its state, under one lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::limits::Limits;
use super::outcome::{Blame, Outcome};
use super::queue::{Lost, Queue};
use crate::config::{Settings, Target, TraceIdLabel};
use crate::messages::{Cause, Messages};
use crate::profile::pprof::Encoded;
use crate::stats::{Counters, Fate, Tally};

/// What the thread and its callers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Arc<Settings>,
    pub(super) counters: Arc<Counters>,
    pub(super) messages: Arc<Messages>,
    pub(super) limits: Limits,
    pub(super) trace_ids: AtomicBool,
    state: Mutex<State>,
    /// For the thread: there is something to do.
    pub(super) wake: Condvar,
    /// For those who wait: something was settled, or the thread ended.
    pub(super) changed: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) queue: Queue,
    pub(super) in_flight: Option<InFlight>,
    /// Profiles with a number below this may go.
    pub(super) release: u64,
    pub(super) next_round: Instant,
    /// Failures since the server last answered otherwise.
    pub(super) failures: u32,
    /// Tries that failed since that was said, until a profile is taken again.
    pub(super) said_failures: u32,
    /// Our own wait after failures, which [`Uploader::flush`](super::uploader::Uploader::flush) cuts short.
    pub(super) backed_off: Option<Instant>,
    /// The wait that a server asked for.
    pub(super) held: Option<Instant>,
    pub(super) stop_by: Option<Instant>,
    /// What had been [`lost`](Shared::lost) when a stop began.
    pub(super) lost_before_stop: Option<u64>,
    /// The thread takes nothing more, and everything is counted.
    pub(super) ended: bool,
    /// It ended by a panic, and not as somebody stopped it.
    pub(super) gave_up: bool,
}

/// The profile that is being sent; it counts as queued.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) number: u64,
    pub(super) tally: Tally,
    /// Taken after [`Uploader::stop`](super::uploader::Uploader::stop) was called: there is no further try.
    pub(super) is_last: bool,
}

impl State {
    /// Whether a profile with a number below `limit` is neither uploaded nor refused nor dropped.
    pub(super) fn has_below(&self, limit: u64) -> bool {
        self.in_flight.is_some_and(|item| item.number < limit) || self.queue.has_below(limit)
    }

    /// How long the thread has nothing to do until then.
    pub(super) fn rests(&self, until: Instant, now: Instant) -> Option<Duration> {
        let is_idle = !self.ended && self.stop_by.is_none() && !self.queue.has_below(self.release);
        Some(until.saturating_duration_since(now)).filter(|left| is_idle && !left.is_zero())
    }

    /// The server answers: no reason to wait.
    pub(super) fn answered(&mut self) {
        (self.failures, self.backed_off, self.held) = (0, None, None);
    }
}

impl Shared {
    pub(super) fn new(
        settings: Arc<Settings>,
        counters: Arc<Counters>,
        messages: Arc<Messages>,
        limits: Limits,
    ) -> Self {
        let state = State {
            queue: Queue::new(limits.queue_bytes),
            in_flight: None,
            release: 0,
            next_round: Instant::now() + settings.upload_interval,
            failures: 0,
            said_failures: 0,
            backed_off: None,
            held: None,
            stop_by: None,
            lost_before_stop: None,
            ended: false,
            gave_up: false,
        };
        Self {
            trace_ids: AtomicBool::new(settings.trace_id != TraceIdLabel::Never),
            settings,
            counters,
            messages,
            limits,
            state: Mutex::new(state),
            wake: Condvar::new(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Relaxed: a window that is encoded a moment before the answer arrives is no worse than one before the question.
    pub(super) fn trace_ids(&self) -> bool {
        self.trace_ids.load(Ordering::Relaxed)
    }

    /// Profiles that were refused or dropped so far, and samples that got into none.
    pub(super) fn lost(&self) -> u64 {
        let lost = [&self.counters.profiles_refused, &self.counters.profiles_dropped];
        let profiles: u64 = lost.map(|number| number.load(Ordering::Relaxed)).iter().sum();
        profiles + self.counters.dropped_window.get().samples
    }

    /// Queues profiles.
    pub(super) fn add(&self, profiles: Vec<Encoded>) {
        let mut state = self.lock();
        let now = Instant::now();
        for profile in profiles {
            self.counters.profiles_encoded.fetch_add(1, Ordering::Relaxed);
            self.counters.queue(profile.tally);
            if state.ended {
                let mut lost = Lost::default();
                lost.add(profile.tally, false);
                self.lose(lost, Fate::DroppedQueue);
            } else {
                let dropped = state.queue.add(profile, now);
                self.drop_for_room(dropped);
            }
        }
        self.wake.notify_all();
    }

    /// Ends uploading and counts what is left as dropped. The thread may still be in a request; it will find out.
    pub(super) fn end(&self) {
        let left = self.drop_all(&mut self.lock());
        if left != Lost::default() {
            let said = self.said("not all was taken within the time that a stop has", Blame::Address);
            self.counters.set_last_error(&said);
            self.messages.report(Cause::LastTry, &[&said]);
        }
        self.wake.notify_all();
        self.changed.notify_all();
    }

    /// The same where the thread has panicked: nothing is uploaded any more, and whoever asks is told so.
    pub(super) fn give_up(&self, panic: &str) {
        let mut state = self.lock();
        state.gave_up = true;
        self.drop_all(&mut state);
        drop(state);
        self.changed.notify_all();
        let why = format!("the upload thread met an error of its own, please report it: {panic}");
        self.counters.set_last_error(&why);
        self.messages.report(Cause::NoUploads, &[&why]);
    }

    fn drop_all(&self, state: &mut State) -> Lost {
        state.ended = true;
        let mut left = state.queue.take_all();
        if let Some(in_flight) = state.in_flight.take() {
            // The request is under way: nobody will read its answer.
            left.add(in_flight.tally, self.asks_servers());
        }
        self.lose(left, Fate::DroppedQueue);
        left
    }

    pub(super) fn drop_for_room(&self, dropped: Lost) {
        if dropped != Lost::default() {
            self.lose(dropped, Fate::DroppedQueue);
            self.messages.report(Cause::QueueFull, &[]);
            self.changed.notify_all();
        }
    }

    pub(super) fn lose(&self, lost: Lost, fate: Fate) {
        self.counters.profiles_dropped.fetch_add(lost.profiles, Ordering::Relaxed);
        self.counters.lose(lost.all, lost.unanswered, fate);
    }

    pub(super) fn asks_servers(&self) -> bool {
        matches!(self.settings.target, Target::Http(_))
    }

    /// What happened, where, and which settings to look at.
    pub(super) fn sentence(&self, outcome: &Outcome) -> String {
        self.said(&outcome.reason, outcome.blame)
    }

    /// Where profiles go, in words.
    pub(super) fn address(&self) -> String {
        match &self.settings.target {
            Target::Http(target) => target.base.clone(),
            Target::File(folder) => format!("file://{}", folder.display()),
            Target::None => "none".to_owned(),
        }
    }

    fn said(&self, reason: &str, blame: Blame) -> String {
        let at = match &self.settings.target {
            Target::Http(target) => format!("{}: ", target.base),
            Target::File(_) | Target::None => String::new(),
        };
        let reason = reason.trim_end_matches('.');
        match blame.settings() {
            "" => format!("{at}{reason}."),
            settings => format!("{at}{reason}. Check {settings}."),
        }
    }
}
