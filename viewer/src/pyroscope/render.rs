//! `/pyroscope/render` and `/pyroscope/render-diff`: the older query paths, in JSON.

use std::collections::BTreeMap;
use std::num::FpCategory;

use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::ser::{Error as _, SerializeSeq as _};
use serde::{Serialize, Serializer};

use super::error::QueryError;
use super::labels::{checked_profile_type, too_large};
use super::messages::{DiffRequest, LabelValuesRequest, Level, ProfileTypesRequest, SelectMergeStacktracesRequest};
use super::points_messages::{SelectSeriesRequest, Series, SeriesPoint};
use super::querier::{Querier, on_pool};
use super::selector::Selector;
use super::{labels, points, stacktraces};
use crate::clock::{self, MILLISECOND};
use crate::params::Params;
use crate::selection::parse_duration;
use crate::store::Store;
use crate::work;

/// Points of a timeline are at least this far apart, in seconds.
const SHORTEST_STEP: i64 = 15;
/// And at most so many.
const MOST_POINTS: i64 = 1_500;

/// `query=process_cpu:…{service_name="shop"}&from=now-1h&until=now`: a flame graph and a timeline.
pub(super) async fn render(State(querier): State<Querier>, RawQuery(query): RawQuery) -> Response {
    answer(querier, move |store| {
        let mut params = Params::parse(query.as_deref().unwrap_or(""));
        let request = request(&mut params, ["query", "from", "until"])?;
        let group_by = params.take("groupBy")?;
        let average = match params.take("aggregation")?.as_deref() {
            None | Some("sum" | "") => false,
            Some("avg") => true,
            Some(other) => return Err(QueryError::invalid(format!("aggregation {other:?}: allowed are sum and avg"))),
        };
        if let Some(other) = params.take("format")?.filter(|format| format != "json") {
            return Err(QueryError::invalid(format!("format {other:?}: only json is written here")));
        }
        let step = (request.end.saturating_sub(request.start) / 1_000 / MOST_POINTS).max(SHORTEST_STEP);
        let series = points::select(
            store,
            &SelectSeriesRequest {
                profile_type_id: request.profile_type_id.clone(),
                label_selector: request.label_selector.clone(),
                start: request.start,
                end: request.end,
                group_by: group_by.iter().cloned().collect(),
                step: step as f64,
                aggregation: Some(i32::from(average)),
                limit: None,
                exemplar_type: 0,
            },
        )?
        .series;
        let timelines = Timelines { start: request.start / 1_000, end: request.end / 1_000, step };
        let most = points::most_bytes(store);
        if group_by.is_some() && timelines.bytes(&series) > most {
            return Err(too_large(most));
        }
        let graph = stacktraces::merge(store, &request)?.flamegraph.unwrap_or_default();
        let groups = group_by.map(|_| {
            let name = |series: &Series| series.labels.first().map_or("*", |label| label.value.as_str()).to_owned();
            series.iter().map(|series| (name(series), timelines.of(Some(series)))).collect::<BTreeMap<_, _>>()
        });
        write(&Answer {
            flamebearer: Flamebearer::new(&graph.names, &graph.levels, graph.total, graph.max_self),
            metadata: Metadata::new("single", &request.profile_type_id),
            timeline: Some(timelines.of(series.first().filter(|_| series.len() == 1))),
            groups,
            ..Answer::default()
        })
    })
    .await
}

/// `leftQuery, leftFrom, leftUntil, rightQuery, rightFrom, rightUntil`: the difference of two.
pub(super) async fn render_diff(State(querier): State<Querier>, RawQuery(query): RawQuery) -> Response {
    answer(querier, move |store| {
        let mut params = Params::parse(query.as_deref().unwrap_or(""));
        let left = request(&mut params, ["leftQuery", "leftFrom", "leftUntil"])?;
        let right = request(&mut params, ["rightQuery", "rightFrom", "rightUntil"])?;
        if left.profile_type_id != right.profile_type_id {
            return Err(QueryError::invalid("leftQuery and rightQuery must be of one profile type"));
        }
        let both = DiffRequest { left: Some(left.clone()), right: Some(right) };
        let graph = stacktraces::diff(store, &both)?.flamegraph.unwrap_or_default();
        write(&Answer {
            flamebearer: Flamebearer::new(&graph.names, &graph.levels, graph.total, graph.max_self),
            metadata: Metadata::new("double", &left.profile_type_id),
            left_ticks: Some(graph.left_ticks),
            right_ticks: Some(graph.right_ticks),
            ..Answer::default()
        })
    })
    .await
}

