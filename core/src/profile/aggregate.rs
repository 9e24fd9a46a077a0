//! Sums samples by (profile type, stack, span, tags) for one window.
//!
//! Stacks, frames and span names are interned for the window and leave with it; what outlives it is bounded: the frames
//! resolved so far, and the spans of the window before, for samples that a handler was just writing at the cut.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::profile_type::{ProfileType, ProfileTypeId};
use super::window::{Window, WindowSample, WindowSpan};
use crate::clock;
use crate::context::tags::{self, TagSetId};
use crate::sample::ring::{Entry, Sample};
use crate::sample::runtime::{Frame, Repair, Runtime};
use crate::sample::threads::{Drained, Unseen, Why};
use crate::stats::{Counters, Tally};

/// Keys of a window; more cut it early.
const MAX_KEYS: usize = 100_000;
/// Keys after which samples are dropped: a window is cut between two drains, not within one.
const HARD_MAX_KEYS: usize = 2 * MAX_KEYS;
/// Frames kept resolved from one window to the next.
const MAX_FRAMES_CACHED: usize = 65_536;
/// Span names of a window; more become "(other)".
const MAX_NAMES: usize = 2_048;
/// How long a sample may wait for [`Runtime::repair`].
const REPAIR_TIMEOUT: Duration = Duration::from_secs(1);

/// Frame words from here on are the core's own; no runtime may use them.
const RESERVED: u64 = u64::MAX - 15;
const NO_STACK: u64 = RESERVED;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    profile_type: ProfileTypeId,
    stack: u32,
    span_id: u64,
    context_tags: TagSetId,
    thread_tags: TagSetId,
}

/// What a sample is in, apart from its stack.
#[derive(Clone, Copy, Debug)]
struct Place {
    profile_type: ProfileTypeId,
    span_id: u64,
    context_tags: TagSetId,
    thread_tags: TagSetId,
}

#[derive(Clone, Debug)]
struct Span {
    trace_id: [u64; 2],
    name: Arc<str>,
}

/// A thread's newest sample, for "again".
#[derive(Debug)]
struct Newest {
    place: Place,
    frames: Vec<u64>,
}

/// A sample that its runtime could not mend yet.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    place: Place,
    tally: Tally,
    frames: Vec<u64>,
    raw: Vec<u64>,
}

/// The window that is being filled.
#[derive(Debug, Default)]
struct Filling {
    words: HashMap<u64, u32>,
    /// By the numbers in `words`.
    frames: Vec<Option<Arc<Frame>>>,
    stacks: HashMap<Box<[u64]>, u32>,
    samples: HashMap<Key, Tally>,
    spans: HashMap<u64, Span>,
    names: HashMap<Arc<str>, ()>,
}

/// The sums so far, and what is needed to add to them.
#[derive(Debug)]
pub(crate) struct Aggregate {
    profile_types: Vec<ProfileType>,
    filling: Filling,
    start_unix_nanos: i64,
    start: Instant,
    previous_spans: HashMap<u64, Span>,
    previous_names: HashMap<u64, Box<str>>,
    frames: HashMap<u64, Arc<Frame>>,
    unresolved: Vec<u64>,
    newest: HashMap<u32, Newest>,
    waiting: Vec<Waiting>,
    /// Samples of no handler: they are taken and added at once.
    unseen: Tally,
}

impl Aggregate {
    pub(crate) fn new(profile_types: Vec<ProfileType>) -> Self {
        Self {
            profile_types,
            filling: Filling::default(),
            start_unix_nanos: clock::unix_nanos(),
            start: Instant::now(),
            previous_spans: HashMap::new(),
            previous_names: HashMap::new(),
            frames: HashMap::new(),
            unresolved: Vec::new(),
            newest: HashMap::new(),
            waiting: Vec::new(),
            unseen: Tally::default(),
        }
    }

