//! The door to the upload thread: takes profiles, flushes, stops.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::limits::Limits;
use super::shared::Shared;
use super::transport::Sender;
use super::worker;
use crate::config::{Settings, Target};
use crate::error::{Error, ErrorKind};
use crate::messages::Messages;
use crate::os::background_thread;
use crate::profile::pprof::Encoded;
use crate::stats::Counters;

/// How long a thread that is past its last lock may take to end. Only where it gets no CPU does it take any time.
const JOIN_TIME: Duration = Duration::from_millis(100);

/// Takes profiles and sends them where the settings say. One a profiler.
pub(crate) struct Uploader {
    shared: Arc<Shared>,
    /// False where nothing is sent.
    sends: bool,
    /// `None` where nothing is sent, and after `stop`.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Uploader {
    /// Starts the upload thread, which asks the server for its version first where that matters.
    ///
    /// # Errors
    /// The thread could not be made.
    pub(crate) fn start(
        settings: Arc<Settings>,
        counters: Arc<Counters>,
        messages: Arc<Messages>,
    ) -> Result<Self, Error> {
        Self::start_with(settings, counters, messages, Limits::default())
    }

    fn start_with(
        settings: Arc<Settings>,
        counters: Arc<Counters>,
        messages: Arc<Messages>,
        limits: Limits,
    ) -> Result<Self, Error> {
        for notice in &settings.notices {
            messages.add(notice.clone());
        }
        let sender = Sender::new(&settings, &messages);
        Self::start_to(sender, settings, counters, messages, limits)
    }

    fn start_to(
        sender: Sender,
        settings: Arc<Settings>,
        counters: Arc<Counters>,
        messages: Arc<Messages>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let sends = !matches!(settings.target, Target::None);
        let shared = Arc::new(Shared::new(settings, counters, messages, limits));
        let thread =
            if sends {
                let shared = Arc::clone(&shared);
                let thread = background_thread::spawn("spanprof-upload", move || worker::run(&shared, &sender));
                Some(thread.map_err(|error| {
                    Error::new(ErrorKind::System, format!("cannot start the upload thread: {error}"))
                })?)
            } else {
                None
            };
        Ok(Self { shared, sends, thread: Mutex::new(thread) })
    }

    /// Queues profiles and counts them as encoded. Never waits; what finds no room is dropped and counted, oldest first.
    pub(crate) fn send(&self, profiles: Vec<Encoded>) {
        if !self.sends {
            for profile in profiles {
                self.shared.counters.discard(profile.tally);
            }
            return;
        }
        self.shared.add(profiles);
    }

    /// Whether samples shall carry `trace_id`: the setting, or what the server's version says once it is known.
    pub(crate) fn trace_ids(&self) -> bool {
        self.shared.trace_ids()
    }

    /// Sends now what is queued, and waits until all of it is uploaded, refused or dropped. False: not within `timeout`, or
    /// uploading has ended by a panic.
    pub(crate) fn flush(&self, timeout: Duration) -> bool {
        if !self.sends {
            return true;
        }
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        let limit = state.queue.next_number();
        state.release = limit;
        state.backed_off = None;
        self.shared.wake.notify_all();
        while state.has_below(limit) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.gave_up
    }

    /// What is lost from here on is lost by the stop that begins: also by the last rotation, which comes before
    /// [`stop`](Self::stop). Again: nothing happens.
    pub(crate) fn begin_stop(&self) {
        let lost = self.shared.lost();
        self.shared.lock().lost_before_stop.get_or_insert(lost);
    }

    /// Tries once more to send what is queued, then ends the thread. After `timeout` at the latest, whatever a server
    /// does, everything that was not sent is dropped and counted. False: the thread had not ended by then or ended by a panic,
    /// or something was refused or dropped since [`begin_stop`](Self::begin_stop) or the first call. Who comes while another caller stops it waits for that too.
    pub(crate) fn stop(&self, timeout: Duration) -> bool {
        if !self.sends {
            return true;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        let lost_before = *state.lost_before_stop.get_or_insert_with(|| self.shared.lost());
        if thread.is_some() {
            state.stop_by = Some(deadline);
            self.shared.wake.notify_all();
        }
        while !state.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let is_delivered = state.ended && !state.gave_up && self.shared.lost() == lost_before;
        let in_time = state.ended;
        drop(state);
        let Some(thread) = thread else { return is_delivered };
        self.shared.end();
        // It is past its last lock. One that hangs in a request is left alone: it ends itself when that returns.
        let has_ended = in_time && background_thread::join_until(thread, deadline + JOIN_TIME);
        has_ended && is_delivered
    }
}

/// An uploader that is let go without [`stop`](Uploader::stop) drops what it has.
impl Drop for Uploader {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl std::fmt::Debug for Uploader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uploader").field("shared", &self.shared).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
