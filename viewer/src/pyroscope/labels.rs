//! What there is: profile types, labels and their values, series.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::error::QueryError;
use super::messages::{
    GetProfileStatsResponse, LabelNamesRequest, LabelPair, LabelValuesRequest, Labels, NamesResponse, ProfileType,
    ProfileTypesRequest, ProfileTypesResponse, SeriesRequest, SeriesResponse,
};
use super::selector::Selector;
use crate::clock::MILLISECOND;
use crate::store::{Store, StoredSeries};

/// The most names of labels in one question.
const MOST_NAMES: usize = 1_000;
/// Bytes that a string takes beside its own.
const BESIDE: usize = 48;

/// A series' number and its labels.
type Labelled = (i64, BTreeMap<String, String>);

/// `ProfileTypes`.
pub(super) fn profile_types(store: &Store, request: &ProfileTypesRequest) -> Result<ProfileTypesResponse, QueryError> {
    let found = store.each_series(bounds(request.start, request.end)?, BTreeSet::new, |found, series| {
        found.extend(profile_type(&series.profile_type));
        true
    })?;
    Ok(ProfileTypesResponse { profile_types: found.into_iter().collect() })
}

/// `LabelNames`. Names with a dot are left out unless the client says that it reads them.
pub(super) fn names(store: &Store, request: &LabelNamesRequest, dots: bool) -> Result<NamesResponse, QueryError> {
    let bounds = bounds(request.start, request.end)?;
    let names = each_matching(store, &request.matchers, bounds, |names: &mut BTreeSet<_>, labels| {
        let wanted = labels.into_keys().filter(|name| dots || is_plain(name));
        wanted
            .map(|name| (name.len() + BESIDE, name))
            .map(|(bytes, name)| if names.insert(name) { bytes } else { 0 })
            .sum()
    })?;
    Ok(NamesResponse { names: names.into_iter().collect() })
}

/// `LabelValues`.
pub(super) fn values(store: &Store, request: &LabelValuesRequest) -> Result<NamesResponse, QueryError> {
    if request.name.is_empty() {
        return Err(QueryError::invalid("name is missing; it says which label's values are asked for"));
    }
    let bounds = bounds(request.start, request.end)?;
    let values = each_matching(store, &request.matchers, bounds, |values: &mut BTreeSet<_>, mut labels| {
        let value = labels.remove(&request.name).filter(|value| !value.is_empty());
        let bytes = value.as_ref().map_or(0, |value| value.len() + BESIDE);
        if value.is_some_and(|value| values.insert(value)) { bytes } else { 0 }
    })?;
    Ok(NamesResponse { names: values.into_iter().collect() })
}

/// `Series`.
pub(super) fn series(store: &Store, request: &SeriesRequest, dots: bool) -> Result<SeriesResponse, QueryError> {
    if request.label_names.len() > MOST_NAMES {
        return Err(QueryError::invalid(format!("labelNames has more than {MOST_NAMES} names")));
    }
    let wanted: HashSet<&str> = request.label_names.iter().map(String::as_str).collect();
    let bounds = bounds(request.start, request.end)?;
    let sets = each_matching(store, &request.matchers, bounds, |sets: &mut BTreeSet<_>, labels| {
        let asked = |name: &String| {
            if wanted.is_empty() { dots || is_plain(name) } else { wanted.contains(name.as_str()) }
        };
        let labels: Vec<LabelPair> =
            labels.into_iter().filter(|(name, _)| asked(name)).map(|(name, value)| LabelPair { name, value }).collect();
        let bytes = labels.iter().map(|pair| pair.name.len() + pair.value.len() + 2 * BESIDE).sum();
        if !labels.is_empty() && sets.insert(Labels { labels }) { bytes } else { 0 }
    })?;
    Ok(SeriesResponse { labels_set: sets.into_iter().collect() })
}

/// `GetProfileStats`.
pub(super) fn stats(store: &Store) -> Result<GetProfileStatsResponse, QueryError> {
    let times = store.profile_times()?;
    let (oldest, newest) = times.unwrap_or((0, 0));
    Ok(GetProfileStatsResponse {
        data_ingested: times.is_some(),
        oldest_profile_time: oldest / MILLISECOND,
        newest_profile_time: newest / MILLISECOND,
    })
}

