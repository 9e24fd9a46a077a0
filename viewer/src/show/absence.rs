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
    /// Samples of CPU or of all time that carry a span, of the whole service.
    Unlabelled,
}

/// That no sample of a service carries a span; [`how_samples_are_labelled`] says what to do.
pub(crate) const UNLABELLED: &str = "No sample carries a span.";

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
        // Of other types samples may be of no span at all.
        let is_of_spans = selection.profile_type == CPU || selection.is_wall();
        let sender = self.profilers.sender(service);
        let reason = match name {
            _ if is_refused => Reason::Refused,
            _ if !known.profiles && !known.traces => Reason::NoService,
            Some(_) if !of_name.samples && !of_name.traces => Reason::NoSpan,
            _ if !known.profiles => Reason::NoProfiles,
            // A profiler that measures waits in spans alone has none to send, though it is set to.
            _ if !known.profile_type
                && selection.is_wall()
                && matches!(sender, Some(Sender::Ours(_)) | None)
                && self.store.sampling(service)? == Sampling::None =>
            {
                Reason::Unlabelled
            }
            _ if !known.profile_type => Reason::NoType,
            Some(name) if of_name.samples && !self.store.has_samples_of(service, &selection.profile_type, name)? => {
                Reason::OtherType
            }
            Some(_) if is_of_spans && !of_name.samples => match self.store.sampling(service)? {
                Sampling::None => Reason::Unlabelled,
                Sampling::Root if is_child => Reason::ChildSpan,
                _ => return Ok(None),
            },
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
                "No sample of {service} so far is of a child span such as {name:?}: if its profiler labels root spans alone (scope root), what that did is counted in the span that entered the service. To see each span's own, {}.",
                how_each_span_is_sampled(sender).replace('`', "")
            ),
            Reason::Unlabelled => format!("{UNLABELLED} {}", how_samples_are_labelled(sender).replace('`', "")),
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

/// How samples get to carry spans, by what sends them: a sentence, with code between backticks.
pub(crate) fn how_samples_are_labelled(sender: Option<Sender>) -> &'static str {
    match sender {
        Some(Sender::Go) => {
            "Wrap the tracer provider: `otel.SetTracerProvider(otelpyroscope.NewTracerProvider(provider))` of otel-profiling-go; spans that are not sampled get no label."
        }
        Some(Sender::Java) => {
            "Give the OpenTelemetry agent the extension pyroscope-otel.jar by `-Dotel.javaagent.extensions`, and let it start the profiler."
        }
        Some(Sender::Node) => {
            "Run a span's work in `Pyroscope.wrapWithLabels({ span_id, span_name }, work)`, whose labels hold as long as the function runs and not over `await`."
        }
        Some(Sender::DotnetOfGrafana) => {
            "Add `new PyroscopeSpanProcessor()` of Pyroscope.OpenTelemetry to the tracer provider."
        }
        Some(Sender::Native) => {
            "A profiler outside of the process knows spans only where the program publishes them, or by their time and thread."
        }
        Some(Sender::Otlp) => {
            "Its profiles come by OTLP: samples belong to the span that their profiler links them to, or by time to one of their thread, where samples and spans say `thread.id` and their resources `process.pid`."
        }
        Some(Sender::Ours(_)) | None => {
            "Add the profiler's span processor to the tracer provider; in Ruby an exporter's too, as the SDK adds none beside it."
        }
    }
}

/// How samples get to carry each span, and not the root span alone: the rest of a sentence that begins with "to see each span's own", with
/// code between backticks.
pub(crate) fn how_each_span_is_sampled(sender: Option<Sender>) -> &'static str {
    match sender {
        Some(Sender::Go) => {
            "give `otelpyroscope.NewTracerProvider` both `otelpyroscope.WithSpanIDLabelScope(otelpyroscope.ScopeAllSpans)` and `otelpyroscope.WithSpanNameLabelScope(otelpyroscope.ScopeAllSpans)`"
        }
        Some(Sender::Java) => "set the property `-Dotel.pyroscope.root.span.only=false`",
        Some(Sender::Node) => "run each span's work in a `Pyroscope.wrapWithLabels` of its own",
        Some(Sender::Native) => "let the program publish its innermost span",
        Some(Sender::Otlp) => "let the profiler link each sample to the innermost span",
        Some(Sender::Ours(_) | Sender::DotnetOfGrafana) | None => "set `OTEL_PYROSCOPE_ROOT_SPAN_ONLY=false`",
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
