//! Values over time: `SelectSeries`.

use std::collections::{BTreeMap, HashMap};

use super::error::QueryError;
use super::labels::{bounds, checked_profile_type, selected_series, too_large};
use super::messages::LabelPair;
use super::points_messages::{Exemplar, SelectSeriesRequest, SelectSeriesResponse, Series, SeriesPoint};
use super::selector::Selector;
use crate::clock::MILLISECOND;
use crate::ids::ProfileId;
use crate::store::{Point, Store};

/// The most points of a series; more than any screen has.
const MOST_POINTS: i64 = 11_000;
/// What a point takes: as a sum, in the answer, and as text.
const OF_POINT: usize = 128;
/// What an exemplar takes beside its labels; as text too.
pub(super) const OF_EXEMPLAR: usize = 256;

/// Points at start + n · step, each of what profiles that started in the step before it hold.
pub(super) fn select(store: &Store, request: &SelectSeriesRequest) -> Result<SelectSeriesResponse, QueryError> {
    let profile_type = checked_profile_type(&request.profile_type_id)?;
    let selector = Selector::parse_of(&request.label_selector, profile_type).map_err(QueryError::invalid)?;
    bounds(request.start, request.end)?;
    let step = step_ms(request.step, request.start, request.end)?;
    let between = bounds(request.start.saturating_sub(step).saturating_add(1), request.end)?;

    let with_exemplars = match request.exemplar_type {
        0 | 1 => false,
        2 => true,
        3 => return Err(QueryError::unimplemented("exemplars of spans are those of SelectHeatmap")),
        other => return Err(QueryError::invalid(format!("exemplarType {other}: allowed are 0, 1 and 2"))),
    };
    // The labels that it is grouped by, and the others, which exemplars have.
    let series = selected_series(store, profile_type, &selector, between, |mut labels| {
        let by = group(&mut labels, &request.group_by);
        let others = labels.into_iter().filter(|_| with_exemplars);
        let others: Vec<_> = others.map(|(name, value)| LabelPair { name, value }).collect();
        let bytes = by.iter().map(|pair| pair.name.len() + pair.value.len()).sum::<usize>() + bytes_of(&others);
        ((by, others), bytes)
    })?;
    let ids: Vec<i64> = series.iter().map(|(id, _)| *id).collect();
    let labels: HashMap<i64, (Vec<LabelPair>, Vec<LabelPair>)> = series.into_iter().collect();
    let most = most_bytes(store);
    let most_points = most / OF_POINT;
    let none = || (BTreeMap::<&Vec<LabelPair>, BTreeMap<i64, Sum>>::new(), 0);
    let (sums, points) = store.each_point_of_series(&ids, between, none, |(sums, points), point| {
        let Some((by, _)) = labels.get(&point.series) else {
            return true;
        };
        let at = column(request.start, step, point.time.div_euclid(MILLISECOND));
        let sum = sums.entry(by).or_default().entry(at).or_insert_with(|| {
            *points += 1;
            Sum { value: 0.0, count: 0.0, largest: point }
        });
        sum.value += point.value as f64;
        sum.count += 1.0;
        if point.value > sum.largest.value {
            sum.largest = point;
        }
        *points <= most_points
    })?;
    if points > most_points {
        return Err(too_large(most));
    }
    let average = request.aggregation == Some(1);
    let mut left = most - points * OF_POINT;
    let mut answer: Vec<Series> = Vec::new();
    for (by, sums) in sums {
        let mut points = Vec::new();
        for (timestamp, Sum { value, count, largest }) in sums.into_iter().filter(|(at, _)| *at <= request.end) {
            let mut exemplars = Vec::new();
            if with_exemplars {
                let labels = labels.get(&largest.series).map(|(_, others)| others.clone()).unwrap_or_default();
                let bytes = OF_EXEMPLAR + bytes_of(&labels) * 2;
                left = left.checked_sub(bytes).ok_or_else(|| too_large(most))?;
                exemplars.push(exemplar(&largest, labels));
            }
            points.push(SeriesPoint { timestamp, value: if average { value / count } else { value }, exemplars });
        }
        answer.push(Series { labels: by.clone(), points });
    }
    if let Some(most) = request.limit.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0) {
        let total = |series: &Series| series.points.iter().map(|point| point.value).sum::<f64>();
        answer.sort_by(|a, b| total(b).total_cmp(&total(a)));
        answer.truncate(most);
    }
    Ok(SelectSeriesResponse { series: answer })
}

/// A point of an answer while it is added up, and the largest that is in it, of two the first.
struct Sum {
    value: f64,
    count: f64,
    largest: Point,
}

/// The profile that has the most of a point.
fn exemplar(largest: &Point, labels: Vec<LabelPair>) -> Exemplar {
    Exemplar {
        timestamp: largest.time.div_euclid(MILLISECOND),
        profile_id: ProfileId { time: largest.time, number: largest.profile }.to_string(),
        span_id: String::new(),
        value: largest.value,
        labels,
        trace_id: String::new(),
    }
}

/// What labels take.
pub(super) fn bytes_of(labels: &[LabelPair]) -> usize {
    labels.iter().map(|pair| pair.name.len() + pair.value.len() + 48).sum()
}

/// What the points of an answer may take: the other half is for its labels, and for the flame graph beside it.
pub(super) fn most_bytes(store: &Store) -> usize {
    store.limits().answer() / 2
}

/// A step in milliseconds.
#[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest integer, and the bounds are checked")]
pub(super) fn step_ms(seconds: f64, start: i64, end: i64) -> Result<i64, QueryError> {
    let step = (seconds * 1_000.0) as i64;
    if step < 1 {
        return Err(QueryError::invalid(format!("step {seconds}: allowed are seconds, 0.001 and more")));
    }
    if end.saturating_sub(start) / step > MOST_POINTS {
        return Err(QueryError::invalid(format!(
            "step {seconds}: from start to end there would be more than {MOST_POINTS} points; choose a larger step"
        )));
    }
    Ok(step)
}

/// The end of the step that a time is in: start + n · step, and the start for what is before it.
pub(super) fn column(start: i64, step: i64, time: i64) -> i64 {
    let (start, step) = (i128::from(start), i128::from(step));
    let since = (i128::from(time) - start).max(0);
    i64::try_from(start + (since + step - 1) / step * step).unwrap_or(i64::MAX)
}

/// Takes out the labels that tell the groups apart.
pub(super) fn group(labels: &mut BTreeMap<String, String>, by: &[String]) -> Vec<LabelPair> {
    let mut pairs: Vec<LabelPair> =
        by.iter().filter_map(|name| labels.remove(name).map(|value| LabelPair { name: name.clone(), value })).collect();
    pairs.sort_unstable();
    pairs
}
