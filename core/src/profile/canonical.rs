//! A window's tables in an order that content alone decides.
//!
//! Frames, stacks, spans and tag sets are ranked by what they say, never by when they came: that makes the encoder
//! deterministic, and puts stacks with a common start beside each other, where gzip finds them. Ranking also finds what
//! is equal in content but not in index, two frames or two stacks that resolved to the same text, and those become one.

use std::cmp::{Ordering, Reverse};

use super::labels::{Content, SpanLabels};
use super::window::{Window, WindowSample};
use crate::profile_type::ProfileTypeId;
use crate::sample::frames::Frame;
use crate::wait_state::State;
use crate::wire::labels::{CONCURRENT, FLOW, LEGACY_SPAN_NAME, SPAN_ID, SPAN_NAME, STATE, TRACE_ID};

/// Places of items among the distinct ones in order.
#[derive(Debug)]
struct Ranks {
    /// By item.
    rank_of: Vec<u32>,
    /// By rank, the first item in order that has it.
    first: Vec<u32>,
}

impl Ranks {
    /// Ranks `len` items by `order`; neighbours for which `same` holds share a rank.
    fn new(len: usize, order: impl Fn(usize, usize) -> Ordering, same: impl Fn(usize, usize) -> bool) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a window's tables are indexed by u32")]
        let mut sorted: Vec<u32> = (0..len as u32).collect();
        sorted.sort_unstable_by(|&a, &b| order(a as usize, b as usize));
        let mut ranks = Self { rank_of: vec![0; len], first: Vec::with_capacity(len) };
        for item in sorted {
            if ranks.first.last().is_none_or(|&last| !same(last as usize, item as usize)) {
                ranks.first.push(item);
            }
            #[expect(clippy::cast_possible_truncation, reason = "no more ranks than items")]
            let rank = ranks.first.len() as u32 - 1;
            ranks.rank_of[item as usize] = rank;
        }
        ranks
    }

    fn of(&self, item: u32) -> u32 {
        self.rank_of[item as usize]
    }
}

/// The window's tables in an order that content alone decides.
#[derive(Debug)]
pub(super) struct CanonicalWindow<'a> {
    pub(super) frames: Vec<&'a Frame>,
    /// Frame ranks, leaf first.
    pub(super) stacks: Vec<Vec<u32>>,
    pub(super) spans: Vec<&'a SpanLabels<'a>>,
    pub(super) tags: Vec<&'a [(&'a str, &'a str)]>,
    stack_ranks: Ranks,
    span_ranks: Ranks,
    tag_ranks: Ranks,
}

/// A sample by ranks; `span` is 0 outside spans, else one more than its rank. The order of samples in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) stack: u32,
    pub(super) span: u32,
    pub(super) tags: u32,
    /// Of wall time: what it went to.
    pub(super) state: Option<State>,
    /// Of wall time: it is beside the span's own.
    pub(super) is_concurrent: bool,
    pub(super) value: i64,
    pub(super) count: i64,
    pub(super) samples: u64,
}

impl<'a> CanonicalWindow<'a> {
    pub(super) fn new(window: &'a Window, content: &'a Content<'a>) -> Self {
        let (labels, tags) = (&content.spans, &content.tags);
        // The line says which place it is; of two opinions on where the function starts, the known one counts.
        let place = |frame: usize| {
            let frame: &Frame = &window.frames[frame];
            (&*frame.function, &*frame.file, frame.line)
        };
        let full = |frame: usize| (place(frame), Reverse(window.frames[frame].first_line));
        let frame_ranks = Ranks::new(window.frames.len(), |a, b| full(a).cmp(&full(b)), |a, b| place(a) == place(b));

        let by_index: Vec<Vec<u32>> =
            window.stacks.iter().map(|stack| stack.iter().map(|&frame| frame_ranks.of(frame)).collect()).collect();
        let stack_ranks =
            Ranks::new(by_index.len(), |a, b| by_index[a].cmp(&by_index[b]), |a, b| by_index[a] == by_index[b]);
        let span_ranks = Ranks::new(labels.len(), |a, b| labels[a].cmp(&labels[b]), |a, b| labels[a] == labels[b]);
        let tag_ranks = Ranks::new(tags.len(), |a, b| tags[a].cmp(&tags[b]), |a, b| tags[a] == tags[b]);

        Self {
            frames: frame_ranks.first.iter().map(|&frame| &*window.frames[frame as usize]).collect(),
            stacks: stack_ranks.first.iter().map(|&stack| by_index[stack as usize].clone()).collect(),
            stack_ranks,
            spans: span_ranks.first.iter().map(|&span| &labels[span as usize]).collect(),
            span_ranks,
            tags: tag_ranks.first.iter().map(|&set| tags[set as usize].as_slice()).collect(),
            tag_ranks,
        }
    }