/// `label=region`, with `from` and `until` if not of all times: the values of a label, and of `__name__` the profile types.
pub(super) async fn label_values(State(querier): State<Querier>, RawQuery(query): RawQuery) -> Response {
    answer(querier, move |store| {
        let mut params = Params::parse(query.as_deref().unwrap_or(""));
        let missing = || QueryError::invalid("the parameter \"label\" is missing");
        let label = params.take("label")?.filter(|label| !label.is_empty()).ok_or_else(missing)?;
        let now = clock::now() / MILLISECOND;
        let (from, until) = (params.take("from")?, params.take("until")?);
        let start = if from.is_some() { time("from", from.as_deref(), now)? } else { 1 };
        let end = if until.is_some() { time("until", until.as_deref(), now)? } else { i64::MAX };
        let values = if label == "__name__" {
            let types = labels::profile_types(store, &ProfileTypesRequest { start, end })?.profile_types;
            types.into_iter().map(|profile_type| profile_type.id).collect()
        } else {
            labels::values(store, &LabelValuesRequest { name: label, start, end, ..LabelValuesRequest::default() })?
                .names
        };
        serde_json::to_string(&values).map_err(QueryError::failed)
    })
    .await
}

async fn answer(
    querier: Querier,
    work: impl FnOnce(&Store) -> Result<String, QueryError> + Send + 'static,
) -> Response {
    match on_pool(querier, work).await {
        Ok(answer) => ([(CONTENT_TYPE, "application/json")], answer).into_response(),
        Err(error) => error.into_response(),
    }
}

fn write(answer: &Answer<'_>) -> Result<String, QueryError> {
    serde_json::to_string(answer).map_err(QueryError::failed)
}

/// What is asked for. Parameters that are not known are left alone, as Grafana adds its own.
fn request(params: &mut Params, names: [&'static str; 3]) -> Result<SelectMergeStacktracesRequest, QueryError> {
    let [query, from, until] = names;
    let text = params.take(query)?.ok_or_else(|| QueryError::invalid(format!("the parameter {query:?} is missing")))?;
    let type_end = text.find('{').unwrap_or(text.len());
    let mut selector = Selector::parse(&text).map_err(QueryError::invalid)?;
    let profile_type = selector.take_name().ok_or_else(|| {
        QueryError::invalid(format!("{query:?} = {text:?}: the profile type is missing before the '{{'"))
    })?;
    let label_selector = if type_end == 0 { text.clone() } else { text[type_end..].to_owned() };
    let now = clock::now() / MILLISECOND;
    let start = time(from, params.take(from)?.as_deref(), now)?;
    let end = time(until, params.take(until)?.as_deref(), now)?;
    let most = params.take("maxNodes")?.or(params.take("max-nodes")?);
    Ok(SelectMergeStacktracesRequest {
        profile_type_id: checked_profile_type(&profile_type)?.into(),
        label_selector,
        start,
        end,
        max_nodes: most.and_then(|most| most.parse().ok()),
        ..SelectMergeStacktracesRequest::default()
    })
}

/// `now`, `now-1h`, Unix seconds or milliseconds; now if nothing is said.
fn time(name: &str, text: Option<&str>, now: i64) -> Result<i64, QueryError> {
    let Some(text) = text.filter(|text| !text.is_empty() && *text != "now") else {
        return Ok(now);
    };
    let invalid =
        || QueryError::invalid(format!("{name:?} = {text:?}: allowed are now, now-1h, Unix seconds or milliseconds"));
    if let Some(ago) = text.strip_prefix("now-") {
        let ago = parse_duration(ago).map_err(|_| invalid())?;
        return Ok(now - i64::try_from(ago.as_millis()).map_err(|_| invalid())?);
    }
    let number: i64 = text.parse().map_err(|_| invalid())?;
    // Seconds have ten digits until the year 2286.
    Ok(if number.unsigned_abs() < 100_000_000_000 { number * 1_000 } else { number })
}

/// What both answer, written as it is, since a tree of JSON values takes many times as much.
#[derive(Default, Serialize)]
struct Answer<'a> {
    version: Version,
    flamebearer: Flamebearer<'a>,
    metadata: Metadata<'a>,
    timeline: Option<Timeline<'a>>,
    groups: Option<BTreeMap<String, Timeline<'a>>>,
    heatmap: (),
    #[serde(rename = "leftTicks", skip_serializing_if = "Option::is_none")]
    left_ticks: Option<i64>,
    #[serde(rename = "rightTicks", skip_serializing_if = "Option::is_none")]
    right_ticks: Option<i64>,
}

