//! What became of every sample, in number and in weight. The sums hold at any time:
//!
//! ```text
//! taken   = dropped_ring + dropped_window + pending + encoded
//! encoded = queued + uploaded + refused + dropped_queue + dropped_old + discarded
//! ```
//!
//! Of waits, with `wall_time`, which are among `taken` unless they were outside of spans:
//!
//! ```text
//! waits_taken = waits_sampled + waits_outside + waits_pending + waits_dropped_ring + waits_dropped_busy + waits_dropped_thread
//! ```
//!
//! Weight is the sum of the samples' values: CPU nanoseconds for process_cpu.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number of samples and the sum of their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Samples.
    pub samples: u64,
    /// Sum of their values, CPU nanoseconds for process_cpu.
    pub weight: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.samples = self.samples.wrapping_add(other.samples);
        self.weight = self.weight.wrapping_add(other.weight);
    }
}

impl Tally {
    /// What is left of it without a part of it.
    pub(crate) fn without(self, part: Self) -> Self {
        Self { samples: self.samples.saturating_sub(part.samples), weight: self.weight.saturating_sub(part.weight) }
    }
}

/// A [`Tally`] that several threads add to.
#[derive(Debug, Default)]
pub(crate) struct AtomicTally {
    samples: AtomicU64,
    weight: AtomicU64,
}

impl AtomicTally {
    pub(crate) const fn new() -> Self {
        Self { samples: AtomicU64::new(0), weight: AtomicU64::new(0) }
    }

