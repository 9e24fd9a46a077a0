//! `/pyroscope/render` and `/pyroscope/render-diff`: the older query paths, in JSON.

use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::error::QueryError;
use super::labels::checked_profile_type;
use super::messages::{DiffRequest, Level, SelectMergeStacktracesRequest, SelectSeriesRequest, Series};
use super::querier::{Querier, on_pool};
use super::selector::Selector;
use super::{points, stacktraces};
use crate::clock::{self, MILLISECOND};
use crate::params::Params;
use crate::selection::parse_duration;
use crate::store::Store;

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
        let step = ((request.end - request.start) / 1_000 / MOST_POINTS).max(SHORTEST_STEP);
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
            },
        )?
        .series;
        let graph = stacktraces::merge(store, &request)?.flamegraph.unwrap_or_default();
        let timeline = |series: Option<&Series>| timeline(series, &request, step);
        let mut answer = flamebearer("single", &request, &graph.names, &graph.levels, graph.total, graph.max_self);
        answer["timeline"] = timeline(series.first().filter(|_| series.len() == 1));
        if group_by.is_some() {
            let groups = series.iter().map(|series| {
                let value = series.labels.first().map_or("*", |label| label.value.as_str());
                (value.to_owned(), timeline(Some(series)))
            });
            answer["groups"] = Value::Object(groups.collect());
        }
        Ok(answer)
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
        let mut answer = flamebearer("double", &left, &graph.names, &graph.levels, graph.total, graph.max_self);
        answer["leftTicks"] = graph.left_ticks.into();
        answer["rightTicks"] = graph.right_ticks.into();
        Ok(answer)
    })
    .await
}

async fn answer(querier: Querier, work: impl FnOnce(&Store) -> Result<Value, QueryError> + Send + 'static) -> Response {
    match on_pool(querier, work).await {
        Ok(answer) => ([(CONTENT_TYPE, "application/json")], answer.to_string()).into_response(),
        Err(error) => error.into_response(),
    }
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
        label_selector: without_name(&label_selector, &profile_type),
        start,
        end,
        max_nodes: most.and_then(|most| most.parse().ok()),
        ..SelectMergeStacktracesRequest::default()
    })
}

/// The series' own `__name__` is the first part of the profile type only.
fn without_name(selector: &str, profile_type: &str) -> String {
    let mut text = selector.to_owned();
    for quote in ['"', '\'', '`'] {
        let named = format!("__name__={quote}{profile_type}{quote}");
        if let Some(at) = text.find(&named) {
            let end = at + named.len();
            let comma = text[end..].starts_with(',');
            text.replace_range(at..end + usize::from(comma), "");
        }
    }
    text
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
    Ok(if number.abs() < 100_000_000_000 { number * 1_000 } else { number })
}

fn flamebearer(
    format: &str,
    request: &SelectMergeStacktracesRequest,
    names: &[String],
    levels: &[Level],
    total: i64,
    max_self: i64,
) -> Value {
    let unit = request.profile_type_id.split(':').nth(2).unwrap_or("");
    let (units, rate) = match unit {
        "nanoseconds" => ("samples", 1_000_000_000),
        "bytes" => ("bytes", 100),
        _ => ("objects", 100),
    };
    json!({
        "version": 1,
        "flamebearer": {
            "names": names,
            "levels": levels.iter().map(|level| &level.values).collect::<Vec<_>>(),
            "numTicks": total,
            "maxSelf": max_self,
        },
        "metadata": {
            "format": format, "spyName": "", "sampleRate": rate, "units": units,
            "name": request.profile_type_id.split(':').nth(1).unwrap_or(""),
        },
        "timeline": null,
        "groups": null,
        "heatmap": null,
    })
}

fn timeline(series: Option<&Series>, request: &SelectMergeStacktracesRequest, step: i64) -> Value {
    let points = (request.end - request.start) / 1_000 / step + 1;
    let mut samples = vec![0.0; usize::try_from(points).unwrap_or(0)];
    for point in series.map(|series| series.points.as_slice()).unwrap_or_default() {
        let index = usize::try_from((point.timestamp - request.start) / 1_000 / step).unwrap_or(0);
        if let Some(sample) = samples.get_mut(index) {
            *sample += point.value;
        }
    }
    json!({ "startTime": request.start / 1_000, "samples": samples, "durationDelta": step, "watermarks": null })
}
