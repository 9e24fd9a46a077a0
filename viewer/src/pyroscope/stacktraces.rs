//! Samples merged: as a flame graph, as Pyroscope's tree, as pprof, and two of them as a difference.

use spanprof_core::wire::pprof::Profile;

use super::dot;
use super::error::QueryError;
use super::labels::{bounds, checked_profile_type, selected_series};
use super::messages::{
    DiffRequest, DiffResponse, PprofProfile, SelectMergeProfileRequest, SelectMergeSpanProfileRequest,
    SelectMergeStacktracesRequest, SelectMergeStacktracesResponse, StackTraceSelector,
};
use super::selector::Selector;
use super::tree::{Tree, begins_with};
use crate::clock::MILLISECOND;
use crate::export::pprof;
use crate::export::size::fits_as_numbers;
use crate::ids::{ProfileId, SpanId, TraceId};
use crate::show::Steps;
use crate::store::{Choice, Stacks, Store};

/// Bars of a flame graph if the client does not say how many; the same as Pyroscope's.
const MOST_NODES: usize = 8_192;
/// Most ids in one request.
const MOST_IDS: usize = 1_000;

/// `SelectMergeStacktraces`.
pub(super) fn merge(
    store: &Store,
    request: &SelectMergeStacktracesRequest,
) -> Result<SelectMergeStacktracesResponse, QueryError> {
    let mut stacks = stacks(store, request)?;
    let site = call_site(request.stack_trace_selector.as_ref());
    let mut answer = SelectMergeStacktracesResponse::default();
    match request.format {
        3 => {
            choose(&mut stacks, &site)?;
            answer.dot = dot::graph(&stacks, request.max_nodes, store.limits().answer())?;
        }
        4 => answer.pprof = Some(PprofProfile { profile: Some(profile(store, stacks, &site, request.end)?) }),
        format => {
            let mut tree = Tree::default();
            tree.add(&stacks, 0, &site)?;
            tree.prune(most_nodes(request.max_nodes))?;
            if format == 2 {
                answer.tree = tree.bytes(store.limits().answer())?;
            } else {
                // A format that is not known here asks for what is answered by default.
                answer.flamegraph = Some(tree.flame_graph()?);
            }
        }
    }
    Ok(answer)
}

/// `SelectMergeSpanProfile`, which older data sources call.
pub(super) fn merge_spans(
    store: &Store,
    request: SelectMergeSpanProfileRequest,
) -> Result<SelectMergeStacktracesResponse, QueryError> {
    merge(
        store,
        &SelectMergeStacktracesRequest {
            profile_type_id: request.profile_type_id,
            label_selector: request.label_selector,
            start: request.start,
            end: request.end,
            max_nodes: request.max_nodes,
            format: request.format,
            span_selector: request.span_selector,
            ..SelectMergeStacktracesRequest::default()
        },
    )
}

/// `SelectMergeProfile`.
pub(super) fn merge_profile(store: &Store, request: SelectMergeProfileRequest) -> Result<Profile, QueryError> {
    let site = call_site(request.stack_trace_selector.as_ref());
    let request = SelectMergeStacktracesRequest {
        profile_type_id: request.profile_type_id,
        label_selector: request.label_selector,
        start: request.start,
        end: request.end,
        profile_id_selector: request.profile_id_selector,
        trace_id_selector: request.trace_id_selector,
        ..SelectMergeStacktracesRequest::default()
    };
    profile(store, stacks(store, &request)?, &site, request.end)
}

/// `Diff`.
pub(super) fn diff(store: &Store, request: &DiffRequest) -> Result<DiffResponse, QueryError> {
    let (Some(left), Some(right)) = (&request.left, &request.right) else {
        return Err(QueryError::invalid("a difference needs left and right"));
    };
    let sides = [stacks(store, left)?, stacks(store, right)?];
    let mut tree = Tree::default();
    for (side, (stacks, request)) in sides.iter().zip([left, right]).enumerate() {
        tree.add(stacks, side, &call_site(request.stack_trace_selector.as_ref()))?;
    }
    tree.prune(most_nodes(left.max_nodes.max(right.max_nodes)))?;
    Ok(DiffResponse { flamegraph: Some(tree.flame_graph_diff()?) })
}

fn stacks(store: &Store, request: &SelectMergeStacktracesRequest) -> Result<Stacks, QueryError> {
    let profile_type = checked_profile_type(&request.profile_type_id)?;
    let selector = Selector::parse_of(&request.label_selector, profile_type).map_err(QueryError::invalid)?;
    let bounds = bounds(request.start, request.end)?;
    let choice = Choice {
        spans: ids(&request.span_selector, "span id", "16 hex digits, not all zeros", SpanId::parse)?,
        traces: ids(&request.trace_id_selector, "trace id", "32 hex digits, not all zeros", TraceId::parse)?,
        profiles: ids(&request.profile_id_selector, "profile id", "the UUIDs of exemplars", ProfileId::parse)?,
    };
    let series = selected_series(store, profile_type, &selector, bounds, |_| ((), 0))?;
    let series: Vec<i64> = series.into_iter().map(|(id, ())| id).collect();
    Ok(store.stacks_of_series(&series, &choice, bounds)?)
}

fn ids<T>(
    texts: &[String],
    what: &str,
    allowed: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, QueryError> {
    if texts.len() > MOST_IDS {
        return Err(QueryError::invalid(format!("more than {MOST_IDS} of {what}")));
    }
    let invalid = |text: &String| QueryError::invalid(format!("{what} {text:?}: allowed are {allowed}"));
    texts.iter().map(|text| parse(text).ok_or_else(|| invalid(text))).collect()
}

fn call_site(selector: Option<&StackTraceSelector>) -> Vec<String> {
    selector.map(|selector| selector.call_site.iter().map(|site| site.name.clone()).collect()).unwrap_or_default()
}

fn most_nodes(asked: Option<i64>) -> usize {
    asked.and_then(|most| usize::try_from(most).ok()).filter(|most| *most > 0).unwrap_or(MOST_NODES)
}

/// Leaves out the stacks that do not begin with the call site.
fn choose(stacks: &mut Stacks, call_site: &[String]) -> Result<(), QueryError> {
    if call_site.is_empty() {
        return Ok(());
    }
    let mut steps = Steps::default();
    let mut chosen = Vec::new();
    for sum in std::mem::take(&mut stacks.sums) {
        if begins_with(stacks, sum.0, call_site, &mut steps)? {
            chosen.push(sum);
        }
    }
    stacks.sums = chosen;
    Ok(())
}

/// The time of a merged profile is the end of what was asked for, as in Pyroscope.
fn profile(store: &Store, mut stacks: Stacks, call_site: &[String], end: i64) -> Result<Profile, QueryError> {
    choose(&mut stacks, call_site)?;
    fits_as_numbers(&stacks, store.limits().answer())?;
    Ok(Profile { time_nanos: end.saturating_mul(MILLISECOND), ..pprof::profile(&stacks) })
}