/// First and last nanosecond of a time range in milliseconds. Without one nothing is answered, as in Pyroscope 2.
pub(super) fn bounds(start: i64, end: i64) -> Result<(i64, i64), QueryError> {
    if start == 0 || end == 0 {
        return Err(QueryError::invalid("missing time range in the query: start and end are milliseconds since 1970"));
    }
    if start > end {
        return Err(QueryError::invalid(format!("start {start} is after end {end}")));
    }
    Ok((start.saturating_mul(MILLISECOND), end.saturating_mul(MILLISECOND).saturating_add(MILLISECOND - 1)))
}

/// The series of a profile type that a selector selects, each with what `take` makes of its labels.
pub(super) fn selected_series<T>(
    store: &Store,
    profile_type: &str,
    selector: &Selector,
    bounds: (i64, i64),
    mut take: impl FnMut(BTreeMap<String, String>) -> (T, usize),
) -> Result<Vec<(i64, T)>, QueryError> {
    each(store, bounds, |found: &mut Vec<_>, series| {
        if series.profile_type != profile_type {
            return 0;
        }
        let (id, labels) = with_pseudo_labels(series);
        if !selector.selects(&labels) {
            return 0;
        }
        let (taken, bytes) = take(labels);
        found.push((id, taken));
        bytes + BESIDE
    })
}

/// Checks that a profile type has its five parts; a sixth, as older clients add it, is cut.
pub(super) fn checked_profile_type(text: &str) -> Result<&str, QueryError> {
    let text = text.strip_suffix(":delta").unwrap_or(text);
    match profile_type(text) {
        Some(_) => Ok(text),
        None => Err(QueryError::invalid(format!(
            "profile type {text:?}: allowed is <name>:<sample type>:<sample unit>:<period type>:<period unit>"
        ))),
    }
}

fn profile_type(text: &str) -> Option<ProfileType> {
    let [name, sample_type, sample_unit, period_type, period_unit] =
        text.split(':').map(str::to_owned).collect::<Vec<_>>().try_into().ok()?;
    Some(ProfileType { id: text.into(), name, sample_type, sample_unit, period_type, period_unit })
}

/// Looks at the labels of the series that any of the selectors selects, or of all if there is none.
fn each_matching<S: Default>(
    store: &Store,
    matchers: &[String],
    bounds: (i64, i64),
    mut visit: impl FnMut(&mut S, BTreeMap<String, String>) -> usize,
) -> Result<S, QueryError> {
    let selectors = Selector::parse_all(matchers).map_err(QueryError::invalid)?;
    each(store, bounds, |found, series| {
        let (_, labels) = with_pseudo_labels(series);
        let is_selected = selectors.is_empty() || selectors.iter().any(|one| one.selects(&labels));
        if is_selected { visit(found, labels) } else { 0 }
    })
}

/// Goes through all series as long as there is room for the bytes that `visit` keeps of them.
fn each<S: Default>(
    store: &Store,
    bounds: (i64, i64),
    mut visit: impl FnMut(&mut S, StoredSeries) -> usize,
) -> Result<S, QueryError> {
    let most = store.limits().answer();
    let (found, left) = store.each_series(
        bounds,
        || (S::default(), Some(most)),
        |(found, left), series| {
            // The answer is a copy.
            let kept = visit(found, series).saturating_mul(2);
            *left = left.and_then(|left| left.checked_sub(kept));
            left.is_some()
        },
    )?;
    match left {
        Some(_) => Ok(found),
        None => Err(too_large(most)),
    }
}

/// Refuses an answer that there is no room for.
pub(super) fn too_large(most: usize) -> QueryError {
    QueryError::invalid(format!("the answer would take more than {most} bytes; ask for less time, or name a service"))
}

/// Adds the labels that no one sent and that can be asked for.
fn with_pseudo_labels(series: StoredSeries) -> Labelled {
    let mut labels = series.labels;
    if let Some(parts) = profile_type(&series.profile_type) {
        labels.insert("__type__".into(), parts.sample_type);
        labels.insert("__unit__".into(), parts.sample_unit);
        labels.insert("__period_type__".into(), parts.period_type);
        labels.insert("__period_unit__".into(), parts.period_unit);
    }
    let service = labels.get("service_name").cloned().unwrap_or_default();
    labels.insert("__service_name__".into(), service);
    labels.insert("__profile_type__".into(), series.profile_type);
    (series.id, labels)
}

/// Whether older clients read the name.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
