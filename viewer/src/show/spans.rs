//! The span names of a service: how many, how long, what they burnt.

use serde::Serialize;

use super::error::ShowError;
use super::estimate::{percentile, share};
use super::row_bytes::{ROW, in_html, twice};
use super::services::is_none;
use super::shown::Shown;
use crate::params::encode;
use crate::profile_types;
use crate::receive::profilers::ProfilerState;
use crate::selection::{CPU, Selection, WALL};
use crate::sender::Sender;
use crate::states::{StateTimes, TimeSpent};
use crate::store::{Function, NameSum, Named, OfStates, REST, Sampling, SeenProfileType};

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
    /// Where the time of all of them went, and what is outside of spans; none where no sample says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) states: Option<StateTimes>,
    /// Whether the service says any, if not of these spans.
    #[serde(skip)]
    pub(crate) says_states: bool,
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
    /// What it is sent with, as far as it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sender: Option<Sender>,
    /// How many of its profiles were refused since the start.
    #[serde(skip)]
    pub(crate) refused_profiles: u64,
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
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Outside {
    /// CPU.
    pub(crate) cpu_ns: i64,
    /// Samples of CPU.
    pub(crate) samples: i64,
    /// Where time went there, if that is measured.
    #[serde(flatten)]
    pub(crate) time: Option<TimeSpent>,
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
    /// Where their time went; none if no sample says it, or can.
    #[serde(flatten)]
    pub(crate) time: Option<TimeSpent>,
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

impl SpanNames {
    /// Whether samples carry spans and none says a state.
    pub(crate) fn measures_no_waits(&self) -> bool {
        let is_sampled = self.sampled_by != Sampling::None && self.spans.iter().any(|name| name.samples > 0);
        is_sampled && !self.says_states
    }
}

impl Shown {
    /// The span names of a service, of the spans that the selection chooses.
    pub(crate) fn span_names(&self, service: &str, asked: &Selection) -> Result<SpanNames, ShowError> {
        let selection = self.resolve(&asked.clone().service(service))?;
        self.check_profile_type(&selection)?;
        let profile_types = self.store.profile_types(Some(service), selection.time_range)?;
        let mut beside = beside(&selection, &profile_types.types);
        let of_beside = beside.is_some().then(|| selection.clone());
        let selection = selection.profile_type(CPU);
        let sampled_by = self.store.sampling(service)?;
        let of_states = self.store.has_states(Some(service), selection.time_range)?.then(|| OfStates {
            selection: selection.clone().profile_type(WALL),
            by_span: sampled_by == Sampling::Span,
        });
        let has_states = of_states.is_some();
        let links = (if has_states { 4 } else { 2 }) * selection.link("traces").len();
        let weigh = |name: &str, function: Option<&Function>| row_bytes(name, function, has_states) + 2 * links;
        let sums = self.store.span_names(&selection, of_beside.as_ref(), of_states.as_ref(), weigh)?;
        if let Some(beside) = &mut beside {
            beside.outside = sums.outside.beside;
        }
        let has_beside = beside.is_some();
        let mut states = StateTimes::default();
        let all = sums.names.iter().map(|named| &named.sum).chain(&sums.rest).chain([&sums.outside]);
        all.for_each(|sum| states.merge(&sum.states));
        // Those of other names say that time is measured, though none of these may have a sample.
        let has_states = states.is_told() || of_states.is_some() && !sums.names.is_empty();
        let nested_have_states =
            has_states && sampled_by == Sampling::Wall && self.store.samples_child_spans(service)?;
        let said = Said { sampled_by, has_beside, has_states, nested_have_states };
        let row = |Named { name, sum, hottest }| span_name(name, sum, hottest, said);
        let mut spans: Vec<SpanName> = sums.names.into_iter().map(row).collect();
        spans.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| a.name.cmp(&b.name)));
        let rest = sums.rest.map(|sum| row(Named { name: REST.into(), sum, hottest: None }));
        let (cpu_ns, samples) = sums.outside.cpu.unwrap_or_default();
        let outside = sums.outside.states;
        let time = (has_states && !outside.is_empty()).then(|| TimeSpent::of(None, outside, 0));
        Ok(SpanNames {
            service: service.into(),
            profile_types: profile_types.types,
            more_profile_types: profile_types.more,
            beside,
            states: has_states.then_some(states),
            says_states: of_states.is_some(),
            spans,
            rest,
            outside: Outside { cpu_ns, samples, time },
            sampled_by,
            profilers: self.profilers.of(service),
            sender: self.profilers.sender(service),
            refused_profiles: self.refusals.profiles_of(service),
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
    let asked = &selection.profile_type;
    let word = seen.map_or_else(|| profile_types::word(asked), |seen| seen.word.clone());
    let unit = seen.map_or(profile_types::unit(asked), |seen| &seen.unit);
    Some(Beside { profile_type: asked.clone(), word, unit: unit.into(), outside: 0 })
}

/// What is known of all spans of a service.
#[derive(Clone, Copy)]
struct Said {
    sampled_by: Sampling,
    has_beside: bool,
    has_states: bool,
    /// Whether samples of all time are labelled with spans that did not enter the service.
    nested_have_states: bool,
}

/// The spans of a name, of a service that labels such spans.
fn span_name(name: String, sum: NameSum, hottest: Option<(Function, i64)>, said: Said) -> SpanName {
    let Said { sampled_by, has_beside, has_states, nested_have_states } = said;
    // A name that no sample can be labelled with has an unknown CPU, and not none.
    let labelled = match sampled_by {
        Sampling::Span => true,
        Sampling::Root => sum.entries,
        Sampling::Wall | Sampling::None => false,
    };
    let cpu_ns = sum.cpu.map(|(cpu, _)| cpu);
    let wall_total = sum.walls.iter().fold(0, |sum: i64, wall| sum.saturating_add(*wall));
    let wall_total = (!sum.walls.is_empty()).then_some(wall_total);
    // Nor does anything say where the time of such a name went. Where only samples of all time have spans, its CPU is unknown, but a wait
    // of it would be there: all of it is unexplained.
    let has_own = match sampled_by {
        Sampling::Wall => sum.entries || nested_have_states,
        _ => labelled,
    };
    let is_known = has_states && (has_own || !sum.states.is_empty());
    SpanName {
        name,
        count: i64::try_from(sum.walls.len()).unwrap_or(i64::MAX),
        errors: sum.errors,
        wall_p50_ns: percentile(&sum.walls, 50),
        wall_p95_ns: percentile(&sum.walls, 95),
        wall_p99_ns: percentile(&sum.walls, 99),
        wall_total_ns: wall_total,
        cpu_ns: cpu_ns.or(labelled.then_some(0)),
        samples: sum.cpu.map_or(0, |(_, samples)| samples),
        beside: has_beside.then_some(sum.beside),
        time: is_known.then(|| TimeSpent::of(wall_total, sum.states, sum.child_spans).beside(sum.concurrent)),
        sampled_by,
        hottest: hottest.map(|(function, own_ns)| Hottest {
            function: function.name.to_string(),
            file: function.file.to_string(),
            own_ns,
            share: share(own_ns, cpu_ns.unwrap_or(0)),
        }),
    }
}

/// Bytes of a bar with all states, and of what says them in words.
const BAR: usize = 2_560;

/// Bytes that a row takes while its page is made: beside itself its name as text, as a title and in two links, and its
/// function as text and as a title. Where states are known, a bar and two more links.
fn row_bytes(name: &str, function: Option<&Function>, has_states: bool) -> usize {
    let of_function = function.map_or(0, |function| 2 * in_html(&function.name) + in_html(&function.file));
    let (links, bar) = if has_states { (4, BAR) } else { (2, 0) };
    ROW + name.len() + twice(2 * in_html(name) + links * encode(name).len() + of_function + bar)
}