    /// The samples of one profile type in order, those with equal content summed. In that of wall time are, besides waits, the
    /// samples of CPU time in spans, which are no samples of its own.
    pub(super) fn rows(&self, window: &Window, profile_type: usize) -> Vec<Row> {
        let is_wall_time = window.profile_types[profile_type].is_wall_time();
        let row = |sample: &WindowSample| {
            let concurrent = sample.concurrent.filter(|_| is_wall_time);
            let row = Row {
                stack: self.stack_ranks.of(concurrent.unwrap_or(sample.stack)),
                span: self.span_place(sample.span),
                tags: self.tag_ranks.of(sample.tags),
                state: is_wall_time.then_some(sample.state),
                is_concurrent: concurrent.is_some(),
                value: sample.value,
                count: sample.count,
                samples: sample.samples,
            };
            if usize::from(sample.profile_type.0) == profile_type {
                return Some(row);
            }
            let is_cpu_time = is_wall_time && sample.profile_type == ProfileTypeId::TIMER && row.span != 0;
            is_cpu_time.then_some(Row { count: 0, samples: 0, ..row })
        };
        let mut rows: Vec<Row> = window.samples.iter().filter_map(row).collect();
        rows.sort_unstable();
        rows.dedup_by(|next, kept| {
            let place = |row: &Row| (row.stack, row.span, row.tags, row.state, row.is_concurrent);
            let same = place(next) == place(kept);
            if same {
                kept.value = kept.value.saturating_add(next.value);
                kept.count = kept.count.saturating_add(next.count);
                kept.samples = kept.samples.saturating_add(next.samples);
            }
            same
        });
        rows
    }

    /// The labels of a sample: those of its span, then its tags by name, then its state and whether it is beside the span's own time.
    pub(super) fn labels(&self, row: &Row) -> impl Iterator<Item = (&'a str, &'a str)> {
        let span: Option<&'a SpanLabels<'a>> = row.span.checked_sub(1).map(|rank| self.spans[rank as usize]);
        let of_span = span.map(|span| {
            [
                (SPAN_ID, span.span_id.as_str()),
                (TRACE_ID, span.trace_id.as_str()),
                (SPAN_NAME, span.name),
                (LEGACY_SPAN_NAME, span.legacy_name),
            ]
        });
        let of_span = of_span.into_iter().flatten().filter(|(_, value)| !value.is_empty());
        let tags = self.tags[row.tags as usize].iter().copied();
        let state = row.state.map(|state| (STATE, state.label()));
        let flow = row.is_concurrent.then_some((FLOW, CONCURRENT));
        // Of two labels with one name servers would take either.
        of_span
            .chain(tags.filter(move |(name, _)| state.is_none() || (*name != STATE && *name != FLOW)))
            .chain(state)
            .chain(flow)
    }

    fn span_place(&self, span: Option<u32>) -> u32 {
        let Some(rank) = span.map(|span| self.span_ranks.of(span)) else { return 0 };
        if self.spans[rank as usize].span_id.is_empty() { 0 } else { rank + 1 }
    }
}