#[derive(Serialize)]
struct Version(u8);

impl Default for Version {
    fn default() -> Self {
        Self(1)
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Flamebearer<'a> {
    names: &'a [String],
    levels: Vec<&'a [i64]>,
    num_ticks: i64,
    max_self: i64,
}

impl<'a> Flamebearer<'a> {
    fn new(names: &'a [String], levels: &'a [Level], num_ticks: i64, max_self: i64) -> Self {
        Self { names, levels: levels.iter().map(|level| level.values.as_slice()).collect(), num_ticks, max_self }
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    format: &'static str,
    spy_name: &'static str,
    sample_rate: u32,
    units: &'static str,
    name: &'a str,
}

impl<'a> Metadata<'a> {
    fn new(format: &'static str, profile_type: &'a str) -> Self {
        let (units, sample_rate) = match profile_type.split(':').nth(2).unwrap_or("") {
            "nanoseconds" => ("samples", 1_000_000_000),
            "bytes" => ("bytes", 100),
            _ => ("objects", 100),
        };
        Self { format, spy_name: "", sample_rate, units, name: profile_type.split(':').nth(1).unwrap_or("") }
    }
}

/// The time of all timelines of an answer, in seconds.
#[derive(Clone, Copy)]
struct Timelines {
    start: i64,
    end: i64,
    step: i64,
}

/// A number for each step.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Timeline<'a> {
    start_time: i64,
    samples: Samples<'a>,
    duration_delta: i64,
    watermarks: (),
}

struct Samples<'a> {
    time: Timelines,
    points: &'a [SeriesPoint],
}

impl Timelines {
    fn samples(self) -> usize {
        usize::try_from((self.end - self.start) / self.step + 1).unwrap_or(0)
    }

    /// What the timelines of groups take as text at most: each sample that is none, each that is one, and what is around.
    fn bytes(self, groups: &[Series]) -> usize {
        let points: usize = groups.iter().map(|series| series.points.len()).sum();
        let beside = |series: &Series| series.labels.first().map_or(0, |label| 6 * label.value.len()) + 128;
        groups.iter().map(beside).sum::<usize>() + groups.len() * self.samples() * 2 + points * 24
    }

    fn of(self, series: Option<&Series>) -> Timeline<'_> {
        let points = series.map_or(&[][..], |series| &series.points);
        let samples = Samples { time: self, points };
        Timeline { start_time: self.start, samples, duration_delta: self.step, watermarks: () }
    }
}

impl Serialize for Samples<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if work::is_over() {
            return Err(S::Error::custom("it took too long"));
        }
        let Self { time: Timelines { start, step, .. }, points } = *self;
        let mut samples = vec![0.0; self.time.samples()];
        for point in points {
            let index = usize::try_from((point.timestamp / 1_000 - start) / step).unwrap_or(0);
            if let Some(sample) = samples.get_mut(index) {
                *sample += point.value;
            }
        }
        let mut written = serializer.serialize_seq(Some(samples.len()))?;
        for sample in samples {
            // Most are none, in two bytes each.
            match sample.classify() {
                FpCategory::Zero => written.serialize_element(&0)?,
                _ => written.serialize_element(&sample)?,
            }
        }
        written.end()
    }
}
