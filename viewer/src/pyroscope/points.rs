//! Values over time: `SelectSeries`.

use std::collections::{BTreeMap, HashMap};

use super::error::QueryError;
use super::labels::{bounds, checked_profile_type, selected_series, too_large};
use super::messages::{LabelPair, SelectSeriesRequest, SelectSeriesResponse, Series, SeriesPoint};
use super::selector::Selector;
use crate::clock::MILLISECOND;
use crate::store::Store;

/// The most points of a series; more than any screen has.
const MOST_POINTS: i64 = 11_000;
/// What a point takes: as a sum, in the answer, and as text.
const OF_POINT: usize = 128;

/// Points at start + n · step, each of what profiles that started in the step before it hold.
pub(super) fn select(store: &Store, request: &SelectSeriesRequest) -> Result<SelectSeriesResponse, QueryError> {
    let profile_type = checked_profile_type(&request.profile_type_id)?;
    let selector = Selector::parse_of(&request.label_selector, profile_type).map_err(QueryError::invalid)?;
    bounds(request.start, request.end)?;
    let step = step_ms(request.step, request.start, request.end)?;
    let between = bounds(request.start.saturating_sub(step).saturating_add(1), request.end)?;

    let series = selected_series(store, profile_type, &selector, between, |mut labels| {
        let group = group(&mut labels, &request.group_by);
        let bytes = group.iter().map(|pair| pair.name.len() + pair.value.len()).sum();
        (group, bytes)
    })?;
    let ids: Vec<i64> = series.iter().map(|(id, _)| *id).collect();
    let groups: HashMap<i64, Vec<LabelPair>> = series.into_iter().collect();
    let most = most_bytes(store);
    let most_points = most / OF_POINT;
    let none = || (BTreeMap::<&Vec<LabelPair>, BTreeMap<i64, (f64, f64)>>::new(), 0);
    let (sums, points) = store.each_point_of_series(&ids, between, none, |(sums, points), point| {
        let Some(labels) = groups.get(&point.series) else {
            return true;
        };
        let at = column(request.start, step, point.time.div_euclid(MILLISECOND));
        let sum = sums.entry(labels).or_default().entry(at).or_insert_with(|| {
            *points += 1;
            (0.0, 0.0)
        });
        *sum = (sum.0 + point.value as f64, sum.1 + 1.0);
        *points <= most_points
    })?;
    if points > most_points {
        return Err(too_large(most));
    }
    let average = request.aggregation == Some(1);
    let mut answer: Vec<Series> = sums
        .into_iter()
        .map(|(labels, points)| Series {
            labels: labels.clone(),
            points: points
                .into_iter()
                .filter(|(timestamp, _)| *timestamp <= request.end)
                .map(|(timestamp, (value, count))| SeriesPoint {
                    timestamp,
                    value: if average { value / count } else { value },
                })
                .collect(),
        })
        .collect();
    if let Some(most) = request.limit.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0) {
        let total = |series: &Series| series.points.iter().map(|point| point.value).sum::<f64>();
        answer.sort_by(|a, b| total(b).total_cmp(&total(a)));
        answer.truncate(most);
    }
    Ok(SelectSeriesResponse { series: answer })
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
