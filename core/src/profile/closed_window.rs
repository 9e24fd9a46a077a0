//! A window between the aggregate and the encoder: swapped out, so no lock is held while it is put in order.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::derived_stacks::{DerivedStacks, End};
use super::open_window::{Filling, Span};
use super::window::{Window, WindowSample, WindowSpan};
use crate::context::tags::{self, TagSetId};
use crate::profile_type::ProfileType;
use crate::sample::frames::Frame;
use crate::stats::{Counters, Tally};

/// What stacks of the time begin with in which a thread was ready to run and had no processor.
const READY: &str = "(waits for a CPU)";
/// The root of those that are beside the own time of their spans.
const CONCURRENT: &str = "(concurrent task)";

/// A window as it was swapped out; [`finish`](ClosedWindow::finish) puts it into the encoder's form, with no lock held.
#[derive(Debug)]
pub(crate) struct ClosedWindow {
    pub(super) start_unix_nanos: i64,
    pub(super) duration: Duration,
    pub(super) profile_types: Vec<ProfileType>,
    pub(super) filling: Filling,
    pub(super) spans: Arc<HashMap<u64, Span>>,
    /// Those told at their spans' ends.
    pub(super) names: Arc<HashMap<u64, Box<str>>>,
    /// Of the windows before, the newest first.
    pub(super) previous_spans: [Arc<HashMap<u64, Span>>; 2],
    pub(super) previous_names: Arc<HashMap<u64, Box<str>>>,
}

impl ClosedWindow {
    pub(crate) fn finish(mut self, counters: &Counters) -> Window {
        let unknown = Arc::new(Frame { function: "(unknown)".into(), ..Frame::default() });
        let mut frames: Vec<_> =
            self.filling.frames.iter().map(|frame| frame.clone().unwrap_or_else(|| unknown.clone())).collect();
        let mut stacks = vec![Box::default(); self.filling.stacks.len()];
        for (frames, &stack) in &self.filling.stacks {
            stacks[stack as usize] = frames.iter().map(|frame| self.filling.numbers[frame]).collect();
        }
        let mut spans = Vec::new();
        let mut span_numbers = HashMap::new();
        let mut tag_sets = vec![Arc::from([])];
        let mut tag_numbers = HashMap::from([((TagSetId::EMPTY, TagSetId::EMPTY), 0)]);
        let keys = std::mem::take(&mut self.filling.samples);
        let mut samples = Vec::with_capacity(keys.len());
        let mut ready = DerivedStacks::new(READY, End::Leaf);
        let mut concurrent = DerivedStacks::new(CONCURRENT, End::Root);
        for (key, sum) in keys {
            let (tally, count) = (sum.tally, sum.count);
            let stack = if sum.is_derived() { ready.of(key.stack, &mut stacks, &mut frames) } else { key.stack };
            let concurrent = key.is_concurrent.then(|| concurrent.of(stack, &mut stacks, &mut frames));
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
                stack,
                concurrent,
                state: key.state,
                span,
                tags,
                value,
                count: i64::try_from(count).unwrap_or(i64::MAX),
                samples: tally.samples,
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
            comment: String::new(),
        }
    }

    fn span(&mut self, span_id: u64, tally: Tally, counters: &Counters) -> WindowSpan {
        let known =
            [&self.spans].into_iter().chain(&self.previous_spans).find_map(|spans| spans.get(&span_id)).cloned();
        let Span { trace_id, name } = known.unwrap_or_else(|| {
            counters.spans_lost.fetch_add(tally.samples, Ordering::Relaxed);
            Span { trace_id: [0, 0], name: "".into() }
        });
        let renamed = self.names.get(&span_id).or_else(|| self.previous_names.get(&span_id)).cloned();
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
    let mut all: BTreeMap<String, String> = thread.iter().cloned().collect();
    all.extend(context.iter().cloned());
    all.into_iter().collect()
}
