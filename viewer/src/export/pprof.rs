//! Stacks as one pprof profile, for `go tool pprof` and speedscope.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use spanprof_core::wire::pprof::{Function, Label, Line, Location, Profile, Sample, ValueType};

use super::size::{fits_as_numbers, numbers_fit};
use crate::ids::{SpanId, TraceId};
use crate::show::ShowError;
use crate::store::{Labelled, Origin, StackFrame, Stacks};

/// The strings of a profile, each once.
struct Strings<'a> {
    table: Vec<String>,
    numbers: HashMap<&'a str, i64>,
}

impl<'a> Strings<'a> {
    fn number(&mut self, text: &'a str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.add(text.into());
        self.numbers.insert(text, number);
        number
    }

    /// Adds one that is looked up otherwise.
    fn add(&mut self, text: String) -> i64 {
        self.table.push(text);
        i64::try_from(self.table.len() - 1).unwrap_or(0)
    }
}

/// What is said in a profile whose samples do not say all that they are of.
const NAMES_ALONE: &str = "span_id and trace_id are left out, as there are more than a file may have; choose less";
const AVERAGES: &str = "values are averages over profiles, so samples say no span_id and trace_id";
const NO_STATES: &str =
    "span_id, trace_id, state and flow are left out, as there are more than a file may have; choose less";
const NO_LABELS: &str = "labels are left out, as there are more than a file may have; choose less";

/// The profile of samples with what they are of, as far as so many bytes have room for it: labels `span_name`, `span_id`, `trace_id`,
/// and in profiles of all time `state` and `flow`, by which `go tool pprof -tagfocus` chooses.
pub(super) fn labelled(stacks: &Stacks, mut labelled: Labelled, most: usize) -> Result<Profile, ShowError> {
    // Each text is there once, as it is looked up, in the table and as bytes.
    let texts = |labelled: &Labelled| -> usize {
        let of = |origin: &Origin| [&origin.name, &origin.state, &origin.flow].map(Option::clone);
        let all: HashSet<Arc<str>> = labelled.rows.iter().flat_map(|(origin, ..)| of(origin)).flatten().collect();
        all.iter().map(|text| 3 * text.len()).sum()
    };
    let fits = |labelled: &Labelled| {
        numbers_fit(stacks, labelled.rows.iter().map(|(_, stack, _)| *stack), most.saturating_sub(texts(labelled)))
    };
    let mut rows = fits(&labelled);
    if labelled.has_spans && matches!(rows, Err(ShowError::TooLarge(_))) {
        labelled.forget_spans();
        rows = fits(&labelled);
    }
    let mut left_out = match (labelled.is_averaged, labelled.has_spans) {
        (true, _) => Some(AVERAGES),
        (false, true) => None,
        (false, false) => Some(NAMES_ALONE),
    };
    if labelled.has_states && matches!(rows, Err(ShowError::TooLarge(_))) {
        labelled.forget_states();
        rows = fits(&labelled);
        left_out = Some(NO_STATES);
    }
    if labelled.is_cut {
        rows = Err(ShowError::TooLarge(NO_LABELS.into()));
    }
    match rows {
        Ok(()) => {}
        Err(ShowError::TooLarge(_)) => {
            fits_as_numbers(stacks, most)?;
            labelled.rows = stacks.sums.iter().map(|&(stack, value, _)| (Origin::default(), stack, value)).collect();
            left_out = Some(NO_LABELS);
        }
        Err(error) => return Err(error),
    }
    let Labelled { mut rows, time, duration, .. } = labelled;
    rows.sort_unstable_by(|a, b| (a.1, a.2, &a.0).cmp(&(b.1, b.2, &b.0)));
    let rows = rows.iter().map(|(origin, stack, value)| (Some(origin), *stack, *value));
    Ok(Profile { time_nanos: time, duration_nanos: duration, ..write(stacks, rows, left_out) })
}

/// The profile; the same stacks give the same bytes.
pub(crate) fn profile(stacks: &Stacks) -> Profile {
    let mut sums = stacks.sums.clone();
    sums.sort_unstable();
    write(stacks, sums.iter().map(|&(stack, value, _)| (None, stack, value)), None)
}

fn write<'a>(
    stacks: &'a Stacks,
    rows: impl Iterator<Item = (Option<&'a Origin>, i64, i64)>,
    comment: Option<&'a str>,
) -> Profile {
    let mut strings = Strings { table: vec![String::new()], numbers: HashMap::from([("", 0)]) };
    let mut parts = stacks.profile_type.split(':').skip(1).map(|part| strings.number(part));
    let mut value_type = || ValueType { r#type: parts.next().unwrap_or(0), unit: parts.next().unwrap_or(0) };
    let (sample_type, period_type) = (value_type(), value_type());

    let mut profile = Profile {
        sample_type: vec![sample_type],
        period_type: Some(period_type),
        period: stacks.period,
        comment: comment.into_iter().map(|comment| strings.number(comment)).collect(),
        ..Profile::default()
    };
    let mut functions: HashMap<i64, u64> = HashMap::new();
    let mut locations: HashMap<(i64, i64), u64> = HashMap::new();
    let mut ids = Ids::default();
    for (origin, stack, value) in rows {
        let mut location_id = Vec::new();
        for StackFrame { function, line, .. } in stacks.frames(stack) {
            let next_function = id(profile.function.len());
            let function_id = *functions.entry(function).or_insert_with(|| {
                let (name, file) = stacks.functions.get(&function).map_or(("", ""), |f| (&*f.name, &*f.file));
                let name = strings.number(name);
                let filename = strings.number(file);
                profile.function.push(Function { id: next_function, name, system_name: 0, filename, start_line: 0 });
                next_function
            });
            let next_location = id(profile.location.len());
            location_id.push(*locations.entry((function, line)).or_insert_with(|| {
                let line = vec![Line { function_id, line, column: 0 }];
                profile.location.push(Location { id: next_location, line, ..Location::default() });
                next_location
            }));
        }
        let label = origin.map(|origin| ids.labels(origin, &mut strings)).unwrap_or_default();
        profile.sample.push(Sample { location_id, value: vec![value], label });
    }
    profile.string_table = strings.table;
    profile
}

/// The numbers of the ids among the strings, which do not stand anywhere as texts.
#[derive(Default)]
struct Ids {
    spans: HashMap<SpanId, i64>,
    traces: HashMap<TraceId, i64>,
}

impl Ids {
    fn labels<'a>(&mut self, origin: &'a Origin, strings: &mut Strings<'a>) -> Vec<Label> {
        let texts = [&origin.name, &origin.state, &origin.flow].into_iter().flatten().count();
        let ids = usize::from(origin.span.is_some()) + usize::from(origin.trace.is_some());
        let mut labels = Vec::with_capacity(texts + ids);
        let mut add = |key: i64, str: i64| labels.push(Label { key, str, num: 0, num_unit: 0 });
        if let Some(name) = &origin.name {
            add(strings.number("span_name"), strings.number(name));
        }
        if let Some(span) = origin.span {
            let key = strings.number("span_id");
            add(key, *self.spans.entry(span).or_insert_with(|| strings.add(span.to_string())));
        }
        if let Some(trace) = origin.trace {
            let key = strings.number("trace_id");
            add(key, *self.traces.entry(trace).or_insert_with(|| strings.add(trace.to_string())));
        }
        for (key, value) in [("state", &origin.state), ("flow", &origin.flow)] {
            if let Some(value) = value {
                add(strings.number(key), strings.number(value));
            }
        }
        labels
    }
}

/// The id of the entry that comes next; 0 means none in pprof.
fn id(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX).saturating_add(1)
}
