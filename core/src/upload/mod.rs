//! Stage 4: send.
//!
//! One thread, which sleeps unless there is something to do: no profiles, no wake-ups. Who calls the [`Uploader`] never
//! waits for the network, but in [`flush`](Uploader::flush) and [`stop`](Uploader::stop), and there no longer than said.
//!
//! A profile is held until a round is due (`upload_interval` after the last one), then tried; a failure delays all
//! profiles, as it is the server that failed, and one that fails goes behind the others, as it may be the profile. What
//! ends somewhere is counted there under the same lock that moves it.

mod build_info;
mod file;
mod push;
mod queue;
mod retry;
#[cfg(test)]
mod test_server;
mod worker;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::{Settings, Target};
use crate::error::{Error, ErrorKind};
use crate::messages::Messages;
use crate::profile::pprof::Encoded;
use crate::sample::own_thread;
use crate::stats::Counters;
use worker::{Sender, Shared};

/// Times and sizes that no setting changes. Tests make them small.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// The first wait after a failure, at most.
    backoff: Duration,
    /// The longest wait after failures.
    max_backoff: Duration,
    /// Servers refuse what started an hour ago; a window is up to 15 s long, and a request takes its time too.
    max_age: Duration,
    queue_bytes: usize,
    /// One request, from name lookup to the end of the answer.
    request: Duration,
    /// The question for the server's version, which holds up the first upload.
    question: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            max_age: Duration::from_secs(59 * 60),
            queue_bytes: 16 << 20,
            request: Duration::from_secs(10),
            question: Duration::from_secs(2),
        }
    }
}

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
            messages.info(notice.as_str());
        }
        let sender = Sender::new(&settings);
        let sends = !matches!(settings.target, Target::None);
        let shared = Arc::new(Shared::new(settings, counters, messages, limits));
        let thread =
            if sends {
                let shared = Arc::clone(&shared);
                let thread = own_thread::spawn("spanprof-upload", move || worker::run(&shared, &sender));
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

    /// Sends now what is queued, and waits until all of it is uploaded, refused or dropped. False: not within `timeout`.
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
        true
    }

    /// Tries once more to send what is queued, then ends the thread. After `timeout` at the latest, whatever a server
    /// does, everything that was not sent is dropped and counted. False: the thread had not ended by then.
    pub(crate) fn stop(&self, timeout: Duration) -> bool {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return true };
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        state.stop_by = Some(deadline);
        self.shared.wake.notify_all();
        while !state.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let in_time = state.ended;
        drop(state);
        self.shared.end();
        if in_time {
            // It is past its last lock. One that hangs in a request is left alone: it ends itself when that returns.
            drop(thread.join());
        }
        in_time
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
