//! How many profiles or spans have which value when: `SelectHeatmap`.

use std::collections::{BTreeMap, HashMap};

use super::error::QueryError;
use super::heatmap_messages::{HeatmapSeries, HeatmapSlot, SelectHeatmapRequest, SelectHeatmapResponse};
use super::labels::{bounds, checked_profile_type, selected_series, too_large};
use super::messages::LabelPair;
use super::points::{OF_EXEMPLAR, bytes_of, column, group, most_bytes, step_ms};
use super::points_messages::Exemplar;
use super::selector::Selector;
use crate::clock::MILLISECOND;
use crate::ids::{ProfileId, SpanId};
use crate::store::{SpanPoint, Store};

/// Rows of a heatmap, as in Pyroscope.
const ROWS: i64 = 20;
/// What a point takes, and what a slot takes beside its exemplars; as text too.
const OF_POINT: usize = 160;
const OF_SLOT: usize = 1_024;

/// The labels of a series: those it is grouped by, and the others.
type Labels = (Vec<LabelPair>, Vec<LabelPair>);

/// A profile or the samples of a span in one.
struct Point {
    /// Milliseconds.
    time: i64,
    profile: ProfileId,
    /// The span, where spans are asked for.
    span: Option<SpanId>,
    value: i64,
    /// The series that it is of.
    series: Vec<i64>,
}

/// The heatmap of a profile type, grouped by labels.
pub(super) fn select(store: &Store, request: &SelectHeatmapRequest) -> Result<SelectHeatmapResponse, QueryError> {
    let profile_type = checked_profile_type(&request.profile_type_id)?;
    let selector = Selector::parse_of(&request.label_selector, profile_type).map_err(QueryError::invalid)?;
    bounds(request.start, request.end)?;
    if request.start >= request.end {
        let sentence = format!("start {} must be before end {}", request.start, request.end);
        return Err(QueryError::invalid(sentence));
    }
    let step = step_ms(request.step, request.start, request.end)?;
    let limit = match request.limit {
        Some(limit) => usize::try_from(limit)
            .map_err(|_| QueryError::invalid(format!("limit {limit}: allowed are 0, for all, and more")))?,
        None => 0,
    };
    let of_spans = match request.query_type {
        1 => false,
        2 => true,
        other => {
            let allowed = "HEATMAP_QUERY_TYPE_INDIVIDUAL (1) and HEATMAP_QUERY_TYPE_SPAN (2)";
            return Err(QueryError::invalid(format!("queryType {other}: allowed are {allowed}")));
        }
    };
    let with_exemplars = match (request.exemplar_type, of_spans) {
        (0 | 1, _) => false,
        (2, false) | (3, true) => true,
        (2, true) => return Err(QueryError::invalid("exemplars of profiles are those of a query of profiles")),
        (3, false) => return Err(QueryError::invalid("exemplars of spans are those of a query of spans")),
        (other, _) => return Err(QueryError::invalid(format!("exemplarType {other}: allowed are 0, 1, 2 and 3"))),
    };
    let between = bounds(request.start.saturating_sub(step).max(1), request.end)?;
    let labels: HashMap<i64, Labels> = selected_series(store, profile_type, &selector, between, |mut labels| {
        let by = group(&mut labels, &request.group_by);
        // Exemplars alone have them.
        labels.retain(|_, _| with_exemplars);
        let others = labels.into_iter().map(|(name, value)| LabelPair { name, value }).collect();
        let labels: Labels = (by, others);
        let bytes = labels.0.iter().chain(&labels.1).map(|pair| pair.name.len() + pair.value.len() + 96).sum();
        (labels, bytes)
    })?
    .into_iter()
    .collect();
    let groups = points(store, &labels, between, of_spans)?;
    let values = || groups.values().flatten().map(|point| point.value);
    let (Some(least), Some(most)) = (values().min(), values().max()) else {
        return Ok(SelectHeatmapResponse::default());
    };
    let slots = Slots { start: request.start, end: request.end, step, least, most: most.max(least.saturating_add(1)) };
    let mut left = most_bytes(store);
    let mut series = Vec::new();
    for (by, points) in groups {
        series.push(HeatmapSeries {
            labels: by.clone(),
            slots: slots.of(points, &labels, with_exemplars, &mut left, store)?,
        });
    }
    if limit > 0 {
        let count = |series: &HeatmapSeries| {
            series.slots.iter().flat_map(|slot| &slot.counts).map(|count| i64::from(*count)).sum::<i64>()
        };
        series.sort_by_key(|series| std::cmp::Reverse(count(series)));
        series.truncate(limit);
    }
    Ok(SelectHeatmapResponse { series })
}

