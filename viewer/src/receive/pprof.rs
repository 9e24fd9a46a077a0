//! A pprof profile, checked and turned into rows.
//!
//! Sample labels `span_id` (or its old alias `profile_id`) and `trace_id` say what a sample belongs to; any other
//! string label makes a series of its own, as in Pyroscope. A profile with anything wrong in it is refused whole.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use ahash::{HashMap, HashMapExt as _};
use prost::Message as _;
use spanprof_core::wire::pprof::{Label, Line, Location, Profile as Pprof};

use super::body::{self, too_large};
use super::bounds::{self, Inside};
use super::labels::{Labels, check_labels};
use super::refusal::{Reason, Refusal, invalid};
use super::sample_types::sample_types;
use crate::ids::{SpanId, TraceId};
use crate::store::{Function, Part, Profile, Sample, StackNode};

/// The largest profile that is taken, unpacked; profilers split theirs at a tenth of it.
const MOST_BYTES: usize = 16 << 20;
/// Samples, locations, functions and strings, and what samples and locations hold.
const ENTRIES: Inside = Inside::Fields(&[(2, Inside::Flat), (4, Inside::Flat)]);
/// Frames of a stack; of deeper ones the leaf end is kept.
const MOST_FRAMES: usize = 1_000;
/// Nodes of all stacks: one location may stand for a thousand lines, in each of a hundred thousand stacks.
const MOST_NODES: usize = 1_000_000;
/// Label sets, which make a series each.
const MOST_SERIES: usize = 5_000;
/// The largest value of a sample, 104 days of nanoseconds or 9 PB, so that sums of them stay numbers.
const MOST_VALUE: i64 = 1 << 53;
/// The two frames that the profile itself does not have.
const NO_STACK: &str = "(no stack)";
const BEYOND: &str = "(callers beyond 1,000 frames)";

/// Decodes and checks a profile, plain or gzip, that must start within `times`.
pub(super) fn read(raw: &[u8], labels: &Labels, times: (i64, i64)) -> Result<Profile, Refusal> {
    rows(&decode(raw)?, labels, times)
}

/// Decodes a profile, plain or gzip.
pub(super) fn decode(raw: &[u8]) -> Result<Pprof, Refusal> {
    let unpacked;
    let bytes = if raw.starts_with(&[0x1f, 0x8b]) {
        unpacked = body::gunzip(raw, MOST_BYTES, "the profile")?;
        &unpacked
    } else {
        raw
    };
    if bytes.len() > MOST_BYTES {
        return Err(too_large("the profile", MOST_BYTES));
    }
    bounds::check_protobuf(bytes, &ENTRIES, "the profile")?;
    Pprof::decode(bytes).map_err(|error| invalid(format!("the profile is no pprof: {error}")))
}

/// Checks a decoded profile, which must start within `times`.
pub(super) fn rows(pprof: &Pprof, labels: &Labels, times: (i64, i64)) -> Result<Profile, Refusal> {
    Reader::new(pprof)?.read(labels, times)
}

/// A profile being read.
struct Reader<'a> {
    pprof: &'a Pprof,
    /// Frames of each location, innermost first: function and line.
    locations: HashMap<u64, Vec<(usize, i64)>>,
    functions: Vec<Function>,
    stacks: Vec<StackNode>,
    nodes: HashMap<StackNode, usize>,
    paths: HashMap<&'a [u64], usize>,
    /// The functions of our own frames.
    own: HashMap<&'static str, usize>,
    /// The files of mappings.
    mappings: HashMap<u64, i64>,
}

/// What the labels of a sample say.
struct Said {
    span: Option<SpanId>,
    trace: Option<TraceId>,
    name: Option<String>,
    series: usize,
}

/// The samples of one series and one sample type.
#[derive(Default)]
struct Sums {
    samples: BTreeMap<(Option<SpanId>, usize), (i64, i64)>,
    traces: BTreeMap<SpanId, TraceId>,
}

