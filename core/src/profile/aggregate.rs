//! Sums samples by (profile type, stack, span, tags) for one window.
//!
//! Stacks, frames and span names are interned for the window and leave with it; what outlives it is bounded: the frames
//! resolved so far, and the spans of the window before, for samples that a handler was just writing at its end (of two windows, where
//! the host did not drain in time).

use std::collections::{HashMap, hash_map};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::closed_window::ClosedWindow;
use super::open_window::{Filling, Key, MAX_FRAMES, Span};
use super::own_frames::{self, NO_STACK};
use super::ready::{self, Round};
use crate::context::tags::TagSetId;
use crate::os::clock;
use crate::profile_type::{ProfileType, ProfileTypeId};
use crate::sample::frames::{Frame, FrameId};
use crate::sample::ring::{Entry, Measure, Sample};
use crate::sample::runtime::{Repair, Runtime};
use crate::sample::threads::{Drained, Part, RunQueues, Unseen};
use crate::stats::{Counters, Tally};
use crate::wait_state::State;

/// Reads the wall clock, nanoseconds since the epoch.
type WallClock = fn() -> i64;

/// Frames kept resolved from one window to the next.
const MAX_FRAMES_CACHED: usize = MAX_FRAMES / 4;
/// How long a sample may wait for [`Runtime::repair`].
const REPAIR_TIMEOUT: Duration = Duration::from_secs(1);

/// What a sample is in, apart from its stack.
#[derive(Clone, Copy, Debug)]
struct Place {
    profile_type: ProfileTypeId,
    state: State,
    /// Things that each sample stands for.
    count: u16,
    span_id: u64,
    is_concurrent: bool,
    context_tags: TagSetId,
    thread_tags: TagSetId,
}

/// A thread's newest sample, for "again".
#[derive(Debug)]
struct Newest {
    place: Place,
    /// What it claims of its thread's time in the run queue, in nanoseconds.
    claimed_ns: u64,
    frames: Vec<u64>,
    /// Of one that its runtime did not mend at once.
    extra: Option<Vec<u64>>,
}

/// A sample that its runtime could not mend yet.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    place: Place,
    tally: Tally,
    /// Of one of CPU time, what it claims of its thread's time in the run queue; once that is known, what it gets.
    ready_ns: u64,
    frames: Vec<u64>,
    extra: Vec<u64>,
}

/// The sums so far, and what is needed to add to them.
#[derive(Debug)]
pub(crate) struct Aggregate {
    profile_types: Vec<ProfileType>,
    wall_clock: WallClock,
    filling: Filling,
    start_unix_nanos: i64,
    start: Instant,
    /// Of the windows before, the newest first.
    previous_spans: [Arc<HashMap<u64, Span>>; 2],
    previous_names: Arc<HashMap<u64, Box<str>>>,
    frames: HashMap<u64, Arc<Frame>>,
    unresolved: Vec<u64>,
    newest: HashMap<u32, Newest>,
    waiting: Vec<Waiting>,
    /// The profile type of all time of spans, if CPU samples are to have their share of it.
    wall_time: Option<ProfileTypeId>,
    run_queues: RunQueues,
    round: Round,
}

impl Aggregate {
    pub(crate) fn new(profile_types: Vec<ProfileType>) -> Self {
        Self::with_clock(profile_types, clock::unix_nanos)
    }

    fn with_clock(profile_types: Vec<ProfileType>, wall_clock: WallClock) -> Self {
        let of_wall_time = profile_types.iter().position(ProfileType::is_wall_time);
        let wall_time = of_wall_time.filter(|_| profile_types[0].is_cpu_time()).and_then(|at| u8::try_from(at).ok());
        Self {
            profile_types,
            wall_time: wall_time.map(ProfileTypeId),
            run_queues: RunQueues::default(),
            round: Round::default(),
            wall_clock,
            filling: Filling::default(),
            start_unix_nanos: wall_clock(),
            start: Instant::now(),
            previous_spans: Default::default(),
            previous_names: Arc::default(),
            frames: HashMap::new(),
            unresolved: Vec::new(),
            newest: HashMap::new(),
            waiting: Vec::new(),
        }
    }

