//! One trace: its spans as a tree, and what each burnt itself and with all below it.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde::Serialize;

use super::error::ShowError;
use super::shown::Shown;
use super::steps::Steps;
use crate::ids::{SpanId, TraceId};
use crate::span_status::Status;
use crate::states::{StateTimes, TimeSpent};
use crate::store::{Sampling, StoredSpan};

/// A trace.
#[derive(Debug, Serialize)]
pub(crate) struct Trace {
    /// Its id.
    pub(crate) trace: TraceId,
    /// Its first start; none if only samples name it.
    pub(crate) start_unix_ns: Option<i64>,
    /// From its first start to its last end.
    pub(crate) wall_ns: Option<i64>,
    /// CPU of all its spans; none if no profile can hold any of them.
    pub(crate) cpu_ns: Option<i64>,
    /// Spans that have no room in an answer, the latest to start, and of those that only samples name as many at least.
    pub(crate) left_out: usize,
    /// Parents before children, siblings by start.
    pub(crate) spans: Vec<TraceSpan>,
}

/// A span of a trace.
#[derive(Debug, Serialize)]
pub(crate) struct TraceSpan {
    /// Its id.
    pub(crate) span: SpanId,
    /// Its parent, whether that was received or not.
    pub(crate) parent: Option<SpanId>,
    /// Its service.
    pub(crate) service: String,
    /// Its name.
    pub(crate) name: String,
    /// Its start; none if only samples name it.
    pub(crate) start_unix_ns: Option<i64>,
    /// Its length.
    pub(crate) wall_ns: Option<i64>,
    /// CPU of the samples that are labelled with it; none if no sample ever is.
    pub(crate) own_cpu_ns: Option<i64>,
    /// The same with all its descendants.
    pub(crate) inclusive_cpu_ns: Option<i64>,
    /// Its own samples.
    pub(crate) samples: i64,
    /// Where its time went; none if no sample of the trace's services says it, or can.
    #[serde(flatten)]
    pub(crate) time: Option<TimeSpent>,
    /// Whether that is what its attributes say, as it has no samples of its own.
    #[serde(rename = "by_attributes", skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_by_attributes: bool,
    /// How it ended.
    pub(crate) status: Status,
    /// How many of its ancestors were received.
    pub(crate) depth: usize,
    /// Which spans its service's samples are labelled with.
    pub(crate) sampled_by: Sampling,
}

impl Shown {
    /// A trace by its id.
    pub(crate) fn trace(&self, trace: TraceId) -> Result<Trace, ShowError> {
        self.trace_of(trace, &mut HashMap::new())
    }