impl<'a> Reader<'a> {
    fn new(pprof: &'a Pprof) -> Result<Self, Refusal> {
        if pprof.string_table.first().is_some_and(|first| !first.is_empty()) {
            return Err(invalid("the profile's first string is not empty"));
        }
        let mut reader = Self {
            pprof,
            locations: HashMap::with_capacity(pprof.location.len()),
            functions: Vec::with_capacity(pprof.function.len()),
            stacks: Vec::new(),
            nodes: HashMap::new(),
            paths: HashMap::new(),
            own: HashMap::new(),
            mappings: pprof.mapping.iter().map(|mapping| (mapping.id, mapping.filename)).collect(),
        };
        let mut numbers = HashMap::with_capacity(pprof.function.len());
        for function in &pprof.function {
            let mut name = string(pprof, function.name, "a function's name")?;
            if name.is_empty() {
                name = string(pprof, function.system_name, "a function's system name")?;
            }
            let name = if name.is_empty() { "(no name)" } else { name };
            let file = string(pprof, function.filename, "a function's file")?;
            if function.id == 0 || numbers.insert(function.id, reader.functions.len()).is_some() {
                return Err(invalid(format!("the profile has function id {} twice, or it is 0", function.id)));
            }
            reader.functions.push(Function { name: name.into(), file: file.into() });
        }
        for location in &pprof.location {
            let frames = reader.frames(location, &numbers)?;
            if location.id == 0 || reader.locations.insert(location.id, frames).is_some() {
                return Err(invalid(format!("the profile has location id {} twice, or it is 0", location.id)));
            }
        }
        Ok(reader)
    }

    fn frames(&mut self, location: &Location, numbers: &HashMap<u64, usize>) -> Result<Vec<(usize, i64)>, Refusal> {
        if !location.line.is_empty() {
            let frame = |line: &Line| match numbers.get(&line.function_id) {
                Some(function) => Ok((*function, line.line.max(0))),
                None => Err(invalid(format!(
                    "location {} refers to function {}, which the profile does not have",
                    location.id, line.function_id
                ))),
            };
            return location.line.iter().map(frame).collect();
        }
        if location.address == 0 {
            return Err(invalid(format!("location {} has neither a line nor an address", location.id)));
        }
        let file = self.mappings.get(&location.mapping_id).copied().unwrap_or(0);
        let file = string(self.pprof, file, "a mapping's file")?;
        self.functions.push(Function { name: format!("{:#x}", location.address), file: file.into() });
        Ok(vec![(self.functions.len() - 1, 0)])
    }

    fn read(mut self, labels: &Labels, (oldest, newest): (i64, i64)) -> Result<Profile, Refusal> {
        let time = if self.pprof.time_nanos == 0 { crate::clock::now() } else { self.pprof.time_nanos };
        if time < oldest || time > newest {
            let side =
                if time < oldest { "older than what is kept (--retain)" } else { "ahead of this machine's clock" };
            return Err(Refusal::new(Reason::Time, format!("the profile starts at {time} ns, which is {side}")));
        }
        let kinds = sample_types(self.pprof, &labels.kind)?;
        let mut label_sets = Vec::new();
        let mut series_numbers = HashMap::new();
        let mut said: HashMap<&'a [Label], Said> = HashMap::new();
        let mut sums: BTreeMap<(usize, usize), Sums> = BTreeMap::new();
        let pprof = self.pprof;
        for sample in &pprof.sample {
            if sample.value.len() != kinds.len() {
                return Err(invalid(format!(
                    "a sample has {} values, and the profile {} sample types",
                    sample.value.len(),
                    kinds.len()
                )));
            }
            if !said.contains_key(sample.label.as_slice()) {
                let read = self.said(&sample.label, labels, &mut label_sets, &mut series_numbers)?;
                said.insert(&sample.label, read);
            }
            let says = &said[sample.label.as_slice()];
            let stack = self.stack(&sample.location_id)?;
            if let Some(value) = sample.value.iter().find(|value| **value > MOST_VALUE) {
                return Err(invalid(format!("a sample's value is {value}, and at most {MOST_VALUE} is counted")));
            }
            // Servers drop samples that weigh nothing; a negative weight has no meaning.
            if sample.value.iter().any(|value| *value < 0) {
                continue;
            }
            for (index, value) in sample.value.iter().enumerate().filter(|(_, value)| **value > 0) {
                let sum = sums.entry((index, says.series)).or_default();
                let entry = sum.samples.entry((says.span, stack)).or_default();
                let count = kinds[index].count(*value, &sample.value);
                *entry = (entry.0.saturating_add(*value), entry.1.saturating_add(count));
                if let (Some(span), Some(trace)) = (says.span, says.trace) {
                    sum.traces.insert(span, trace);
                }
            }
        }
        if sums.is_empty() {
            return Err(invalid("the profile holds no sample with a positive value"));
        }
        let names: HashMap<usize, String> =
            said.into_values().filter_map(|says| says.name.map(|name| (says.series, name))).collect();
        let parts = sums.into_iter().map(|((kind, series), sums)| Part {
            kind: kinds[kind].kind.clone(),
            period: kinds[kind].period,
            span_name: names.get(&series).cloned(),
            labels: serde_json::json!(label_sets[series]).to_string(),
            samples: sums
                .samples
                .into_iter()
                .map(|((span, stack), (value, count))| Sample { span, stack, value, count })
                .collect(),
            traces: sums.traces.into_iter().collect(),
        });
        let parts = parts.collect();
        Ok(Profile { service: labels.service.clone(), time, functions: self.functions, stacks: self.stacks, parts })
    }

