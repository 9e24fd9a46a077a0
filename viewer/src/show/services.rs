//! The services, and what was refused.

use serde::Serialize;

use super::error::ShowError;
use super::shown::Shown;
use crate::clock::{MILLISECOND, SECOND};
use crate::http::refusal::RefusalCount;
use crate::selection::TimeRange;
use crate::store::{Forgotten, Sampling, SeenProfileType};

/// Profilers of this kind send a profile at least this often, so it ends at most this long after it starts.
const LONGEST_PROFILE: i64 = 15 * SECOND;
/// Rates over a shorter time say nothing.
const SHORTEST_TIME: i64 = SECOND;

/// All services in a time range.
#[derive(Debug, Serialize)]
pub(crate) struct Services {
    /// Most CPU first.
    pub(crate) services: Vec<ServiceRow>,
    /// What was not taken since the start.
    pub(crate) refused: Vec<RefusalCount>,
    /// What was forgotten since the start.
    pub(crate) forgotten: Forgotten,
    /// How much the stored rows take.
    pub(crate) stored_bytes: u64,
    /// How much those of other tenants take.
    pub(crate) others_bytes: u64,
    /// How much all may take together.
    pub(crate) most_bytes: u64,
}

/// A service.
#[derive(Debug, Serialize)]
pub(crate) struct ServiceRow {
    /// Its name: service_name of profiles, service.name of traces.
    pub(crate) service: String,
    /// Its CPU.
    pub(crate) cpu_ns: i64,
    /// Its CPU in spans.
    pub(crate) cpu_in_spans_ns: i64,
    /// CPU for each second that it was heard of.
    pub(crate) cpu_cores: f64,
    /// Its samples of CPU.
    pub(crate) samples: i64,
    /// Its spans.
    pub(crate) spans: i64,
    /// Its spans for each second that it was heard of.
    pub(crate) spans_per_second: f64,
    /// From the first to the last that was heard of it.
    pub(crate) heard_ns: i64,
    /// Its profiles.
    pub(crate) profiles: i64,
    /// The profile types of them.
    pub(crate) profile_types: Vec<SeenProfileType>,
    /// When the last profile came, if any did.
    pub(crate) last_upload_unix_ms: Option<i64>,
    /// Which spans its samples are labelled with.
    pub(crate) sampled_by: Sampling,
    /// What of it was not taken since the start; [`Services::refused`] says why.
    pub(crate) refused: u64,
}

impl Shown {
    /// All services that sent anything in the time range.
    pub(crate) fn services(&self, time_range: TimeRange) -> Result<Services, ShowError> {
        let mut services = Vec::new();
        let refused = self.refusals.counts();
        let profile_types = self.store.profile_types(time_range)?;
        for sum in self.store.services(time_range, LONGEST_PROFILE)? {
            let heard_ns = sum.heard.map_or(0, |(first, last)| last.saturating_sub(first));
            let per_second = |count: i64| count as f64 * SECOND as f64 / heard_ns.max(SHORTEST_TIME) as f64;
            let of_it = refused.iter().filter(|count| count.service.as_ref() == Some(&sum.service));
            services.push(ServiceRow {
                refused: of_it.map(|count| count.count).sum(),
                sampled_by: self.store.sampling(&sum.service)?,
                cpu_ns: sum.cpu,
                cpu_in_spans_ns: sum.cpu_in_spans,
                cpu_cores: per_second(sum.cpu) / SECOND as f64,
                samples: sum.samples,
                spans: sum.spans,
                spans_per_second: per_second(sum.spans),
                heard_ns,
                profiles: sum.profiles,
                profile_types: profile_types.iter().filter(|seen| seen.service == sum.service).cloned().collect(),
                service: sum.service,
                last_upload_unix_ms: sum.last_received.map(|received| received / MILLISECOND),
            });
        }
        let (limits, stored_bytes) = (self.store.limits(), self.store.bytes());
        Ok(Services {
            services,
            refused,
            forgotten: self.store.forgotten(),
            stored_bytes,
            others_bytes: limits.used().saturating_sub(stored_bytes),
            most_bytes: limits.most(),
        })
    }
}