    /// Age of the window.
    pub(crate) fn age(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether the window must end before its time: it is full, or the wall clock jumped.
    pub(crate) fn must_rotate(&self) -> bool {
        let expected = self.start_unix_nanos.saturating_add_unsigned(nanos(self.age()));
        self.filling.is_beyond(1) || (self.wall_clock)().abs_diff(expected) > 1_000_000_000
    }

    /// Adds what `threads::drain` passes on.
    pub(crate) fn add(&mut self, drained: Drained<'_>, runtime: &dyn Runtime, counters: &Counters) {
        match drained {
            Drained::Entry(thread, entry) => self.add_entry(thread, &entry, runtime, counters),
            Drained::Read(thread, tid) => self.end_round(thread, tid),
            Drained::Gone(thread) => {
                self.newest.remove(&thread);
                self.run_queues.forget(thread);
            }
            Drained::Unseen(unseen) => self.add_unseen(unseen, counters),
        }
    }

    /// Mends what waits, once rings are read and no lock is held that a fork takes. The last time nothing may wait any
    /// longer.
    pub(crate) fn mend(&mut self, runtime: &dyn Runtime, counters: &Counters, is_last: bool) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let late = is_last || waiting.since.elapsed() > REPAIR_TIMEOUT;
            if runtime.repair(&mut waiting.frames, &waiting.extra, &mut waiting.place.state) == Repair::Ready || late {
                let key = self.sum(waiting.place, &waiting.frames, waiting.tally, counters);
                if let (Some(key), Some(profile_type)) = (key, self.wall_time) {
                    ready::add(&mut self.filling, key, waiting.ready_ns, profile_type);
                }
            } else {
                self.waiting.push(waiting);
            }
        }
    }

    /// About what it takes to encode the window.
    pub(crate) fn bytes_to_encode(&self) -> usize {
        self.filling.bytes_to_encode()
    }

    /// Drops all samples of the window, as there is no memory.
    pub(crate) fn let_go(&mut self, counters: &Counters) {
        let filling = std::mem::take(&mut self.filling);
        for sum in filling.samples.into_values().filter(|sum| !sum.is_derived()) {
            counters.drop_without_memory(sum.tally);
        }
        // A ring tells a span once a window.
        self.filling.spans = filling.spans;
        for waiting in std::mem::take(&mut self.waiting) {
            counters.drop_without_memory(waiting.tally);
        }
        self.unresolved = Vec::new();
        self.frames = HashMap::new();
    }

    /// The frame ids whose meaning is to be asked, then told to [`learn`](Self::learn).
    pub(crate) fn take_unresolved(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unresolved)
    }

    /// Takes note of what frame ids mean; those that are not known yet are asked again.
    pub(crate) fn learn(&mut self, ids: Vec<FrameId>, resolved: Vec<Option<Frame>>) {
        for (id, frame) in ids.into_iter().zip(resolved.into_iter().chain(std::iter::repeat(None))) {
            match frame {
                Some(frame) => self.known(id, Arc::new(frame)),
                None => self.unresolved.push(id),
            }
        }
    }

    /// Swaps the window out. `final_names` are those told since the last rotation. `is_drained`: what was sampled before the new
    /// window's number was told is in it. Else such samples come later, whose spans may have been told in the window before this one.
    /// `cache_frames`: what frame ids mean stays known for the next window.
    pub(crate) fn rotate(
        &mut self,
        final_names: HashMap<u64, Box<str>>,
        cache_frames: bool,
        is_drained: bool,
        counters: &Counters,
    ) -> ClosedWindow {
        let mut filling = std::mem::take(&mut self.filling);
        let spans = Arc::new(std::mem::take(&mut filling.spans));
        let names = Arc::new(final_names);
        let previous_spans = self.previous_spans.clone();
        if is_drained {
            self.previous_spans = [spans.clone(), Arc::default()];
        } else if !spans.is_empty() {
            self.previous_spans.rotate_right(1);
            self.previous_spans[0] = spans.clone();
        }
        let window = ClosedWindow {
            start_unix_nanos: self.start_unix_nanos,
            duration: self.age(),
            profile_types: self.profile_types.clone(),
            previous_spans,
            previous_names: std::mem::replace(&mut self.previous_names, names.clone()),
            spans,
            names,
            filling,
        };
        self.start = Instant::now();
        self.start_unix_nanos = (self.wall_clock)();
        counters.frames_unresolved.fetch_add(self.unresolved.len() as u64, Ordering::Relaxed);
        self.unresolved.clear();
        if !cache_frames || self.frames.len() > MAX_FRAMES_CACHED {
            self.frames.clear();
        }
        window
    }

    fn add_entry(&mut self, thread: u32, entry: &Entry<'_>, runtime: &dyn Runtime, counters: &Counters) {
        match entry {
            Entry::Span { span_id, trace_id, name } => {
                let name = self.filling.name(&String::from_utf8_lossy(name), counters);
                self.filling.add_span(*span_id, Span { trace_id: *trace_id, name });
            }
            Entry::Sample(sample) => self.add_sample(thread, sample, runtime, counters),
            Entry::Again { value } => match self.newest.remove(&thread) {
                Some(newest) => {
                    let tally = Tally { samples: 1, weight: *value };
                    match &newest.extra {
                        Some(extra) => self.wait(newest.place, tally, newest.claimed_ns, &newest.frames, extra),
                        None => self.sum_of_thread(newest.place, &newest.frames, tally, newest.claimed_ns, counters),
                    }
                    self.newest.insert(thread, newest);
                }
                None => counters.dropped_window.add(Tally { samples: 1, weight: *value }),
            },
        }
    }

    fn add_sample(&mut self, thread: u32, sample: &Sample<'_>, runtime: &dyn Runtime, counters: &Counters) {
        let mut place = Place {
            profile_type: sample.measure.profile_type,
            state: sample.measure.state,
            count: sample.measure.count,
            span_id: sample.span_id,
            is_concurrent: sample.is_concurrent && self.wall_time.is_some(),
            context_tags: sample.context_tags,
            thread_tags: sample.thread_tags,
        };
        let tally = tally_of(sample.measure);
        let claimed_ns = ready::claimed_ns(sample.measure);
        let mut newest =
            self.newest.remove(&thread).unwrap_or(Newest { place, claimed_ns, frames: Vec::new(), extra: None });
        newest.frames.clear();
        newest.frames.extend_from_slice(sample.frames);
        newest.extra = None;
        let is_ready = runtime.repair(&mut newest.frames, sample.extra, &mut place.state) == Repair::Ready;
        (newest.place, newest.claimed_ns) = (place, claimed_ns);
        if is_ready {
            self.sum_of_thread(place, &newest.frames, tally, claimed_ns, counters);
        } else {
            newest.extra = Some(sample.extra.to_vec());
            self.wait(place, tally, claimed_ns, &newest.frames, sample.extra);
        }
        self.newest.insert(thread, newest);
    }

    fn wait(&mut self, place: Place, tally: Tally, claimed_ns: u64, frames: &[u64], extra: &[u64]) {
        self.round.add_later();
        let (frames, extra) = (frames.to_vec(), extra.to_vec());
        self.waiting.push(Waiting { since: Instant::now(), place, tally, ready_ns: claimed_ns, frames, extra });
    }

    fn add_unseen(&mut self, unseen: Unseen, counters: &Counters) {
        let place = Place {
            profile_type: ProfileTypeId::TIMER,
            state: State::Cpu,
            count: 1,
            span_id: 0,
            is_concurrent: false,
            context_tags: TagSetId::EMPTY,
            thread_tags: TagSetId::EMPTY,
        };
        let tally = Tally { samples: unseen.expiries, weight: unseen.weight };
        counters.unseen.add(tally);
        let _ = self.sum(place, &[own_frames::id_of(unseen.why)], tally, counters);
    }

    /// As [`sum`](Self::sum), of a sample that was just read from its thread's ring.
    fn sum_of_thread(&mut self, place: Place, frames: &[u64], tally: Tally, claimed_ns: u64, counters: &Counters) {
        let key = self.sum(place, frames, tally, counters);
        if let Some(key) = key.filter(|key| self.wall_time.is_some() && key.profile_type == ProfileTypeId::TIMER) {
            self.round.add(key, claimed_ns);
        }
    }

    /// What a thread stood in the queue for is of those who claim it.
    fn end_round(&mut self, thread: u32, tid: Option<i32>) {
        let asks = self.wall_time.is_some() && self.round.asks();
        let part = if asks { self.run_queues.part(thread, tid) } else { Part::default() };
        self.share_ready(part);
    }

    fn share_ready(&mut self, part: Part) {
        if let Some(profile_type) = self.wall_time {
            self.round.share(part, profile_type, &mut self.filling);
            // Those of the round are the newest that wait.
            let later = self.waiting.iter_mut().rev().take(self.round.later());
            for waiting in later {
                waiting.ready_ns = part.of(waiting.ready_ns);
            }
        }
        self.round.clear();
    }

    fn sum(&mut self, place: Place, frames: &[u64], tally: Tally, counters: &Counters) -> Option<Key> {
        let frames = if frames.is_empty() { &[NO_STACK] } else { frames };
        if self.filling.is_beyond(2) {
            counters.dropped_window.add(tally);
            return None;
        }
        if !self.filling.has_memory(frames.len()) {
            counters.drop_without_memory(tally);
            return None;
        }
        let stack = self.stack(frames);
        let Place { profile_type, state, count, span_id, is_concurrent, context_tags, thread_tags } = place;
        let key = Key { profile_type, state, stack, span_id, is_concurrent, context_tags, thread_tags };
        if tally.samples > 0 {
            let sum = self.filling.samples.entry(key).or_default();
            sum.tally += tally;
            sum.count = sum.count.saturating_add(u64::from(count) * tally.samples);
        }
        Some(key)
    }

    #[expect(clippy::cast_possible_truncation, reason = "bounded by the keys of a window times the frames of a stack")]
    fn stack(&mut self, frames: &[u64]) -> u32 {
        if let Some(&stack) = self.filling.stacks.get(frames) {
            return stack;
        }
        for &id in frames {
            let next = self.filling.frames.len() as u32;
            if let hash_map::Entry::Vacant(place) = self.filling.numbers.entry(id) {
                place.insert(next);
                let known = own_frames::of(id).or_else(|| self.frames.get(&id).cloned());
                if known.is_none() {
                    self.unresolved.push(id);
                }
                self.filling.frames.push(known);
            }
        }
        let stack = self.filling.stacks.len() as u32;
        self.filling.stack_frames += frames.len();
        self.filling.stacks.insert(frames.into(), stack);
        stack
    }

    fn known(&mut self, id: FrameId, frame: Arc<Frame>) {
        if let Some(&at) = self.filling.numbers.get(&id)
            && let Some(place) = self.filling.frames.get_mut(at as usize)
        {
            *place = Some(frame.clone());
        }
        // Without memory for more it is asked again in the next window.
        if self.frames.try_reserve(1).is_ok() {
            self.frames.insert(id, frame);
        }
    }
}

/// Of one sample; what only claims is none.
fn tally_of(measure: Measure) -> Tally {
    if measure.only_claims() { Tally::default() } else { Tally { samples: 1, weight: measure.value } }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What the profiler does after rings are read.
#[cfg(test)]
pub(super) fn settle(aggregate: &mut Aggregate, runtime: &dyn Runtime, counters: &Counters, is_last: bool) {
    aggregate.mend(runtime, counters, is_last);
    let ids = aggregate.take_unresolved();
    let resolved = runtime.resolve(&ids);
    aggregate.learn(ids, resolved);
}

#[cfg(test)]
mod tests;