    /// The same; `sampling` remembers what was asked about services for the next trace.
    pub(super) fn trace_of(
        &self,
        trace: TraceId,
        sampling: &mut HashMap<String, Sampling>,
    ) -> Result<Trace, ShowError> {
        let (stored, more) = self.store.trace_within(trace)?;
        if stored.is_empty() {
            return Err(ShowError::NotFound(format!("There is no trace {trace} here; traces are {}.", self.kept())));
        }
        let services: BTreeSet<&str> =
            stored.iter().map(|span| &*span.span.service).filter(|service| !sampling.contains_key(*service)).collect();
        let found = self.store.sampling_of(services.iter().copied())?;
        sampling.extend(services.into_iter().map(ToOwned::to_owned).zip(found));
        let received = stored.iter().filter(|span| span.traced).count();
        let ids: Vec<SpanId> = stored.iter().map(|span| span.span.span).collect();
        let sums = self.store.sums_of_spans(trace, &ids)?;
        let (mut said, mut above) = (HashMap::new(), HashSet::new());
        let mut steps = Steps::default();
        for StoredSpan { span, .. } in &stored {
            steps.step()?;
            let times = StateTimes::of_attributes(&span.attributes);
            if !times.is_empty() {
                said.insert(span.span, times);
                above.extend(span.parent);
            }
        }
        // The samples of a service say states in all its spans or in none.
        let says_states: HashSet<&str> = stored
            .iter()
            .filter(|span| sums.get(&span.span.span).is_some_and(|sum| sum.states.is_told()))
            .map(|span| &*span.span.service)
            .collect();
        let child_spans =
            if says_states.is_empty() && said.is_empty() { Vec::new() } else { time_of_child_spans(&stored)? };

        let order = depth_first(&stored);
        let mut spans: Vec<TraceSpan> = Vec::with_capacity(order.len());
        for &(index, depth) in &order {
            let StoredSpan { span, child, traced } = &stored[index];
            let sampled_by = sampling.get(&*span.service).copied().unwrap_or(Sampling::None);
            let sum = sums.get(&span.span);
            let burnt = sum.and_then(|sum| sum.cpu);
            let mut states = sum.map_or_else(StateTimes::default, |sum| sum.states.clone());
            let concurrent = sum.map_or(0, |sum| sum.concurrent);
            let by_attributes = said.remove(&span.span).filter(|_| states.is_empty());
            let is_by_attributes = by_attributes.is_some();
            let labelled = match sampled_by {
                Sampling::Span => true,
                Sampling::Root => !child,
                Sampling::Wall | Sampling::None => false,
            };
            // What its child spans took is theirs only where their samples carry them, or they say times of their own.
            let is_theirs = sampled_by == Sampling::Span || is_by_attributes && above.contains(&span.span);
            let of_children = if is_theirs { child_spans.get(index).copied() } else { None };
            let wall = traced.then_some(span.duration);
            if let Some(times) = by_attributes {
                states = if let Some(wall) = wall { times.own(wall, of_children.unwrap_or(0)) } else { times };
            }
            let is_known = is_by_attributes || says_states.contains(&*span.service) && (labelled || !states.is_empty());
            spans.push(TraceSpan {
                span: span.span,
                parent: span.parent,
                service: span.service.to_string(),
                name: span.name.clone(),
                start_unix_ns: traced.then_some(span.start),
                wall_ns: wall,
                own_cpu_ns: burnt.map(|(cpu, _)| cpu).or(labelled.then_some(0)),
                inclusive_cpu_ns: None,
                samples: burnt.map_or(0, |(_, samples)| samples),
                time: is_known.then(|| TimeSpent::of(wall, states, of_children.unwrap_or(0)).beside(concurrent)),
                is_by_attributes,
                status: span.status,
                depth,
                sampled_by,
            });
        }
        add_up(&mut spans);
        let start = spans.iter().filter_map(|span| span.start_unix_ns).min();
        let end = spans.iter().filter_map(|span| Some(span.start_unix_ns?.saturating_add(span.wall_ns?))).max();
        let known: Vec<i64> = spans.iter().filter_map(|span| span.own_cpu_ns).collect();
        Ok(Trace {
            trace,
            start_unix_ns: start,
            wall_ns: start.zip(end).map(|(start, end)| end.saturating_sub(start)),
            cpu_ns: (!known.is_empty()).then(|| known.into_iter().fold(0, i64::saturating_add)),
            left_out: self.store.count_of_trace(trace)?.saturating_sub(received) + more,
            spans,
        })
    }
}

/// Indices and depths, parents before children. A parent that was not received is none, and a ring of parents (which
/// only a broken sender makes) is cut where it is met first.
fn depth_first(stored: &[StoredSpan]) -> Vec<(usize, usize)> {
    let index: HashMap<SpanId, usize> =
        stored.iter().enumerate().map(|(index, span)| (span.span.span, index)).collect();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); stored.len()];
    let mut tops = Vec::new();
    for (at, span) in stored.iter().enumerate() {
        match span.span.parent.and_then(|parent| index.get(&parent)) {
            Some(parent) => children[*parent].push(at),
            None => tops.push(at),
        }
    }
    let mut seen = vec![false; stored.len()];
    let mut order = Vec::with_capacity(stored.len());
    for top in tops.into_iter().chain(0..stored.len()) {
        let mut stack = vec![(top, 0)];
        while let Some((at, depth)) = stack.pop() {
            if !std::mem::replace(&mut seen[at], true) {
                order.push((at, depth));
                stack.extend(children[at].iter().rev().map(|child| (*child, depth + 1)));
            }
        }
    }
    order
}

/// In how much of the time of each span a child span of the same service ran, or several. Spans are in order of their start.
fn time_of_child_spans(stored: &[StoredSpan]) -> Result<Vec<i64>, ShowError> {
    let mut steps = Steps::default();
    let mut index: HashMap<SpanId, usize> = HashMap::with_capacity(stored.len());
    for (at, span) in stored.iter().enumerate().filter(|(_, span)| span.traced) {
        steps.step()?;
        index.insert(span.span.span, at);
    }
    let mut sums = vec![0_i64; stored.len()];
    // Until when the children that were seen go on.
    let mut seen = vec![i64::MIN; stored.len()];
    for StoredSpan { span, traced, .. } in stored {
        steps.step()?;
        let parent = span.parent.filter(|_| *traced).and_then(|parent| index.get(&parent).copied());
        let Some(at) = parent else { continue };
        let above = &stored[at].span;
        if above.service != span.service || above.span == span.span {
            continue;
        }
        let start = span.start.max(above.start).max(seen[at]);
        let end = span.start.saturating_add(span.duration).min(above.start.saturating_add(above.duration));
        if end > start {
            sums[at] = sums[at].saturating_add(end.saturating_sub(start));
            seen[at] = end;
        }
    }
    Ok(sums)
}

