//! The span names of a service: how many, how long, what they burnt.

use serde::Serialize;

use super::error::ShowError;
use super::estimate::{percentile, share};
use super::row_bytes::{ROW, in_html, twice};
use super::services::is_none;
use super::shown::Shown;
use crate::params::encode;
use crate::receive::profilers::ProfilerState;
use crate::selection::{CPU, Selection};
use crate::store::{Function, NameSum, Named, REST, Sampling, SeenProfileType};

/// The span names of a service.
#[derive(Debug, Serialize)]
pub(crate) struct SpanNames {
    /// The service.
    pub(crate) service: String,
    /// The profile types that it sends.
    pub(crate) profile_types: Vec<SeenProfileType>,
    /// How many others there are.
    #[serde(skip_serializing_if = "is_none")]
    pub(crate) more_profile_types: usize,
    /// What was asked for beside CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<Beside>,
    /// Most CPU first.
    pub(crate) spans: Vec<SpanName>,
    /// The smallest together, where not all have room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rest: Option<SpanName>,
    /// What was burnt outside of spans.
    pub(crate) outside: Outside,
    /// Which spans the service's samples are labelled with.
    pub(crate) sampled_by: Sampling,
    /// What its profilers say of themselves.
    pub(crate) profilers: Vec<ProfilerState>,
}

/// A profile type that is shown beside CPU.
#[derive(Debug, Serialize)]
pub(crate) struct Beside {
    /// As it was asked for.
    #[serde(rename = "type")]
    pub(crate) profile_type: String,
    /// What people call it.
    pub(crate) word: String,
    /// Unit of its values.
    pub(crate) unit: String,
    /// Its value outside of spans.
    pub(crate) outside: i64,
}

/// What was burnt outside of spans.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Outside {
    /// CPU.
    pub(crate) cpu_ns: i64,
    /// Samples of CPU.
    pub(crate) samples: i64,
}

/// The spans of one name.
#[derive(Debug, Serialize)]
pub(crate) struct SpanName {
    /// The name.
    pub(crate) name: String,
    /// How many were received; 0 if the name is only known from profiles.
    pub(crate) count: i64,
    /// How many of them ended with an error.
    pub(crate) errors: i64,
    /// Half took at most this long.
    pub(crate) wall_p50_ns: Option<i64>,
    /// 95 of 100 took at most this long.
    pub(crate) wall_p95_ns: Option<i64>,
    /// 99 of 100 took at most this long.
    pub(crate) wall_p99_ns: Option<i64>,
    /// How long they took together.
    pub(crate) wall_total_ns: Option<i64>,
    /// CPU of the samples that are labelled with one of them; none if they are never labelled.
    pub(crate) cpu_ns: Option<i64>,
    /// Those samples.
    pub(crate) samples: i64,
    /// Their value of the profile type that was asked for beside CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<i64>,
    /// Which spans the service's samples are labelled with.
    pub(crate) sampled_by: Sampling,
    /// The function with the most own CPU.
    pub(crate) hottest: Option<Hottest>,
}

/// The function with the most own CPU.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hottest {
    /// Its name.
    pub(crate) function: String,
    /// Its file.
    pub(crate) file: String,
    /// Its own CPU.
    pub(crate) own_ns: i64,
    /// Of the CPU of the spans.
    pub(crate) share: f64,
}

impl SpanName {
    /// CPU of one span.
    pub(crate) fn cpu_per_span(&self) -> Option<i64> {
        self.cpu_ns.filter(|_| self.count > 0).map(|cpu| cpu / self.count)
    }

    /// CPU for each second of wall time.
    pub(crate) fn cpu_per_wall(&self) -> Option<f64> {
        self.wall_total_ns.filter(|wall| *wall > 0).and_then(|wall| self.cpu_ns.map(|cpu| share(cpu, wall)))
    }
}