    /// The number of a stack, leaf first, in the trie.
    fn stack(&mut self, path: &'a [u64]) -> Result<usize, Refusal> {
        if let Some(stack) = self.paths.get(path) {
            return Ok(*stack);
        }
        let mut frames = Vec::with_capacity(path.len());
        for id in path {
            let location = self
                .locations
                .get(id)
                .ok_or_else(|| invalid(format!("a sample refers to location {id}, which the profile does not have")))?;
            if frames.len() <= MOST_FRAMES {
                frames.extend(location);
            }
        }
        if frames.is_empty() {
            frames.push((self.function(NO_STACK), 0));
        }
        if frames.len() > MOST_FRAMES {
            frames.truncate(MOST_FRAMES - 1);
            frames.push((self.function(BEYOND), 0));
        }
        let mut at = 0;
        for (function, line) in frames.into_iter().rev() {
            let node = StackNode { parent: at, function, line };
            at = *self.nodes.entry(node).or_insert_with(|| {
                self.stacks.push(node);
                self.stacks.len()
            });
        }
        if self.stacks.len() > MOST_NODES {
            let sentence = format!("the profile's stacks have more than {MOST_NODES} frames that none of them shares");
            return Err(Refusal::new(Reason::TooLarge, sentence));
        }
        self.paths.insert(path, at);
        Ok(at)
    }

    /// The number of a function that the profile itself does not have.
    fn function(&mut self, name: &'static str) -> usize {
        *self.own.entry(name).or_insert_with(|| {
            self.functions.push(Function { name: name.into(), file: String::new() });
            self.functions.len() - 1
        })
    }

    /// Reads the labels of a sample; numbers its series.
    fn said(
        &self,
        sample: &[Label],
        labels: &Labels,
        sets: &mut Vec<BTreeMap<String, String>>,
        numbers: &mut HashMap<BTreeMap<String, String>, usize>,
    ) -> Result<Said, Refusal> {
        let mut all = labels.all.clone();
        let (mut span, mut trace) = (None, None);
        for label in sample {
            let key = string(self.pprof, label.key, "a label's name")?;
            let value = string(self.pprof, label.str, "a label's value")?;
            match key {
                // Numeric labels are none of a series.
                _ if value.is_empty() => {}
                "span_id" => span = SpanId::parse(value).or(span),
                "profile_id" => span = span.or(SpanId::parse(value)),
                "trace_id" => trace = TraceId::parse(value),
                _ => {
                    all.insert(key.into(), value.into());
                }
            }
        }
        check_labels(&all)?;
        // Grafana's Ruby SDK calls it span.
        let name = all.get("span_name").or_else(|| all.get("span")).cloned();
        let next = sets.len();
        if next == MOST_SERIES && !numbers.contains_key(&all) {
            let sentence = format!("the labels of the profile's samples make more than {MOST_SERIES} series");
            return Err(Refusal::new(Reason::TooLarge, sentence));
        }
        let series = match numbers.entry(all) {
            Entry::Occupied(found) => *found.get(),
            Entry::Vacant(free) => {
                sets.push(free.key().clone());
                *free.insert(next)
            }
        };
        Ok(Said { span, trace, name, series })
    }
}

/// A string of the table; `what` is named in the refusal.
pub(super) fn string<'a>(pprof: &'a Pprof, index: i64, what: &str) -> Result<&'a str, Refusal> {
    // A profile without any string is allowed to say 0.
    if index == 0 {
        return Ok("");
    }
    let found = usize::try_from(index).ok().and_then(|index| pprof.string_table.get(index));
    found.map(String::as_str).ok_or_else(|| {
        invalid(format!("{what} is string {index}, and the profile has {} strings", pprof.string_table.len()))
    })
}