/// The points of each group. Samples of a span in several series of a profile are one.
fn points<'l>(
    store: &Store,
    labels: &'l HashMap<i64, Labels>,
    between: (i64, i64),
    of_spans: bool,
) -> Result<BTreeMap<&'l Vec<LabelPair>, Vec<Point>>, QueryError> {
    let ids: Vec<i64> = labels.keys().copied().collect();
    let (most, by) = (most_bytes(store), |series| labels.get(&series).map(|(by, _)| by));
    let (room, mut groups) = (most / OF_POINT, BTreeMap::new());
    if !of_spans {
        let all = store.each_point_of_series(&ids, between, Vec::new, |all, point| {
            all.push(point);
            all.len() <= room
        })?;
        if all.len() > room {
            return Err(too_large(most));
        }
        for point in all {
            let time = point.time.div_euclid(MILLISECOND);
            let profile = ProfileId { time: point.time, number: point.profile };
            let point = Point { time, profile, span: None, value: point.value, series: vec![point.series] };
            if let Some(by) = by(point.series[0]) {
                groups.entry(by).or_insert_with(Vec::new).push(point);
            }
        }
        return Ok(groups);
    }
    type Spans<'l> = BTreeMap<(&'l Vec<LabelPair>, i64, SpanId, i64), (i64, Vec<i64>)>;
    let (spans, count) = store.each_span_of_series(
        &ids,
        between,
        || (Spans::new(), 0),
        |(spans, count), SpanPoint { series, time, profile, span, value }| {
            if let Some(by) = by(series) {
                let sum = spans.entry((by, time, span, profile)).or_default();
                sum.0 = sum.0.saturating_add(value);
                sum.1.push(series);
                *count += 1;
            }
            *count <= room
        },
    )?;
    if count > room {
        return Err(too_large(most));
    }
    for ((by, time, span, profile), (value, series)) in spans {
        let profile = ProfileId { time, number: profile };
        let time = time.div_euclid(MILLISECOND);
        groups.entry(by).or_insert_with(Vec::new).push(Point { time, profile, span: Some(span), value, series });
    }
    Ok(groups)
}

/// Columns of a step each, and rows between the least and the most value of all.
struct Slots {
    start: i64,
    end: i64,
    step: i64,
    least: i64,
    most: i64,
}

impl Slots {
    /// The slots that points are in.
    fn of(
        &self,
        points: Vec<Point>,
        labels: &HashMap<i64, Labels>,
        with_exemplars: bool,
        left: &mut usize,
        store: &Store,
    ) -> Result<Vec<HeatmapSlot>, QueryError> {
        let mut take = |bytes: usize| {
            *left = left.checked_sub(bytes).ok_or_else(|| too_large(most_bytes(store)))?;
            Ok::<_, QueryError>(())
        };
        // How many are in each, and the largest, of two the first.
        let mut cells: BTreeMap<(i64, usize), (i32, Point)> = BTreeMap::new();
        for point in points {
            let cell = (self.column(point.time), self.row(point.value));
            match cells.get_mut(&cell) {
                Some((count, largest)) => {
                    *count = count.saturating_add(1);
                    if point.value > largest.value {
                        *largest = point;
                    }
                }
                None => {
                    cells.insert(cell, (1, point));
                }
            }
        }
        let mut traces = HashMap::new();
        if with_exemplars {
            let spans: Vec<(i64, SpanId)> =
                cells.values().filter_map(|(_, point)| point.span.map(|span| (point.profile.number, span))).collect();
            traces = store.traces_of_spans(&spans)?;
        }
        let rows = usize::try_from(ROWS).unwrap_or(0);
        let mut slots: Vec<HeatmapSlot> = Vec::new();
        for ((timestamp, row), (count, point)) in cells {
            if slots.last().is_none_or(|slot| slot.timestamp != timestamp) {
                take(OF_SLOT)?;
                let y_min = (0..ROWS).map(|row| self.floor(row) as f64).collect();
                slots.push(HeatmapSlot { timestamp, y_min, counts: vec![0; rows], exemplars: Vec::new() });
            }
            let Some(slot) = slots.last_mut() else { continue };
            slot.counts[row] = count;
            if !with_exemplars {
                continue;
            }
            let labels = common(&point.series, labels);
            take(OF_EXEMPLAR + bytes_of(&labels) * 2)?;
            let trace_id = point.span.and_then(|span| traces.get(&(point.profile.number, span)));
            slot.exemplars.push(Exemplar {
                timestamp: point.time,
                profile_id: if point.span.is_some() { String::new() } else { point.profile.to_string() },
                span_id: point.span.map(|span| span.to_string()).unwrap_or_default(),
                value: point.value,
                labels,
                trace_id: trace_id.map(ToString::to_string).unwrap_or_default(),
            });
        }
        Ok(slots)
    }

    /// The end of the step that a time is in: start + n · step, and what is before or after all in the first or the last.
    fn column(&self, time: i64) -> i64 {
        column(self.start, self.step, time.min(self.end))
    }

    fn row(&self, value: i64) -> usize {
        let above = (0..ROWS).take_while(|row| self.floor(*row) <= value).count();
        above.saturating_sub(1)
    }

    /// The least value of a row.
    fn floor(&self, row: i64) -> i64 {
        let height = i128::from(self.most) - i128::from(self.least);
        i64::try_from(i128::from(self.least) + height * i128::from(row) / i128::from(ROWS)).unwrap_or(self.most)
    }
}

/// The labels that all of the series have.
fn common(series: &[i64], labels: &HashMap<i64, Labels>) -> Vec<LabelPair> {
    let mut of_each = series.iter().filter_map(|series| labels.get(series)).map(|(_, others)| others);
    let mut common = of_each.next().cloned().unwrap_or_default();
    of_each.for_each(|others| common.retain(|pair| others.binary_search(pair).is_ok()));
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_values_stand_where_pyroscope_puts_them() {
        let slots = Slots { start: 1_000, end: 2_050, step: 100, least: 10, most: 210 };
        let columns = [900, 1_000, 1_001, 1_100, 2_001, 2_050, 9_000].map(|time| slots.column(time));
        assert_eq!(columns, [1_000, 1_000, 1_100, 1_100, 2_100, 2_100, 2_100]);
        let rows = [10, 19, 20, 209, 210].map(|value| slots.row(value));
        assert_eq!(rows, [0, 0, 1, 19, 19]);
        let one = Slots { least: 7, most: 8, ..slots };
        assert_eq!((one.row(7), one.floor(19)), (19, 7));
    }
}
