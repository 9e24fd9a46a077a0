//! The services, and what was refused.

use std::collections::HashMap;

use serde::Serialize;

use super::error::ShowError;
use super::row_bytes::{ROW, in_html, twice};
use super::shown::Shown;
use crate::clock::{MILLISECOND, SECOND};
use crate::http::refusal::{PROFILES, RefusalCount};
use crate::params::encode;
use crate::selection::TimeRange;
use crate::sender::Sender;
use crate::store::{Forgotten, REST, Sampling, SeenProfileType, Service};

/// Bytes of a profile type in a row, beside what anyone named.
const TYPE: usize = 512;

/// Profilers of this kind send a profile at least this often, so it ends at most this long after it starts.
const LONGEST_PROFILE: i64 = 15 * SECOND;
/// Rates over a shorter time say nothing.
const SHORTEST_TIME: i64 = SECOND;

/// All services in a time range.
#[derive(Debug, Serialize)]
pub(crate) struct Services {
    /// Most CPU first, and the doctor's last.
    pub(crate) services: Vec<ServiceRow>,
    /// The smallest together, where not all have room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rest: Option<ServiceRow>,
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
    /// How many others there are.
    #[serde(skip_serializing_if = "is_none")]
    pub(crate) more_profile_types: usize,
    /// When the last profile came, if any did.
    pub(crate) last_upload_unix_ms: Option<i64>,
    /// Which spans its samples are labelled with.
    pub(crate) sampled_by: Sampling,
    /// What of it was not taken since the start; [`Services::refused`] says why.
    pub(crate) refused: u64,
    /// How many of those were profiles.
    #[serde(skip)]
    pub(crate) refused_profiles: u64,
    /// What it is sent with, as far as it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sender: Option<Sender>,
}

impl Shown {
    /// All services that sent anything in the time range.
    pub(crate) fn services(&self, time_range: TimeRange) -> Result<Services, ShowError> {
        let refused = self.refusals.counts();
        let mut refused_of: HashMap<&str, (u64, u64)> = HashMap::new();
        for count in &refused {
            let (all, profiles) = refused_of.entry(count.service.as_deref().unwrap_or_default()).or_default();
            *all += count.count;
            *profiles += if count.what == PROFILES { count.count } else { 0 };
        }
        let sums = self.store.services(time_range, LONGEST_PROFILE, row_bytes)?;
        let row = |service: Service| {
            let refused = refused_of.get(service.name.as_str()).copied().unwrap_or_default();
            let sender = self.profilers.sender(&service.name);
            service_row(service, refused, sender)
        };
        let services = sums.services.into_iter().map(row).collect();
        let rest = sums.rest.map(|sum| {
            let (profile_types, sampled_by) = Default::default();
            service_row(Service { name: REST.into(), sum, profile_types, sampled_by }, (0, 0), None)
        });
        let (limits, stored_bytes) = (self.store.limits(), self.store.bytes());
        Ok(Services {
            services,
            rest,
            refused,
            forgotten: self.store.forgotten(),
            stored_bytes,
            others_bytes: limits.used().saturating_sub(stored_bytes),
            most_bytes: limits.most(),
        })
    }
}

fn service_row(service: Service, (refused, refused_profiles): (u64, u64), sender: Option<Sender>) -> ServiceRow {
    let Service { name, sum, profile_types, sampled_by } = service;
    let heard_ns = sum.heard.map_or(0, |(first, last)| last.saturating_sub(first));
    let per_second = |count: i64| count as f64 * SECOND as f64 / heard_ns.max(SHORTEST_TIME) as f64;
    ServiceRow {
        refused,
        refused_profiles,
        sender,
        sampled_by,
        cpu_ns: sum.cpu,
        cpu_in_spans_ns: sum.cpu_in_spans,
        cpu_cores: per_second(sum.cpu) / SECOND as f64,
        samples: sum.samples,
        spans: sum.spans,
        spans_per_second: per_second(sum.spans),
        heard_ns,
        profiles: sum.profiles,
        profile_types: profile_types.types,
        more_profile_types: profile_types.more,
        service: name,
        last_upload_unix_ms: sum.last_received.map(|received| received / MILLISECOND),
    }
}

/// Bytes that a row takes while its page is made, with a link to each of its profile types.
fn row_bytes(name: &str, profile_types: &[SeenProfileType]) -> usize {
    let link = encode(name).len();
    let of_types = profile_types.iter().map(|seen| {
        let texts = seen.asked.len() + seen.word.len() + seen.unit.len();
        TYPE + texts + twice(link + encode(&seen.asked).len() + in_html(&seen.asked) + in_html(&seen.word))
    });
    ROW + name.len() + twice(link + in_html(name)) + of_types.sum::<usize>()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub(super) fn is_none(count: &usize) -> bool {
    *count == 0
}
