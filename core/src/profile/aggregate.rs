//! Sums samples by (profile type, stack, span, tags) for one window.
//!
//! Stacks, frames and span names are interned for the window and leave with it; what outlives it is bounded: the frames
//! resolved so far, and the spans of the window before, for samples that a handler was just writing at the cut.

use std::collections::{HashMap, hash_map};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cut::Cut;
use super::open_window::{Filling, Key, MAX_FRAMES, Span};
use crate::context::tags::TagSetId;
use crate::os::clock;
use crate::profile_type::{ProfileType, ProfileTypeId};
use crate::sample::frames::Frame;
use crate::sample::ring::{Entry, Sample};
use crate::sample::runtime::{Repair, Runtime};
use crate::sample::threads::{Drained, Unseen, Why};
use crate::stats::{Counters, Tally};

/// Reads the wall clock, nanoseconds since the epoch.
type WallClock = fn() -> i64;

/// Frames kept resolved from one window to the next.
const MAX_FRAMES_CACHED: usize = MAX_FRAMES / 4;
/// How long a sample may wait for [`Runtime::repair`].
const REPAIR_TIMEOUT: Duration = Duration::from_secs(1);

/// Frame words from here on are the core's own; no runtime may use them.
const RESERVED: u64 = u64::MAX - 15;
const NO_STACK: u64 = RESERVED;

/// What a sample is in, apart from its stack.
#[derive(Clone, Copy, Debug)]
struct Place {
    profile_type: ProfileTypeId,
    /// Things that each sample stands for.
    count: u16,
    span_id: u64,
    context_tags: TagSetId,
    thread_tags: TagSetId,
}

/// A thread's newest sample, for "again".
#[derive(Debug)]
struct Newest {
    place: Place,
    frames: Vec<u64>,
    /// Of one that its runtime did not mend at once.
    raw: Option<Vec<u64>>,
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

/// The sums so far, and what is needed to add to them.
#[derive(Debug)]
pub(crate) struct Aggregate {
    profile_types: Vec<ProfileType>,
    wall_clock: WallClock,
    filling: Filling,
    start_unix_nanos: i64,
    start: Instant,
    previous_spans: Arc<HashMap<u64, Span>>,
    previous_names: Arc<HashMap<u64, Box<str>>>,
    frames: HashMap<u64, Arc<Frame>>,
    unresolved: Vec<u64>,
    newest: HashMap<u32, Newest>,
    waiting: Vec<Waiting>,
}

impl Aggregate {
    pub(crate) fn new(profile_types: Vec<ProfileType>) -> Self {
        Self::with_clock(profile_types, clock::unix_nanos)
    }

    fn with_clock(profile_types: Vec<ProfileType>, wall_clock: WallClock) -> Self {
        Self {
            profile_types,
            wall_clock,
            filling: Filling::default(),
            start_unix_nanos: wall_clock(),
            start: Instant::now(),
            previous_spans: Arc::default(),
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

    /// Whether the window must be cut before its time: it is full, or the wall clock jumped.
    pub(crate) fn must_cut(&self) -> bool {
        let expected = self.start_unix_nanos.saturating_add_unsigned(nanos(self.age()));
        self.filling.is_beyond(1) || (self.wall_clock)().abs_diff(expected) > 1_000_000_000
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

    /// Mends what waits, once rings are read and no lock is held that a fork takes. The last time nothing may wait any
    /// longer.
    pub(crate) fn mend(&mut self, runtime: &dyn Runtime, counters: &Counters, is_last: bool) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let late = is_last || waiting.since.elapsed() > REPAIR_TIMEOUT;
            if runtime.repair(&mut waiting.frames, &waiting.raw) == Repair::Ready || late {
                self.sum(waiting.place, &waiting.frames, waiting.tally, counters);
            } else {
                self.waiting.push(waiting);
            }
        }
    }

    /// The frame words whose meaning is to be asked, then told to [`learn`](Self::learn).
    pub(crate) fn take_unresolved(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unresolved)
    }