/// Own CPU plus that of all descendants, which stand behind their ancestor and deeper.
fn add_up(spans: &mut [TraceSpan]) {
    let mut below: Vec<i64> = Vec::new();
    for span in spans.iter_mut().rev() {
        below.resize((span.depth + 2).max(below.len()), 0);
        let inclusive = span.own_cpu_ns.unwrap_or(0).saturating_add(std::mem::take(&mut below[span.depth + 1]));
        below[span.depth] = below[span.depth].saturating_add(inclusive);
        // Without its own it would be a number that is too small and looks right.
        span.inclusive_cpu_ns = span.own_cpu_ns.map(|_| inclusive);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Span;
    use crate::work::{self, Gone, Haste};

    fn stored(links: &[(u64, u64)]) -> Vec<StoredSpan> {
        let id = |n: u64| SpanId::from_bytes(&n.to_be_bytes());
        let trace = TraceId::parse("4bf92f3577b34da6a3ce929d0e0e4736").unwrap();
        let span = |&(span, parent): &(u64, u64)| StoredSpan {
            span: Span {
                trace,
                span: id(span).unwrap(),
                parent: id(parent),
                service: "s".into(),
                name: span.to_string(),
                start: 0,
                duration: 1,
                status: Status::Unset,
                root: None,
                profiled: false,
                attributes: "{}".into(),
                place: None,
            },
            child: parent != 0,
            traced: true,
        };
        links.iter().map(span).collect()
    }

    fn names(links: &[(u64, u64)]) -> Vec<(String, usize)> {
        let stored = stored(links);
        depth_first(&stored).into_iter().map(|(at, depth)| (stored[at].span.name.clone(), depth)).collect()
    }

    #[test]
    fn parents_come_before_children_and_a_lost_parent_is_none() {
        let expected = [("1", 0), ("2", 1), ("3", 2), ("4", 1), ("5", 0)].map(|(name, depth)| (name.to_owned(), depth));
        assert_eq!(names(&[(1, 0), (2, 1), (4, 1), (3, 2), (5, 99)]), expected);
    }

    #[test]
    fn a_ring_of_parents_ends() {
        let expected = [("1", 0), ("2", 1), ("3", 0)].map(|(name, depth)| (name.to_owned(), depth));
        assert_eq!(names(&[(1, 2), (2, 1), (3, 3)]), expected);
    }

    #[test]
    fn inclusive_is_own_and_all_below() {
        let row = |depth, own: Option<i64>| TraceSpan {
            span: SpanId::parse("00000000000000aa").unwrap(),
            parent: None,
            service: String::new(),
            name: String::new(),
            start_unix_ns: None,
            wall_ns: None,
            own_cpu_ns: own,
            inclusive_cpu_ns: None,
            samples: 0,
            time: None,
            is_by_attributes: false,
            status: Status::Unset,
            depth,
            sampled_by: Sampling::Span,
        };
        let mut spans =
            vec![row(0, Some(40)), row(1, Some(98)), row(2, Some(2)), row(1, None), row(2, Some(5)), row(0, Some(1))];
        add_up(&mut spans);
        let inclusive: Vec<_> = spans.iter().map(|span| span.inclusive_cpu_ns).collect();
        assert_eq!(inclusive, [Some(145), Some(100), Some(2), None, Some(5), Some(1)]);
    }
    #[test]
    fn child_spans_that_run_at_once_count_once_and_only_within_their_parent() {
        let mut spans = stored(&[(1, 0), (2, 1), (3, 1), (4, 1), (5, 2), (6, 1), (7, 7)]);
        // Of 100 from 10 on: 10 to 30 (begun before it), 20 to 50, within that, below the first, and what outlives it.
        let times = [(10, 100), (5, 25), (20, 30), (25, 5), (6, 4), (100, 50), (0, 9)];
        for (span, (start, duration)) in spans.iter_mut().zip(times) {
            (span.span.start, span.span.duration) = (start, duration);
        }
        spans.sort_by_key(|span| span.span.start);
        let found = time_of_child_spans(&spans).unwrap();
        let of = |name: &str| found[spans.iter().position(|span| span.span.name == name).unwrap()];
        assert_eq!([of("1"), of("2"), of("3"), of("7")], [20 + 20 + 10, 4, 0, 0]);
        // What another service does meanwhile is a wait here.
        spans.iter_mut().filter(|span| span.span.name == "3").for_each(|span| span.span.service = "t".into());
        let found = time_of_child_spans(&spans).unwrap();
        assert_eq!(found[spans.iter().position(|span| span.span.name == "1").unwrap()], 20 + 10);
    }

    #[test]
    fn looking_for_child_spans_ends_with_the_time_of_its_request() {
        let links: Vec<_> = (1..=10_000).map(|n| (n, n - 1)).collect();
        let spans = stored(&links);
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), || time_of_child_spans(&spans));
        assert!(matches!(over, Err(ShowError::Busy(_))), "{over:?}");
    }
}