    /// Age of the window.
    pub(crate) fn age(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether the window must be cut before its time: it is full, or the wall clock jumped.
    pub(crate) fn must_cut(&self) -> bool {
        let expected = self.start_unix_nanos.saturating_add_unsigned(nanos(self.age()));
        self.filling.samples.len() >= MAX_KEYS || clock::unix_nanos().abs_diff(expected) > 1_000_000_000
    }

    /// What was added without a handler.
    pub(crate) fn unseen(&self) -> Tally {
        self.unseen
    }

    /// Adds what `threads::drain` passes on.
    pub(crate) fn add(&mut self, drained: Drained<'_>, runtime: &dyn Runtime, counters: &Counters) {
        match drained {
            Drained::Entry(thread, entry) => self.add_entry(thread, &entry, runtime, counters),
            Drained::Gone(thread) => {
                self.newest.remove(&thread);
            }
            Drained::Unseen(unseen) => self.add_unseen(unseen, counters),
        }
    }

    /// Resolves new frame words and mends what waits, once rings are read.
    pub(crate) fn settle(&mut self, runtime: &dyn Runtime, counters: &Counters) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let late = waiting.since.elapsed() > REPAIR_TIMEOUT;
            if runtime.repair(&mut waiting.frames, &waiting.raw) == Repair::Ready || late {
                self.sum(waiting.place, &waiting.frames, waiting.tally, counters);
            } else {
                self.waiting.push(waiting);
            }
        }
        if self.unresolved.is_empty() {
            return;
        }
        let words = std::mem::take(&mut self.unresolved);
        let resolved = runtime.resolve(&words);
        for (word, frame) in words.into_iter().zip(resolved.into_iter().chain(std::iter::repeat(None))) {
            match frame {
                Some(frame) => self.known(word, Arc::new(frame)),
                None => self.unresolved.push(word),
            }
        }
    }

    /// Swaps the window out. `final_names` are those told since the last cut.
    pub(crate) fn cut(&mut self, final_names: HashMap<u64, Box<str>>, counters: &Counters) -> Cut {
        let filling = std::mem::take(&mut self.filling);
        let window = Cut {
            start_unix_nanos: self.start_unix_nanos,
            duration: self.age(),
            profile_types: self.profile_types.clone(),
            previous_spans: std::mem::replace(&mut self.previous_spans, filling.spans.clone()),
            previous_names: std::mem::replace(&mut self.previous_names, final_names.clone()),
            final_names,
            filling,
        };
        self.start = Instant::now();
        self.start_unix_nanos = clock::unix_nanos();
        counters.frames_unresolved.fetch_add(self.unresolved.len() as u64, std::sync::atomic::Ordering::Relaxed);
        self.unresolved.clear();
        if self.frames.len() > MAX_FRAMES_CACHED {
            self.frames.clear();
        }
        window
    }

    fn add_entry(&mut self, thread: u32, entry: &Entry<'_>, runtime: &dyn Runtime, counters: &Counters) {
        match entry {
            Entry::Span { span_id, trace_id, name } => {
                let name = self.filling.name(&String::from_utf8_lossy(name), counters);
                self.filling.spans.insert(*span_id, Span { trace_id: *trace_id, name });
            }
            Entry::Sample(sample) => self.add_sample(thread, sample, runtime, counters),
            Entry::Again { value } => {
                let tally = Tally { samples: 1, weight: *value };
                match self.newest.remove(&thread) {
                    Some(newest) => {
                        self.sum(newest.place, &newest.frames, tally, counters);
                        self.newest.insert(thread, newest);
                    }
                    None => counters.dropped_window.add(tally),
                }
            }
        }
    }

    fn add_sample(&mut self, thread: u32, sample: &Sample<'_>, runtime: &dyn Runtime, counters: &Counters) {
        let place = Place {
            profile_type: sample.profile_type,
            span_id: sample.span_id,
            context_tags: sample.context_tags,
            thread_tags: sample.thread_tags,
        };
        let tally = Tally { samples: 1, weight: sample.value };
        let mut newest = self.newest.remove(&thread).unwrap_or(Newest { place, frames: Vec::new() });
        newest.place = place;
        newest.frames.clear();
        newest.frames.extend_from_slice(sample.frames);
        if runtime.repair(&mut newest.frames, sample.raw) == Repair::Ready {
            self.sum(place, &newest.frames, tally, counters);
        } else {
            let (frames, raw) = (newest.frames.clone(), sample.raw.to_vec());
            self.waiting.push(Waiting { since: Instant::now(), place, tally, frames, raw });
        }
        self.newest.insert(thread, newest);
    }

    fn add_unseen(&mut self, unseen: Unseen, counters: &Counters) {
        let place = Place {
            profile_type: ProfileTypeId::TIMER,
            span_id: 0,
            context_tags: TagSetId::EMPTY,
            thread_tags: TagSetId::EMPTY,
        };
        let tally = Tally { samples: unseen.expiries, weight: unseen.weight };
        self.unseen += tally;
        self.sum(place, &[word_of(unseen.why)], tally, counters);
    }

    fn sum(&mut self, place: Place, frames: &[u64], tally: Tally, counters: &Counters) {
        let frames = if frames.is_empty() { &[NO_STACK] } else { frames };
        if self.filling.samples.len() >= HARD_MAX_KEYS {
            counters.dropped_window.add(tally);
            return;
        }
        let stack = self.stack(frames);
        let Place { profile_type, span_id, context_tags, thread_tags } = place;
        *self.filling.samples.entry(Key { profile_type, stack, span_id, context_tags, thread_tags }).or_default() +=
            tally;
    }

    #[expect(clippy::cast_possible_truncation, reason = "bounded by the keys of a window times the frames of a stack")]
    fn stack(&mut self, frames: &[u64]) -> u32 {
        if let Some(&stack) = self.filling.stacks.get(frames) {
            return stack;
        }
        for &word in frames {
            let next = self.filling.frames.len() as u32;
            if let std::collections::hash_map::Entry::Vacant(place) = self.filling.words.entry(word) {
                place.insert(next);
                let known = if word >= RESERVED { Some(reserved(word)) } else { self.frames.get(&word).cloned() };
                if known.is_none() {
                    self.unresolved.push(word);
                }
                self.filling.frames.push(known);
            }
        }
        let stack = self.filling.stacks.len() as u32;
        self.filling.stacks.insert(frames.into(), stack);
        stack
    }

    fn known(&mut self, word: u64, frame: Arc<Frame>) {
        if let Some(&at) = self.filling.words.get(&word)
            && let Some(place) = self.filling.frames.get_mut(at as usize)
        {
            *place = Some(frame.clone());
        }
        self.frames.insert(word, frame);
    }
}

