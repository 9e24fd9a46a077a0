//! The span names of a service: how many, how long, what they burnt.

use std::collections::HashMap;

use serde::Serialize;

use super::error::ShowError;
use super::estimate::{percentile, share};
use super::shown::Shown;
use crate::receive::profilers::ProfilerState;
use crate::selection::{CPU, Selection, Side};
use crate::store::{NameSum, Owner, Sampling, SeenProfileType};

/// The span names of a service.
#[derive(Debug, Serialize)]
pub(crate) struct SpanNames {
    /// The service.
    pub(crate) service: String,
    /// The profile types that it sends.
    pub(crate) profile_types: Vec<SeenProfileType>,
    /// What was asked for beside CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<Beside>,
    /// Most CPU first.
    pub(crate) spans: Vec<SpanName>,
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
        let profile_types: Vec<SeenProfileType> = self
            .store
            .profile_types(selection.time_range)?
            .into_iter()
            .filter(|seen| seen.service == service)
            .collect();
        let mut beside = self.beside(&selection, &profile_types)?;
        let selection = selection.profile_type(CPU);
        let sampled_by = self.store.sampling(service)?;
        let mut hottest = self.store.hottest_by_name(&selection)?;
        let mut outside = Outside::default();
        let mut burnt: HashMap<String, Burnt> = HashMap::new();
        for NameSum { owner, cpu, samples } in self.store.cpu_by_name(&selection)? {
            let hottest = hottest.remove(&owner).map(|(function, own_ns)| Hottest {
                function: function.name.to_string(),
                file: function.file.to_string(),
                own_ns,
                share: share(own_ns, cpu),
            });
            match owner {
                Owner::Outside => outside = Outside { cpu_ns: cpu, samples },
                Owner::Name(name) => {
                    burnt.insert(name, Burnt { cpu, samples, hottest });
                }
            }
        }
        let mut spans = Vec::new();
        // Spans have no side; what is outside of them has no wall time.
        let walls = if selection.side == Side::Outside { Vec::new() } else { self.store.walls_by_name(&selection)? };
        for walls in walls {
            let found = burnt.remove(&walls.name);
            // A name that no sample can be labelled with has an unknown CPU, and not none.
            let labelled = match sampled_by {
                Sampling::Span => true,
                Sampling::Root => walls.entries,
                Sampling::None => false,
            };
            spans.push(SpanName {
                count: i64::try_from(walls.walls.len()).unwrap_or(i64::MAX),
                errors: walls.errors,
                wall_p50_ns: percentile(&walls.walls, 50),
                wall_p95_ns: percentile(&walls.walls, 95),
                wall_p99_ns: percentile(&walls.walls, 99),
                wall_total_ns: Some(walls.walls.iter().fold(0, |sum: i64, wall| sum.saturating_add(*wall))),
                cpu_ns: found.as_ref().map(|burnt| burnt.cpu).or(labelled.then_some(0)),
                samples: found.as_ref().map_or(0, |burnt| burnt.samples),
                beside: beside.as_ref().map(|(_, values)| values.get(&walls.name).copied().unwrap_or(0)),
                sampled_by,
                hottest: found.and_then(|burnt| burnt.hottest),
                name: walls.name,
            });
        }
        // The rest is known from profiles only.
        spans.extend(burnt.into_iter().map(|(name, burnt)| SpanName {
            beside: beside.as_ref().map(|(_, values)| values.get(&name).copied().unwrap_or(0)),
            name,
            count: 0,
            errors: 0,
            wall_p50_ns: None,
            wall_p95_ns: None,
            wall_p99_ns: None,
            wall_total_ns: None,
            cpu_ns: Some(burnt.cpu),
            samples: burnt.samples,
            sampled_by,
            hottest: burnt.hottest,
        }));
        spans.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| a.name.cmp(&b.name)));
        let beside = beside.take().map(|(beside, _)| beside);
        Ok(SpanNames {
            service: service.into(),
            profile_types,
            beside,
            spans,
            outside,
            sampled_by,
            profilers: self.profilers.of(service),
        })
    }

    /// What the spans of each name hold of the selection's profile type, if that is another than CPU.
    fn beside(&self, selection: &Selection, known: &[SeenProfileType]) -> Result<Option<BesideByName>, ShowError> {
        if selection.profile_type == CPU {
            return Ok(None);
        }
        let seen = known.iter().find(|seen| seen.asked == selection.profile_type);
        // All five parts say it themselves, also where the name alone means the same.
        let part = |index| selection.profile_type.split(':').nth(index).filter(|part| !part.is_empty());
        let word = seen.map(|seen| seen.word.as_str()).or(part(1)).unwrap_or(&selection.profile_type);
        let unit = seen.map(|seen| seen.unit.as_str()).or(part(2)).unwrap_or("");
        let mut beside = Beside {
            profile_type: selection.profile_type.clone(),
            word: word.to_owned(),
            unit: unit.to_owned(),
            outside: 0,
        };
        let mut values = HashMap::new();
        for sum in self.store.cpu_by_name(selection)? {
            match sum.owner {
                Owner::Outside => beside.outside = sum.cpu,
                Owner::Name(name) => {
                    values.insert(name, sum.cpu);
                }
            }
        }
        Ok(Some((beside, values)))
    }
}

/// A profile type beside CPU, and its value by span name.
type BesideByName = (Beside, HashMap<String, i64>);

/// What the spans of a name burnt.
struct Burnt {
    cpu: i64,
    samples: i64,
    hottest: Option<Hottest>,
}
