//! Why a service has no sample of what was asked for, where that is known.

use serde::Serialize;

use super::error::ShowError;
use super::shown::Shown;
use crate::format::{MOST_OF_A_NAME, short};
use crate::selection::{CPU, Selection, TimeRange, WALL};
use crate::sender::Sender;
use crate::store::{Sampling, SeenProfileType, SeenProfileTypes};

/// Why a selection of a service has no sample: by all that is stored, whatever its time range is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Absence {
    /// What is not there.
    pub(crate) reason: Reason,
    /// The same in words.
    pub(crate) sentence: String,
    /// Another profile type that has samples of the spans.
    #[serde(skip)]
    pub(crate) instead: Option<SeenProfileType>,
    /// It is of all time that there is no profile.
    #[serde(skip)]
    pub(crate) measures_no_waits: bool,
    /// What the service is sent with, as far as it says so.
    #[serde(skip)]
    pub(crate) sender: Option<Sender>,
}

/// What is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// Anything of the service.
    NoService,
    /// Profiles of it: those that came could not be taken.
    Refused,
    /// Profiles of it: traces alone come.
    NoProfiles,
    /// A span of that name.
    NoSpan,
    /// Profiles of that type.
    NoType,
    /// Samples of that type of spans of that name: others have some.
    OtherType,
    /// Samples of child spans, of the whole service: it may label root spans alone.
    ChildSpan,
}

impl Shown {
    /// Why a selection has no sample; none where it does not say a service, says a single span or trace, or is of what is there.
    pub(crate) fn absence(&self, selection: &Selection) -> Result<Option<Absence>, ShowError> {
        let Some(service) = selection.service.as_deref() else { return Ok(None) };
        if selection.span.is_some() || selection.trace.is_some() {
            return Ok(None);
        }
        let name = selection.name.as_deref();
        let known = self.store.presence(service, &selection.profile_type, name)?;
        let of_name = known.name.unwrap_or_default();
        let is_refused = !known.profiles && self.refusals.profiles_of(service) > 0;
        let is_child = of_name.traces && !of_name.entry && !of_name.samples;
        let reason = match name {
            _ if is_refused => Reason::Refused,
            _ if !known.profiles && !known.traces => Reason::NoService,
            Some(_) if !of_name.samples && !of_name.traces => Reason::NoSpan,
            _ if !known.profiles => Reason::NoProfiles,
            _ if !known.profile_type => Reason::NoType,
            Some(name) if of_name.samples && !self.store.has_samples_of(service, &selection.profile_type, name)? => {
                Reason::OtherType
            }
            // Of other types samples may be of no span at all.
            Some(_)
                if is_child
                    && (selection.profile_type == CPU || selection.is_wall())
                    && self.store.sampling(service)? == Sampling::Root =>
            {
                Reason::ChildSpan
            }
            _ => return Ok(None),
        };
        let others = match (reason, name) {
            (Reason::OtherType, Some(name)) => self.types_of(service, name)?,
            _ => SeenProfileTypes::default(),
        };
        // One beyond those that are listed.
        if reason == Reason::OtherType && others.types.is_empty() {
            return Ok(None);
        }
        let sender = self.profilers.sender(service);
        let [service, name] = [service, name.unwrap_or_default()].map(|name| short(name, MOST_OF_A_NAME));
        let mut measures_no_waits = false;
        let sentence = match reason {
            Reason::NoService => format!("Nothing is stored of a service {service:?}."),
            Reason::Refused => {
                format!("No profile of {service} is stored, and some were refused; the page of services says why.")
            }
            Reason::NoProfiles => format!("{service} sends traces, and no profiles come under this name."),
            Reason::NoSpan => format!("No span of {service} is named {name:?}."),
            Reason::NoType => {
                let sent = self.store.profile_types(selection.service.as_deref(), TimeRange::Stored)?;
                let has_wall =
                    sent.more > 0 || sent.types.iter().any(|seen| seen.asked.split(':').next() == Some(WALL));
                measures_no_waits = selection.is_wall() && !has_wall;
                let how =
                    if measures_no_waits { how_waits_are_measured(sender).replace('`', "") } else { String::new() };
                let asked = short(&selection.profile_type, MOST_OF_A_NAME);
                format!("{service} sends {}, and no {asked}. {how}", sent.named()).trim_end().to_owned()
            }
            Reason::OtherType => {
                let asked = short(&selection.profile_type, MOST_OF_A_NAME);
                format!("Spans of {service} named {name:?} have samples of {}, and none of {asked}.", others.named())
            }
            Reason::ChildSpan => format!(
                "No sample of {service} so far is of a child span such as {name:?}: if its profiler labels root spans alone (scope root), what that did is counted in the span that entered the service."
            ),
        };
        let instead = others.types.into_iter().next();
        Ok(Some(Absence { reason, sentence, instead, measures_no_waits, sender }))
    }

    /// The profile types of a service that have samples of spans of a name.
    fn types_of(&self, service: &str, name: &str) -> Result<SeenProfileTypes, ShowError> {
        let mut found = SeenProfileTypes::default();
        for seen in self.store.profile_types(Some(service), TimeRange::Stored)?.types {
            if self.store.has_samples_of(service, &seen.asked, name)? {
                found.types.push(seen);
            }
        }
        Ok(found)
    }
}

/// How what spans wait for is measured, where the sender can: a sentence, with code between backticks.
pub(crate) fn how_waits_are_measured(sender: Option<Sender>) -> String {
    use crate::sender::Language::{Dotnet, Python, Ruby};
    let setting = match sender {
        Some(Sender::Ours(Some(Python))) => Some("`wall_time=True` in `pyroscope.configure`"),
        Some(Sender::Ours(Some(Ruby))) => Some("`config.wall_time = true` in `Pyroscope.configure`"),
        Some(Sender::Ours(Some(Dotnet))) => {
            Some("`WallTimeProfilingEnabled = true` in the settings of `AddPyroscope` or `Configure`")
        }
        Some(Sender::Ours(None)) | None => None,
        Some(Sender::DotnetOfGrafana) => {
            return "`PYROSCOPE_PROFILING_WALLTIME_ENABLED=true` samples wall time too.".into();
        }
        Some(Sender::Java) => return "`PYROSCOPE_PROFILER_EVENT=wall` samples wall time in place of CPU time.".into(),
        Some(Sender::Native) => {
            return "The eBPF profiler's `-off-cpu-threshold` samples waits, as the profile type `off_cpu`.".into();
        }
        Some(Sender::Otlp) => return "This service's profiler sends no wall time.".into(),
        Some(Sender::Go | Sender::Node) => return "This service's profiler cannot tell.".into(),
    };
    let (start, end) = setting.map_or_else(Default::default, |setting| (format!("{setting}, or "), ","));
    format!(
        "{start}`PYROSCOPE_PROFILING_WALLTIME_ENABLED=true` in the service's environment{end} shows where the time of its spans goes."
    )
}
