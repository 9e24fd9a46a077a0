//! The span names of a service: how many, how long, what they burnt.

use std::collections::HashMap;

use serde::Serialize;

use super::{ShowError, Shown, share};
use crate::selection::{Selection, Window};
use crate::store::{NameSum, Owner, Sampling};

/// The span names of a service.
#[derive(Debug, Serialize)]
pub(crate) struct SpanNames {
    /// The service.
    pub(crate) service: String,
    /// Most CPU first.
    pub(crate) spans: Vec<SpanName>,
    /// What was burnt outside of spans.
    pub(crate) outside: Outside,
    /// Which spans the service's samples are labelled with.
    pub(crate) sampled_by: Sampling,
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
    /// How long they took together.
    pub(crate) wall_total_ns: Option<i64>,
    /// CPU of the samples that are labelled with one of them; none if they are never labelled.
    pub(crate) cpu_ns: Option<i64>,
    /// Those samples.
    pub(crate) samples: i64,
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
    /// The span names of a service in the window.
    pub(crate) fn span_names(&self, service: &str, window: Window) -> Result<SpanNames, ShowError> {
        let selection = Selection::everything().service(service).window(window);
        let sampled_by = self.store.sampling(service)?;
        let mut hottest = self.store.hottest_by_name(&selection)?;
        let mut outside = Outside::default();
        let mut burnt: HashMap<String, Burnt> = HashMap::new();
        for NameSum { owner, cpu, samples } in self.store.cpu_by_name(&selection)? {
            let hottest = hottest.remove(&owner).map(|(function, own_ns)| Hottest {
                function: function.name,
                file: function.file,
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
        for walls in self.store.walls_by_name(service, window)? {
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
                wall_total_ns: Some(walls.walls.iter().sum()),
                cpu_ns: found.as_ref().map(|burnt| burnt.cpu).or(labelled.then_some(0)),
                samples: found.as_ref().map_or(0, |burnt| burnt.samples),
                sampled_by,
                hottest: found.and_then(|burnt| burnt.hottest),
                name: walls.name,
            });
        }
        // The rest is known from profiles only.
        spans.extend(burnt.into_iter().map(|(name, burnt)| SpanName {
            name,
            count: 0,
            errors: 0,
            wall_p50_ns: None,
            wall_p95_ns: None,
            wall_total_ns: None,
            cpu_ns: Some(burnt.cpu),
            samples: burnt.samples,
            sampled_by,
            hottest: burnt.hottest,
        }));
        spans.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| a.name.cmp(&b.name)));
        Ok(SpanNames { service: service.into(), spans, outside, sampled_by })
    }
}

/// What the spans of a name burnt.
struct Burnt {
    cpu: i64,
    samples: i64,
    hottest: Option<Hottest>,
}

/// The smallest value that `percent` of 100 do not exceed.
fn percentile(sorted: &[i64], percent: usize) -> Option<i64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let walls: Vec<i64> = (1..=20).collect();
        assert_eq!((percentile(&walls, 50), percentile(&walls, 95)), (Some(10), Some(19)));
        assert_eq!((percentile(&[7], 50), percentile(&[7], 95), percentile(&[], 50)), (Some(7), Some(7), None));
    }
}