    /// Takes note of what words mean; those that are not known yet are asked again.
    pub(crate) fn learn(&mut self, words: Vec<u64>, resolved: Vec<Option<Frame>>) {
        for (word, frame) in words.into_iter().zip(resolved.into_iter().chain(std::iter::repeat(None))) {
            match frame {
                Some(frame) => self.known(word, Arc::new(frame)),
                None => self.unresolved.push(word),
            }
        }
    }

    /// Swaps the window out. `final_names` are those told since the last cut.
    /// `keep_words`: what words mean stays known for the next window.
    pub(crate) fn cut(&mut self, final_names: HashMap<u64, Box<str>>, keep_words: bool, counters: &Counters) -> Cut {
        let mut filling = std::mem::take(&mut self.filling);
        let spans = Arc::new(std::mem::take(&mut filling.spans));
        let names = Arc::new(final_names);
        let window = Cut {
            start_unix_nanos: self.start_unix_nanos,
            duration: self.age(),
            profile_types: self.profile_types.clone(),
            previous_spans: std::mem::replace(&mut self.previous_spans, spans.clone()),
            previous_names: std::mem::replace(&mut self.previous_names, names.clone()),
            spans,
            names,
            filling,
        };
        self.start = Instant::now();
        self.start_unix_nanos = (self.wall_clock)();
        counters.frames_unresolved.fetch_add(self.unresolved.len() as u64, Ordering::Relaxed);
        self.unresolved.clear();
        if !keep_words || self.frames.len() > MAX_FRAMES_CACHED {
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
                        match &newest.raw {
                            Some(raw) => self.wait(newest.place, tally, &newest.frames, raw),
                            None => self.sum(newest.place, &newest.frames, tally, counters),
                        }
                        self.newest.insert(thread, newest);
                    }
                    None => counters.dropped_window.add(tally),
                }
            }
        }
    }

    fn add_sample(&mut self, thread: u32, sample: &Sample<'_>, runtime: &dyn Runtime, counters: &Counters) {
        let place = Place {
            profile_type: sample.measure.profile_type,
            count: sample.measure.count,
            span_id: sample.span_id,
            context_tags: sample.context_tags,
            thread_tags: sample.thread_tags,
        };
        let tally = Tally { samples: 1, weight: sample.measure.value };
        let mut newest = self.newest.remove(&thread).unwrap_or(Newest { place, frames: Vec::new(), raw: None });
        newest.place = place;
        newest.frames.clear();
        newest.frames.extend_from_slice(sample.frames);
        newest.raw = None;
        if runtime.repair(&mut newest.frames, sample.raw) == Repair::Ready {
            self.sum(place, &newest.frames, tally, counters);
        } else {
            newest.raw = Some(sample.raw.to_vec());
            self.wait(place, tally, &newest.frames, sample.raw);
        }
        self.newest.insert(thread, newest);
    }

    fn wait(&mut self, place: Place, tally: Tally, frames: &[u64], raw: &[u64]) {
        let (frames, raw) = (frames.to_vec(), raw.to_vec());
        self.waiting.push(Waiting { since: Instant::now(), place, tally, frames, raw });
    }

    fn add_unseen(&mut self, unseen: Unseen, counters: &Counters) {
        let place = Place {
            profile_type: ProfileTypeId::TIMER,
            count: 1,
            span_id: 0,
            context_tags: TagSetId::EMPTY,
            thread_tags: TagSetId::EMPTY,
        };
        let tally = Tally { samples: unseen.expiries, weight: unseen.weight };
        counters.unseen.add(tally);
        self.sum(place, &[word_of(unseen.why)], tally, counters);
    }

    fn sum(&mut self, place: Place, frames: &[u64], tally: Tally, counters: &Counters) {
        let frames = if frames.is_empty() { &[NO_STACK] } else { frames };
        if self.filling.is_beyond(2) {
            counters.dropped_window.add(tally);
            return;
        }
        let stack = self.stack(frames);
        let Place { profile_type, count, span_id, context_tags, thread_tags } = place;
        let sum =
            self.filling.samples.entry(Key { profile_type, stack, span_id, context_tags, thread_tags }).or_default();
        sum.tally += tally;
        sum.count = sum.count.saturating_add(u64::from(count) * tally.samples);
    }

    #[expect(clippy::cast_possible_truncation, reason = "bounded by the keys of a window times the frames of a stack")]
    fn stack(&mut self, frames: &[u64]) -> u32 {
        if let Some(&stack) = self.filling.stacks.get(frames) {
            return stack;
        }
        for &word in frames {
            let next = self.filling.frames.len() as u32;
            if let hash_map::Entry::Vacant(place) = self.filling.words.entry(word) {
                place.insert(next);
                let known = if word >= RESERVED { Some(reserved(word)) } else { self.frames.get(&word).cloned() };
                if known.is_none() {
                    self.unresolved.push(word);
                }
                self.filling.frames.push(known);
            }
        }
        let stack = self.filling.stacks.len() as u32;
        self.filling.stack_words += frames.len();
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

/// What the profiler does after rings are read.
#[cfg(test)]
pub(super) fn settle(aggregate: &mut Aggregate, runtime: &dyn Runtime, counters: &Counters, is_last: bool) {
    aggregate.mend(runtime, counters, is_last);
    let words = aggregate.take_unresolved();
    let resolved = runtime.resolve(&words);
    aggregate.learn(words, resolved);
}

#[cfg(test)]
mod tests {
    use super::super::open_window::{MAX_KEYS, MAX_NAMES, MAX_STACK_WORDS};
    use super::*;
    use crate::sample::ring::Measure;
    use crate::sample::runtime::testing::{NeverReady, Numbered};

    const PLACE: Sample<'static> = Sample {
        measure: Measure { profile_type: ProfileTypeId::TIMER, count: 1, value: 10 },
        span_id: 0,
        context_tags: TagSetId::EMPTY,
        thread_tags: TagSetId::EMPTY,
        frames: &[],
        raw: &[],
    };

    struct Fixture {
        aggregate: Aggregate,
        counters: Counters,
    }

    impl Fixture {
        fn new() -> Self {
            Self { aggregate: Aggregate::new(vec![ProfileType::process_cpu(10)]), counters: Counters::default() }
        }

        fn add(&mut self, thread: u32, entry: Entry<'_>) {
            self.aggregate.add(Drained::Entry(thread, entry), &Numbered, &self.counters);
        }

        fn sample(&mut self, span_id: u64, frames: &[u64]) {
            self.add(1, Entry::Sample(Sample { span_id, frames, ..PLACE }));
        }

        fn span(&mut self, span_id: u64, name: &str) {
            self.add(1, Entry::Span { span_id, trace_id: [1, span_id], name: name.as_bytes() });
        }

        /// The window's samples as text, sorted.
        fn cut(&mut self, final_names: &[(u64, &str)]) -> Vec<String> {
            settle(&mut self.aggregate, &Numbered, &self.counters, false);
            let names = final_names.iter().map(|(id, name)| (*id, Box::from(*name))).collect();
            let window = self.aggregate.cut(names, true, &self.counters).finish(&self.counters);
            let mut lines: Vec<String> = window
                .samples
                .iter()
                .map(|sample| {
                    let stack = &window.stacks[sample.stack as usize];
                    let stack: Vec<&str> =
                        stack.iter().map(|&frame| &*window.frames[frame as usize].function).collect();
                    let span = sample.span.map(|span| &window.spans[span as usize]);
                    let span = span.map_or("-".into(), |span| format!("{}:{}", span.span_id, span.name));
                    format!("{} {}x{} {span}", stack.join(";"), sample.count, sample.value)
                })
                .collect();
            lines.sort();
            lines
        }
    }

    #[test]
    fn equal_samples_are_summed_and_again_repeats_the_threads_newest() {
        let mut fixture = Fixture::new();
        fixture.span(7, "GET /");
        fixture.sample(7, &[1, 2]);
        fixture.add(2, Entry::Sample(Sample { frames: &[3], ..PLACE }));
        fixture.add(1, Entry::Again { value: 30 });
        fixture.sample(0, &[1, 2]);
        fixture.sample(0, &[]);
        assert_eq!(fixture.cut(&[]), ["(no stack) 1x10 -", "f1;f2 1x10 -", "f1;f2 2x40 7:GET /", "f3 1x10 -"]);
        fixture.add(2, Entry::Again { value: 5 });
        assert_eq!(fixture.cut(&[]), ["f3 1x5 -"], "again reaches over a cut");
    }

    #[test]
    fn the_name_at_a_spans_end_wins_over_the_one_it_was_sampled_with() {
        let mut fixture = Fixture::new();
        fixture.span(7, "GET");
        fixture.sample(7, &[1]);
        assert_eq!(fixture.cut(&[(7, "GET /cart/{id}"), (8, "never sampled")]), ["f1 1x10 7:GET /cart/{id}"]);
        fixture.sample(7, &[1]);
        assert_eq!(fixture.cut(&[]), ["f1 1x10 7:GET /cart/{id}"], "a sample that was late for its window");
    }

    #[test]
    fn a_span_whose_definition_was_lost_keeps_its_id_and_is_counted() {
        let mut fixture = Fixture::new();
        fixture.sample(9, &[1]);
        assert_eq!(fixture.cut(&[]), ["f1 1x10 9:"]);
        assert_eq!(fixture.counters.snapshot().spans_lost, 1);
    }

    #[test]
    fn names_beyond_the_bound_become_other() {
        let mut fixture = Fixture::new();
        for id in 1..=MAX_NAMES as u64 + 2 {
            fixture.span(id, &format!("name {id}"));
            fixture.sample(id, &[1]);
        }
        let lines = fixture.cut(&[]);
        assert_eq!(lines.iter().filter(|line| line.ends_with(":(other)")).count(), 2);
        assert_eq!(fixture.counters.snapshot().names_cut, 2);
    }

    #[test]
    fn a_window_with_too_many_keys_asks_to_be_cut_and_then_counts_what_it_drops() {
        let mut fixture = Fixture::new();
        for id in 1..=2 * MAX_KEYS as u64 {
            assert_eq!(fixture.aggregate.must_cut(), id > MAX_KEYS as u64);
            fixture.sample(id, &[1]);
        }
        fixture.sample(2 * MAX_KEYS as u64 + 1, &[1]);
        assert_eq!(fixture.counters.snapshot().dropped_window, Tally { samples: 1, weight: 10 });
        assert_eq!(fixture.cut(&[]).len(), 2 * MAX_KEYS);
    }

    #[test]
    fn deep_stacks_and_many_frames_cut_a_window_early_too() {
        let mut fixture = Fixture::new();
        let deep = |number: u64| (0..512).map(|at| if at == 0 { 10_000 + number } else { at }).collect::<Vec<u64>>();
        let stacks = (MAX_STACK_WORDS / 512) as u64;
        for number in 0..stacks {
            assert!(!fixture.aggregate.must_cut(), "after {number} stacks");
            fixture.sample(0, &deep(number));
        }
        assert!(fixture.aggregate.must_cut());
        (stacks..2 * stacks).for_each(|number| fixture.sample(0, &deep(number)));
        fixture.sample(0, &deep(2 * stacks));
        assert_eq!(fixture.counters.snapshot().dropped_window, Tally { samples: 1, weight: 10 });

        let mut fixture = Fixture::new();
        for start in (0..MAX_FRAMES as u64).step_by(64) {
            assert!(!fixture.aggregate.must_cut());
            fixture.sample(0, &(start..start + 64).collect::<Vec<u64>>());
        }
        assert!(fixture.aggregate.must_cut(), "too many different frames");
    }

    #[test]
    fn frames_are_kept_from_window_to_window_up_to_a_bound() {
        let mut fixture = Fixture::new();
        for word in 0..=MAX_FRAMES_CACHED as u64 {
            fixture.aggregate.known(word, reserved(word_of(Why::Ended)));
        }
        fixture.cut(&[]);
        assert!(fixture.aggregate.frames.is_empty(), "they are resolved again, so nothing is lost");
        fixture.sample(0, &[1]);
        assert_eq!(fixture.cut(&[]), ["f1 1x10 -"]);
        assert_eq!(fixture.aggregate.frames.len(), 1);
    }

    #[test]
    fn a_clock_that_is_set_cuts_the_window_and_no_duration_suffers() {
        static NOW: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
        let counters = Counters::default();
        let start = clock::unix_nanos();
        NOW.store(start, Ordering::Relaxed);
        let mut aggregate = Aggregate::with_clock(Vec::new(), || NOW.load(Ordering::Relaxed));
        for (jump, cuts) in [(0, false), (-500, false), (3_600_000, true), (-7_200_000, true), (100, false)] {
            let before = NOW.load(Ordering::Relaxed);
            NOW.store(before + jump * 1_000_000, Ordering::Relaxed);
            assert_eq!(aggregate.must_cut(), cuts, "{jump} ms");
            let window = aggregate.cut(HashMap::new(), true, &counters);
            assert_eq!(window.start_unix_nanos, before, "stamped with its start");
            assert!(window.duration < Duration::from_secs(600), "{:?}", window.duration);
            assert!(!aggregate.must_cut(), "once a jump");
        }
    }

    #[test]
    fn what_waits_for_repair_goes_at_the_last_time() {
        let mut fixture = Fixture::new();
        let sample = Entry::Sample(Sample { raw: &[1], frames: &[1], ..PLACE });
        fixture.aggregate.add(Drained::Entry(1, sample), &NeverReady, &fixture.counters);
        settle(&mut fixture.aggregate, &NeverReady, &fixture.counters, false);
        assert!(fixture.aggregate.filling.samples.is_empty());
        settle(&mut fixture.aggregate, &NeverReady, &fixture.counters, true);
        assert_eq!(fixture.cut(&[]), ["f1 1x10 -"]);
    }

    #[test]
    fn what_repeats_a_sample_that_waits_for_repair_waits_too() {
        let mut fixture = Fixture::new();
        for entry in [Entry::Sample(Sample { raw: &[2], frames: &[1], ..PLACE }), Entry::Again { value: 30 }] {
            fixture.aggregate.add(Drained::Entry(1, entry), &NeverReady, &fixture.counters);
        }
        assert!(fixture.aggregate.filling.samples.is_empty());
        assert_eq!(fixture.aggregate.waiting.iter().map(|waiting| &waiting.raw[..]).collect::<Vec<_>>(), [[2], [2]]);
        settle(&mut fixture.aggregate, &NeverReady, &fixture.counters, true);
        assert_eq!(fixture.cut(&[]), ["f1 2x40 -"]);
    }

    #[test]
    fn a_frame_that_nobody_can_name_is_counted() {
        let mut fixture = Fixture::new();
        fixture.sample(0, &[1_000, 1]);
        assert_eq!(fixture.cut(&[]), ["(unknown);f1 1x10 -"]);
        assert_eq!(fixture.counters.snapshot().frames_unresolved, 1);
    }

    #[test]
    fn what_no_handler_saw_says_why() {
        let mut fixture = Fixture::new();
        let unseen = Unseen { why: Why::Ended, expiries: 2, weight: 20 };
        fixture.aggregate.add(Drained::Unseen(unseen), &Numbered, &fixture.counters);
        assert_eq!(fixture.cut(&[]), ["(thread ended) 2x20 -"]);
        assert_eq!(fixture.counters.unseen.get(), Tally { samples: 2, weight: 20 });
    }
}
