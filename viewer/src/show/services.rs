//! The services, and what was refused.

use serde::Serialize;

use super::{ShowError, Shown};
use crate::clock::MILLISECOND;
use crate::receive::RefusalCount;
use crate::selection::Window;
use crate::store::{Forgotten, Sampling};

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
    /// Its samples of CPU.
    pub(crate) samples: i64,
    /// Its spans.
    pub(crate) spans: i64,
    /// Its profiles.
    pub(crate) profiles: i64,
    /// When the last profile came, if any did.
    pub(crate) last_upload_unix_ms: Option<i64>,
    /// Which spans its samples are labelled with.
    pub(crate) sampled_by: Sampling,
}

impl Shown {
    /// All services that sent anything in the window.
    pub(crate) fn services(&self, window: Window) -> Result<Services, ShowError> {
        let mut services = Vec::new();
        for sum in self.store.services(window)? {
            services.push(ServiceRow {
                sampled_by: self.store.sampling(&sum.service)?,
                service: sum.service,
                cpu_ns: sum.cpu,
                cpu_in_spans_ns: sum.cpu_in_spans,
                samples: sum.samples,
                spans: sum.spans,
                profiles: sum.profiles,
                last_upload_unix_ms: sum.last_received.map(|received| received / MILLISECOND),
            });
        }
        Ok(Services {
            services,
            refused: self.refusals.counts(),
            forgotten: self.store.forgotten(),
            stored_bytes: self.store.bytes()?,
        })
    }
}