    pub(crate) fn clear(&self) {
        self.samples.store(0, Ordering::Relaxed);
        self.weight.store(0, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, tally: Tally) {
        self.samples.fetch_add(tally.samples, Ordering::Relaxed);
        self.weight.fetch_add(tally.weight, Ordering::Relaxed);
    }

    /// Takes away what moved on to another tally.
    pub(crate) fn sub(&self, tally: Tally) {
        self.samples.fetch_sub(tally.samples, Ordering::Relaxed);
        self.weight.fetch_sub(tally.weight, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Tally {
        Tally { samples: self.samples.load(Ordering::Relaxed), weight: self.weight.load(Ordering::Relaxed) }
    }
}

/// A snapshot of the profiler's own bookkeeping. Reading it costs microseconds and stops nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Taken by signal handlers, by hosts (`sample_here`), of waits, and closing samples.
    pub taken: Tally,
    /// Lost because a thread's ring was full, there was no memory for one, or its alternate signal stack had no room for a sample;
    /// waits, and samples that they took themselves, of threads that were not known yet.
    pub dropped_ring: Tally,
    /// Timer expiries that found no moment to sample (a garbage collection): later samples of their threads stand for them.
    pub deferred: u64,
    /// Lost because a bound of the window was reached, or there was no memory for it.
    pub dropped_window: Tally,
    /// In rings and in the window that is being filled.
    pub pending: Tally,
    /// In profiles that were encoded.
    pub encoded: Tally,
    /// Encoded and waiting to be sent or sent again.
    pub queued: Tally,
    /// Accepted by the server, or written to a file.
    pub uploaded: Tally,
    /// Refused by the server for good.
    pub refused: Tally,
    /// Lost because the queue was full or uploading ended before they went.
    pub dropped_queue: Tally,
    /// Lost because they were older than a server accepts.
    pub dropped_old: Tally,
    /// Of `dropped_queue` and `dropped_old`: sent, but not answered, so the server may have it all the same.
    pub dropped_unanswered: Tally,
    /// Thrown away as `server_address` is `none`.
    pub discarded: Tally,
    /// Waits of threads, coroutines and fibers that were to be samples, with the nanoseconds that they stand for.
    pub waits_taken: Tally,
    /// Of these: they are samples.
    pub waits_sampled: Tally,
    /// They were outside of spans.
    pub waits_outside: Tally,
    /// They become samples when their threads have a stack that can be read.
    pub waits_pending: Tally,
    /// Lost because their thread's ring was full or it had none.
    pub waits_dropped_ring: Tally,
    /// Lost because another sample of their thread was being taken, or waited for a stack that can be read.
    pub waits_dropped_busy: Tally,
    /// Lost because their thread was not known yet, or no longer.
    pub waits_dropped_thread: Tally,
    /// Windows that were encoded.
    pub windows: u64,
    /// Profiles that were queued; each of them is uploaded, refused, dropped or still waits.
    pub profiles_encoded: u64,
    /// Profiles accepted by the server, or files written.
    pub profiles_uploaded: u64,
    /// Bytes of those profiles, compressed.
    pub bytes_uploaded: u64,
    /// Profiles refused: the sum of the three below.
    pub profiles_refused: u64,
    /// Because of credentials or tenant (401, 403).
    pub refused_credentials: u64,
    /// Because of `server_address`: something answers there, but not to profiles.
    pub refused_address: u64,
    /// Because of the profile itself, as the server said.
    pub refused_profiles: u64,
    /// Profiles lost as the queue was full, they became too old, or uploading ended.
    pub profiles_dropped: u64,
    /// Requests made again after one that failed.
    pub retries: u64,
    /// Of these: profiles that the server may have twice, as an earlier request of them was not answered.
    pub retries_unanswered: u64,
    /// Samples whose span's name and trace id were lost; they carry the span id alone.
    pub spans_lost: u64,
    /// Spans whose name became "(other)", as there were too many names in a window.
    pub names_cut: u64,
    /// Frames that could not be resolved to a function.
    pub frames_unresolved: u64,
    /// Tag sets left out since the process started, as 1,024 of contexts, or 8,192 of threads, were in use within two windows.
    pub tag_sets_lost: u64,
    /// Threads that have a timer now.
    pub threads: u64,
    /// Threads that are not sampled: the sum of the two below.
    pub threads_unsampled: u64,
    /// Because the kernel gave them no timer, or the last signals that may be pending are left to the host.
    pub threads_without_timer: u64,
    /// Because there was no memory for their ring within the bound.
    pub threads_without_ring: u64,
    /// CPU time of the profiler's own threads, nanoseconds.
    pub own_cpu_ns: u64,
    /// Wall time within signal handlers, nanoseconds: without what the kernel needs to deliver a signal, with what it preempts them for.
    pub handler_ns: u64,
    /// The newest error of any stage, "" if there was none.
    pub last_error: String,
}

impl Stats {
    /// The tallies by name, in the order in which samples pass them.
    pub fn tallies(&self) -> [(&'static str, Tally); 19] {
        [
            ("taken", self.taken),
            ("dropped_ring", self.dropped_ring),
            ("dropped_window", self.dropped_window),
            ("pending", self.pending),
            ("encoded", self.encoded),
            ("queued", self.queued),
            ("uploaded", self.uploaded),
            ("refused", self.refused),
            ("dropped_queue", self.dropped_queue),
            ("dropped_old", self.dropped_old),
            ("dropped_unanswered", self.dropped_unanswered),
            ("discarded", self.discarded),
            ("waits_taken", self.waits_taken),
            ("waits_sampled", self.waits_sampled),
            ("waits_outside", self.waits_outside),
            ("waits_pending", self.waits_pending),
            ("waits_dropped_ring", self.waits_dropped_ring),
            ("waits_dropped_busy", self.waits_dropped_busy),
            ("waits_dropped_thread", self.waits_dropped_thread),
        ]
    }

    /// The numbers by name; those that end in `_ns` are nanoseconds.
    pub fn numbers(&self) -> [(&'static str, u64); 22] {
        [
            ("deferred", self.deferred),
            ("windows", self.windows),
            ("profiles_encoded", self.profiles_encoded),
            ("profiles_uploaded", self.profiles_uploaded),
            ("bytes_uploaded", self.bytes_uploaded),
            ("profiles_refused", self.profiles_refused),
            ("refused_credentials", self.refused_credentials),
            ("refused_address", self.refused_address),
            ("refused_profiles", self.refused_profiles),
            ("profiles_dropped", self.profiles_dropped),
            ("retries", self.retries),
            ("retries_unanswered", self.retries_unanswered),
            ("spans_lost", self.spans_lost),
            ("names_cut", self.names_cut),
            ("frames_unresolved", self.frames_unresolved),
            ("tag_sets_lost", self.tag_sets_lost),
            ("threads", self.threads),
            ("threads_unsampled", self.threads_unsampled),
            ("threads_without_timer", self.threads_without_timer),
            ("threads_without_ring", self.threads_without_ring),
            ("own_cpu_ns", self.own_cpu_ns),
            ("handler_ns", self.handler_ns),
        ]
    }
}

/// The counters that the stages share. A stage adds to its own and never reads another's.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Samples of no handler: they are taken and added to the window at once.
    pub(crate) unseen: AtomicTally,
    pub(crate) dropped_window: AtomicTally,
    /// The samples among them for which there was no memory.
    pub(crate) without_memory: AtomicU64,
    pub(crate) encoded: AtomicTally,
    pub(crate) queued: AtomicTally,
    pub(crate) uploaded: AtomicTally,
    pub(crate) refused: AtomicTally,
    pub(crate) dropped_queue: AtomicTally,
    pub(crate) dropped_old: AtomicTally,
    pub(crate) dropped_unanswered: AtomicTally,
    pub(crate) discarded: AtomicTally,
    pub(crate) windows: AtomicU64,
    pub(crate) profiles_encoded: AtomicU64,
    pub(crate) profiles_uploaded: AtomicU64,
    pub(crate) bytes_uploaded: AtomicU64,
    pub(crate) profiles_refused: AtomicU64,
    pub(crate) refused_credentials: AtomicU64,
    pub(crate) refused_address: AtomicU64,
    pub(crate) refused_profiles: AtomicU64,
    pub(crate) profiles_dropped: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) retries_unanswered: AtomicU64,
    pub(crate) spans_lost: AtomicU64,
    pub(crate) names_cut: AtomicU64,
    pub(crate) frames_unresolved: AtomicU64,
    last_error: Mutex<String>,
    /// Held while a tally moves from one sum to another, so that who reads them together finds each sample once.
    moves: Mutex<()>,
}

/// What became of a queued profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Uploaded,
    Refused,
    DroppedQueue,
    DroppedOld,
}

impl Counters {
    /// Counts samples that are dropped as there is no memory.
    pub(crate) fn drop_without_memory(&self, tally: Tally) {
        self.without_memory.fetch_add(tally.samples, Ordering::Relaxed);
        self.dropped_window.add(tally);
    }