impl Filling {
    fn name(&mut self, name: &str, counters: &Counters) -> Arc<str> {
        if let Some((known, ())) = self.names.get_key_value(name) {
            return known.clone();
        }
        let name = if self.names.len() < MAX_NAMES {
            name
        } else {
            counters.names_cut.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            "(other)"
        };
        let name: Arc<str> = name.into();
        self.names.insert(name.clone(), ());
        name
    }
}

/// A window as it was swapped out; [`finish`](Cut::finish) puts it into the encoder's form, with no lock held.
#[derive(Debug)]
pub(crate) struct Cut {
    start_unix_nanos: i64,
    duration: Duration,
    profile_types: Vec<ProfileType>,
    filling: Filling,
    final_names: HashMap<u64, Box<str>>,
    previous_spans: HashMap<u64, Span>,
    previous_names: HashMap<u64, Box<str>>,
}

impl Cut {
    pub(crate) fn finish(mut self, counters: &Counters) -> Window {
        let unknown = Arc::new(Frame { function: "(unknown)".into(), ..Frame::default() });
        let frames = self.filling.frames.iter().map(|frame| frame.clone().unwrap_or_else(|| unknown.clone())).collect();
        let mut stacks = vec![Box::default(); self.filling.stacks.len()];
        for (words, &stack) in &self.filling.stacks {
            stacks[stack as usize] = words.iter().map(|word| self.filling.words[word]).collect();
        }
        let mut spans = Vec::new();
        let mut span_numbers = HashMap::new();
        let mut tag_sets = vec![Arc::from([])];
        let mut tag_numbers = HashMap::from([((TagSetId::EMPTY, TagSetId::EMPTY), 0)]);
        let keys = std::mem::take(&mut self.filling.samples);
        let mut samples = Vec::with_capacity(keys.len());
        for (key, tally) in keys {
            let span = (key.span_id != 0).then(|| {
                *span_numbers
                    .entry(key.span_id)
                    .or_insert_with(|| push(&mut spans, self.span(key.span_id, tally, counters)))
            });
            let tags = *tag_numbers
                .entry((key.context_tags, key.thread_tags))
                .or_insert_with(|| push(&mut tag_sets, merged(key.thread_tags, key.context_tags)));
            let value = i64::try_from(tally.weight).unwrap_or(i64::MAX);
            samples.push(WindowSample {
                profile_type: key.profile_type,
                stack: key.stack,
                span,
                tags,
                value,
                count: tally.samples,
            });
        }
        Window {
            start_unix_nanos: self.start_unix_nanos,
            duration: self.duration,
            profile_types: self.profile_types,
            samples,
            stacks,
            frames,
            spans,
            tag_sets,
        }
    }

    fn span(&mut self, span_id: u64, tally: Tally, counters: &Counters) -> WindowSpan {
        let known = self.filling.spans.get(&span_id).or_else(|| self.previous_spans.get(&span_id)).cloned();
        let Span { trace_id, name } = known.unwrap_or_else(|| {
            counters.spans_lost.fetch_add(tally.samples, std::sync::atomic::Ordering::Relaxed);
            Span { trace_id: [0, 0], name: "".into() }
        });
        let renamed = self.final_names.get(&span_id).or_else(|| self.previous_names.get(&span_id)).cloned();
        let name = renamed.map_or(name, |renamed| self.filling.name(&renamed, counters));
        WindowSpan { span_id, trace_id, name }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "bounded by the keys of a window")]
fn push<T>(list: &mut Vec<T>, item: T) -> u32 {
    list.push(item);
    (list.len() - 1) as u32
}

/// The tags of a sample: those of its thread, and over them those of its context.
fn merged(thread: TagSetId, context: TagSetId) -> Arc<[(String, String)]> {
    let (thread, context) = (tags::get(thread), tags::get(context));
    let mut all: std::collections::BTreeMap<String, String> = thread.iter().cloned().collect();
    all.extend(context.iter().cloned());
    all.into_iter().collect()
}

fn word_of(why: Why) -> u64 {
    RESERVED
        + match why {
            Why::Starting => 1,
            Why::Ended => 2,
            Why::Stopped => 3,
        }
}

fn reserved(word: u64) -> Arc<Frame> {
    let function = match word - RESERVED {
        0 => "(no stack)",
        1 => "(thread starting)",
        2 => "(thread ended)",
        3 => "(profiler stopped)",
        _ => "(unknown)",
    };
    Arc::new(Frame { function: function.into(), ..Frame::default() })
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