impl Shown {
    /// The span names of a service, of the spans that the selection chooses.
    pub(crate) fn span_names(&self, service: &str, asked: &Selection) -> Result<SpanNames, ShowError> {
        let selection = self.resolve(&asked.clone().service(service))?;
        let profile_types = self.store.profile_types(Some(service), selection.time_range)?;
        let mut beside = beside(&selection, &profile_types.types);
        let of_beside = beside.is_some().then(|| selection.clone());
        let selection = selection.profile_type(CPU);
        let sampled_by = self.store.sampling(service)?;
        let links = 2 * selection.link("traces").len();
        let sums = self
            .store
            .span_names(&selection, of_beside.as_ref(), |name, function| row_bytes(name, function) + 2 * links)?;
        if let Some(beside) = &mut beside {
            beside.outside = sums.outside.beside;
        }
        let has_beside = beside.is_some();
        let row = |Named { name, sum, hottest }| span_name(name, &sum, hottest, (sampled_by, has_beside));
        let mut spans: Vec<SpanName> = sums.names.into_iter().map(row).collect();
        spans.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| a.name.cmp(&b.name)));
        let rest = sums.rest.map(|sum| row(Named { name: REST.into(), sum, hottest: None }));
        let (cpu_ns, samples) = sums.outside.cpu.unwrap_or_default();
        Ok(SpanNames {
            service: service.into(),
            profile_types: profile_types.types,
            more_profile_types: profile_types.more,
            beside,
            spans,
            rest,
            outside: Outside { cpu_ns, samples },
            sampled_by,
            profilers: self.profilers.of(service),
        })
    }
}

/// The selection's profile type, if that is another than CPU.
fn beside(selection: &Selection, known: &[SeenProfileType]) -> Option<Beside> {
    if selection.profile_type == CPU {
        return None;
    }
    let seen = known.iter().find(|seen| seen.asked == selection.profile_type);
    // All five parts say it themselves, also where the name alone means the same.
    let part = |index| selection.profile_type.split(':').nth(index).filter(|part| !part.is_empty());
    let word = seen.map(|seen| seen.word.as_str()).or(part(1)).unwrap_or(&selection.profile_type);
    let unit = seen.map(|seen| seen.unit.as_str()).or(part(2)).unwrap_or("");
    Some(Beside { profile_type: selection.profile_type.clone(), word: word.into(), unit: unit.into(), outside: 0 })
}

/// The spans of a name, of a service that labels such spans.
fn span_name(
    name: String,
    sum: &NameSum,
    hottest: Option<(Function, i64)>,
    (sampled_by, has_beside): (Sampling, bool),
) -> SpanName {
    // A name that no sample can be labelled with has an unknown CPU, and not none.
    let labelled = match sampled_by {
        Sampling::Span => true,
        Sampling::Root => sum.entries,
        Sampling::None => false,
    };
    let cpu_ns = sum.cpu.map(|(cpu, _)| cpu);
    let wall_total = sum.walls.iter().fold(0, |sum: i64, wall| sum.saturating_add(*wall));
    SpanName {
        name,
        count: i64::try_from(sum.walls.len()).unwrap_or(i64::MAX),
        errors: sum.errors,
        wall_p50_ns: percentile(&sum.walls, 50),
        wall_p95_ns: percentile(&sum.walls, 95),
        wall_p99_ns: percentile(&sum.walls, 99),
        wall_total_ns: (!sum.walls.is_empty()).then_some(wall_total),
        cpu_ns: cpu_ns.or(labelled.then_some(0)),
        samples: sum.cpu.map_or(0, |(_, samples)| samples),
        beside: has_beside.then_some(sum.beside),
        sampled_by,
        hottest: hottest.map(|(function, own_ns)| Hottest {
            function: function.name.to_string(),
            file: function.file.to_string(),
            own_ns,
            share: share(own_ns, cpu_ns.unwrap_or(0)),
        }),
    }
}

/// Bytes that a row takes while its page is made: beside itself its name as text, as a title and in two links, and its
/// function as text and as a title.
fn row_bytes(name: &str, function: Option<&Function>) -> usize {
    let of_function = function.map_or(0, |function| 2 * in_html(&function.name) + in_html(&function.file));
    ROW + name.len() + twice(2 * in_html(name) + 2 * encode(name).len() + of_function)
}