    /// The part of [`Stats`] that is counted here; the tallies from `encoded` on add up.
    pub(crate) fn snapshot(&self) -> Stats {
        let _moving = self.moving();
        Stats {
            dropped_window: self.dropped_window.get(),
            encoded: self.encoded.get(),
            queued: self.queued.get(),
            uploaded: self.uploaded.get(),
            refused: self.refused.get(),
            dropped_queue: self.dropped_queue.get(),
            dropped_old: self.dropped_old.get(),
            dropped_unanswered: self.dropped_unanswered.get(),
            discarded: self.discarded.get(),
            windows: self.windows.load(Ordering::Relaxed),
            profiles_encoded: self.profiles_encoded.load(Ordering::Relaxed),
            profiles_uploaded: self.profiles_uploaded.load(Ordering::Relaxed),
            bytes_uploaded: self.bytes_uploaded.load(Ordering::Relaxed),
            profiles_refused: self.profiles_refused.load(Ordering::Relaxed),
            refused_credentials: self.refused_credentials.load(Ordering::Relaxed),
            refused_address: self.refused_address.load(Ordering::Relaxed),
            refused_profiles: self.refused_profiles.load(Ordering::Relaxed),
            profiles_dropped: self.profiles_dropped.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            retries_unanswered: self.retries_unanswered.load(Ordering::Relaxed),
            spans_lost: self.spans_lost.load(Ordering::Relaxed),
            names_cut: self.names_cut.load(Ordering::Relaxed),
            frames_unresolved: self.frames_unresolved.load(Ordering::Relaxed),
            last_error: self.last_error(),
            ..Stats::default()
        }
    }

    /// Counts a profile that was encoded and is now queued.
    pub(crate) fn queue(&self, tally: Tally) {
        let _moving = self.moving();
        self.encoded.add(tally);
        self.queued.add(tally);
    }

    /// Counts a profile that was encoded and goes nowhere.
    pub(crate) fn discard(&self, tally: Tally) {
        let _moving = self.moving();
        self.encoded.add(tally);
        self.discarded.add(tally);
    }

    /// Moves what was queued to where it ended.
    pub(crate) fn settle(&self, tally: Tally, fate: Fate) {
        let _moving = self.moving();
        self.queued.sub(tally);
        match fate {
            Fate::Uploaded => self.uploaded.add(tally),
            Fate::Refused => self.refused.add(tally),
            Fate::DroppedQueue => self.dropped_queue.add(tally),
            Fate::DroppedOld => self.dropped_old.add(tally),
        }
    }

    /// Moves what was queued to the dropped; a part of it a server may have.
    pub(crate) fn lose(&self, all: Tally, unanswered: Tally, fate: Fate) {
        self.settle(all, fate);
        self.dropped_unanswered.add(unanswered);
    }

    fn moving(&self) -> std::sync::MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Keeps the newest error for [`Stats::last_error`].
    pub(crate) fn set_last_error(&self, error: &str) {
        let mut last = self.last_error.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        error.clone_into(&mut last);
    }

    pub(crate) fn last_error(&self) -> String {
        self.last_error.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}
