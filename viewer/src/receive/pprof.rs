//! A pprof profile, checked and turned into rows.
//!
//! Sample labels `span_id` (or its old alias `profile_id`) and `trace_id` say what a sample belongs to; any other
//! string label makes a series of its own, as in Pyroscope, but none says whose profile it is. A profile with anything
//! wrong in it is refused whole.
//!
//! Whatever a profile refers to (strings, functions, stacks, label sets) is kept once, and what it may refer to more
//! often than it has bytes is weighed before it is made.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use ahash::{HashMap, HashMapExt as _};
use prost::Message as _;
use spanprof_core::wire::pprof::{
    Function as PprofFunction, Label, Line, Location, Mapping, Profile as Pprof, Sample as PprofSample, ValueType,
};

use super::bounds::{self, Inside, Message, flat};
use super::labels::{self, Labels};
use super::sample_types::sample_types;
use super::strings::{LONGEST_TEXT, cut, string};
use crate::http::allowed::Allowed;
use crate::http::body::{self, too_large};
use crate::http::refusal::{Reason, Refusal, invalid};
use crate::ids::{SpanId, TraceId};
use crate::store::{Function, Part, Profile, Sample, StackNode};

/// What of a profile takes more memory than its bytes.
static PROFILE: Message = Message {
    size: size_of::<Pprof>(),
    fields: &[
        (1, Inside::Message(&VALUE_TYPE)),
        (2, Inside::Message(&SAMPLE)),
        (3, Inside::Message(&MAPPING)),
        (4, Inside::Message(&LOCATION)),
        (5, Inside::Message(&FUNCTION)),
        (13, Inside::Numbers(8)),
    ],
};
static VALUE_TYPE: Message = flat::<ValueType>();
static SAMPLE: Message = Message {
    size: size_of::<PprofSample>(),
    fields: &[(1, Inside::Numbers(8)), (2, Inside::Numbers(8)), (3, Inside::Message(&LABEL))],
};
static LABEL: Message = flat::<Label>();
static MAPPING: Message = flat::<Mapping>();
static LOCATION: Message = Message { size: size_of::<Location>(), fields: &[(4, Inside::Message(&LINE))] };
static LINE: Message = flat::<Line>();
static FUNCTION: Message = flat::<PprofFunction>();
/// Frames of a stack; of deeper ones the leaf end is kept.
const MOST_FRAMES: usize = 1_000;
/// Label sets, which make a series each.
const MOST_SERIES: usize = 5_000;
/// Bytes of all label sets of a profile.
const MOST_LABEL_BYTES: usize = 8 << 20;
/// Bytes that a node of a stack, an entry of a sum and a series take, with what finds them.
const NODE: usize = 96;
const ENTRY: usize = 96;
const SERIES: usize = 256;
/// The largest value of a sample, 104 days of nanoseconds or 9 PB, so that sums of them stay numbers.
const MOST_VALUE: i64 = 1 << 53;
/// The two frames that the profile itself does not have.
const NO_STACK: &str = "(no stack)";
const BEYOND: &str = "(callers beyond 1,000 frames)";

/// Decodes and checks a profile, plain or gzip, that must start within `times`.
pub(super) fn read(raw: &[u8], labels: &Labels, times: (i64, i64), allowed: &mut Allowed) -> Result<Profile, Refusal> {
    let rows = rows(&decode(raw, allowed)?, labels, times, allowed);
    allowed.give_back_decoded();
    rows
}

/// Decodes a profile, plain or gzip.
pub(super) fn decode(raw: &[u8], allowed: &mut Allowed) -> Result<Pprof, Refusal> {
    let mut unpacked = Vec::new();
    let bytes = if raw.starts_with(&[0x1f, 0x8b]) {
        unpacked = body::gunzip(raw, allowed.most_profile(), "the profile", allowed)?;
        &unpacked
    } else {
        raw
    };
    if bytes.len() > allowed.most_profile() {
        return Err(too_large("the profile", allowed.most_profile()));
    }
    allowed.take_decoded(bounds::weigh_protobuf(bytes, &PROFILE, "the profile", allowed.most())?)?;
    let decoded = Pprof::decode(bytes).map_err(|error| invalid(format!("the profile is no pprof: {error}")));
    // Of what was unpacked nothing is borrowed.
    allowed.give_back(unpacked.capacity());
    decoded
}

/// Checks a decoded profile, which must start within `times`.
pub(super) fn rows(
    pprof: &Pprof,
    labels: &Labels,
    times: (i64, i64),
    allowed: &mut Allowed,
) -> Result<Profile, Refusal> {
    let mappings = pprof.mapping.iter().map(|mapping| (mapping.id, mapping.filename)).collect();
    let tables = Tables::new(&pprof.string_table, &mappings, &pprof.function, &pprof.location, allowed)?;
    Reader::new(&tables, &Wire(pprof)).read(pprof, labels, times, allowed)
}

/// What samples refer to, checked once; all profiles of a request may share it.
pub(super) struct Tables<'a> {
    pub(super) strings: &'a [String],
    functions: Vec<Named>,
    /// Function and line, innermost first, of all locations one after the other.
    frames: Vec<(usize, i64)>,
    locations: HashMap<u64, Range<usize>>,
    /// The strings that rows were made of, cut.
    texts: RefCell<HashMap<i64, Arc<str>>>,
}

/// A function: its name, or the address that it is called by, and its file.
struct Named {
    name: i64,
    address: u64,
    file: i64,
}

impl<'a> Tables<'a> {
    /// `mappings` are the files of mappings.
    pub(super) fn new(
        strings: &'a [String],
        mappings: &HashMap<u64, i64>,
        functions: &[PprofFunction],
        locations: &[Location],
        allowed: &mut Allowed,
    ) -> Result<Self, Refusal> {
        if strings.first().is_some_and(|first| !first.is_empty()) {
            return Err(invalid("the profile's first string is not empty"));
        }
        let lines: usize = locations.iter().map(|location| location.line.len().max(1)).sum();
        let entries = functions.len().saturating_add(locations.len()).saturating_mul(2).saturating_add(lines);
        allowed.take(entries.saturating_mul(32), "the profile")?;
        let mut tables = Self {
            strings,
            functions: Vec::with_capacity(functions.len()),
            frames: Vec::with_capacity(lines),
            locations: HashMap::with_capacity(locations.len()),
            texts: RefCell::default(),
        };
        let mut numbers = HashMap::with_capacity(functions.len());
        for function in functions {
            let mut name = function.name;
            if string(strings, name, "a function's name")?.is_empty() {
                name = function.system_name;
                string(strings, name, "a function's system name")?;
            }
            string(strings, function.filename, "a function's file")?;
            if function.id == 0 || numbers.insert(function.id, tables.functions.len()).is_some() {
                return Err(invalid(format!("the profile has function id {} twice, or it is 0", function.id)));
            }
            tables.functions.push(Named { name, address: 0, file: function.filename });
        }
        for location in locations {
            let first = tables.frames.len();
            tables.add_frames(location, mappings, &numbers)?;
            let frames = first..tables.frames.len();
            if location.id == 0 || tables.locations.insert(location.id, frames).is_some() {
                return Err(invalid(format!("the profile has location id {} twice, or it is 0", location.id)));
            }
        }
        Ok(tables)
    }

    fn add_frames(
        &mut self,
        location: &Location,
        mappings: &HashMap<u64, i64>,
        numbers: &HashMap<u64, usize>,
    ) -> Result<(), Refusal> {
        for line in &location.line {
            let Some(function) = numbers.get(&line.function_id) else {
                return Err(invalid(format!(
                    "location {} refers to function {}, which the profile does not have",
                    location.id, line.function_id
                )));
            };
            self.frames.push((*function, line.line.max(0)));
        }
        if location.line.is_empty() {
            if location.address == 0 {
                return Err(invalid(format!("location {} has neither a line nor an address", location.id)));
            }
            let file = mappings.get(&location.mapping_id).copied().unwrap_or(0);
            string(self.strings, file, "a mapping's file")?;
            self.frames.push((self.functions.len(), 0));
            self.functions.push(Named { name: 0, address: location.address, file });
        }
        Ok(())
    }

    /// A function as it is stored.
    fn function(&self, index: usize, allowed: &mut Allowed) -> Result<Function, Refusal> {
        let Named { name, address, file } = self.functions[index];
        allowed.take(NODE, "the profile")?;
        let name = match (address, self.text(name, allowed)?) {
            (0, name) if name.is_empty() => "(no name)".into(),
            (0, name) => name,
            (address, _) => format!("{address:#x}").into(),
        };
        Ok(Function { name, file: self.text(file, allowed)? })
    }

    /// A string that was checked to be there, kept once.
    fn text(&self, index: i64, allowed: &mut Allowed) -> Result<Arc<str>, Refusal> {
        let mut texts = self.texts.borrow_mut();
        if let Some(text) = texts.get(&index) {
            return Ok(Arc::clone(text));
        }
        let text = cut(string(self.strings, index, "a name")?, LONGEST_TEXT);
        allowed.take(text.len() + ENTRY, "the profile")?;
        let text: Arc<str> = text.into();
        texts.insert(index, Arc::clone(&text));
        Ok(text)
    }
}

/// What names its stack, what names its labels, and its values.
pub(super) type SampleOf<'a, S, L> = (S, L, Cow<'a, [i64]>);

/// Where the samples of a profile stand.
pub(super) trait Samples<'a> {
    /// What names a stack.
    type Stack: Copy + Eq + Hash;
    /// What names a set of labels.
    type Labels: Copy + Eq + Hash;

    /// All samples.
    fn samples(&self) -> impl Iterator<Item = SampleOf<'a, Self::Stack, Self::Labels>>;

    /// The locations of a stack, leaf first.
    fn locations(&self, stack: Self::Stack) -> Result<impl Iterator<Item = u64>, Refusal>;

    /// What labels say.
    fn labels(&self, labels: Self::Labels) -> Result<SampleLabels<'a>, Refusal>;
}

/// The labels of a sample.
#[derive(Default)]
pub(super) struct SampleLabels<'a> {
    pub(super) span: Option<SpanId>,
    pub(super) trace: Option<TraceId>,
    /// Those that make a series; of two with one name the last counts.
    others: BTreeMap<&'a str, &'a str>,
}

impl<'a> SampleLabels<'a> {
    /// Adds a label.
    pub(super) fn add(&mut self, key: &'a str, value: &'a str) {
        match key {
            // Numeric labels are none of a series.
            _ if value.is_empty() => {}
            "span_id" => self.span = SpanId::parse(value).or(self.span),
            "profile_id" => self.span = self.span.or(SpanId::parse(value)),
            "trace_id" => self.trace = TraceId::parse(value),
            // Whose profile it is and what it measured is said by its sender, not by a sample.
            "service_name" | "__name__" => {}
            _ => {
                self.others.insert(key, value);
            }
        }
    }
}

/// A pprof's own samples.
struct Wire<'a>(&'a Pprof);

impl<'a> Samples<'a> for Wire<'a> {
    type Stack = &'a [u64];
    type Labels = &'a [Label];

    fn samples(&self) -> impl Iterator<Item = SampleOf<'a, &'a [u64], &'a [Label]>> {
        let samples = self.0.sample.iter();
        samples.map(|sample| (&sample.location_id[..], &sample.label[..], Cow::Borrowed(&sample.value[..])))
    }

    fn locations(&self, stack: &'a [u64]) -> Result<impl Iterator<Item = u64>, Refusal> {
        Ok(stack.iter().copied())
    }

    fn labels(&self, labels: &'a [Label]) -> Result<SampleLabels<'a>, Refusal> {
        let mut read = SampleLabels::default();
        for label in labels {
            let key = string(&self.0.string_table, label.key, "a label's name")?;
            read.add(key, string(&self.0.string_table, label.str, "a label's value")?);
        }
        Ok(read)
    }
}

/// A profile being read.
pub(super) struct Reader<'r, 'a, S: Samples<'a>> {
    tables: &'r Tables<'a>,
    samples: &'r S,
    functions: Vec<Function>,
    /// Which of them those of the tables became.
    used: HashMap<usize, usize>,
    stacks: Vec<StackNode>,
    nodes: HashMap<StackNode, usize>,
    paths: HashMap<S::Stack, usize>,
    /// The functions of our own frames.
    own: HashMap<&'static str, usize>,
    said: HashMap<S::Labels, Said>,
    series: Vec<Series>,
    /// By what samples add to the labels of all.
    numbers: HashMap<Vec<(&'a str, &'a str)>, usize>,
    label_bytes: usize,
}

/// What the labels of a sample say.
#[derive(Clone, Copy)]
struct Said {
    span: Option<SpanId>,
    trace: Option<TraceId>,
    series: usize,
}

/// A label set.
struct Series {
    /// As JSON.
    labels: Arc<str>,
    span_name: Option<Arc<str>>,
}

/// The samples of one series and one sample type.
#[derive(Default)]
struct Sums {
    samples: BTreeMap<(Option<SpanId>, usize), (i64, i64)>,
    traces: BTreeMap<SpanId, TraceId>,
}

impl<'r, 'a, S: Samples<'a>> Reader<'r, 'a, S> {
    pub(super) fn new(tables: &'r Tables<'a>, samples: &'r S) -> Self {
        Self {
            tables,
            samples,
            functions: Vec::new(),
            used: HashMap::new(),
            stacks: Vec::new(),
            nodes: HashMap::new(),
            paths: HashMap::new(),
            own: HashMap::new(),
            said: HashMap::new(),
            series: Vec::new(),
            numbers: HashMap::new(),
            label_bytes: 0,
        }
    }

    /// `head` says what the values mean, and when the profile began.
    pub(super) fn read(
        mut self,
        head: &Pprof,
        labels: &Labels,
        (oldest, newest): (i64, i64),
        allowed: &mut Allowed,
    ) -> Result<Profile, Refusal> {
        let time = if head.time_nanos == 0 { crate::clock::now() } else { head.time_nanos };
        if time < oldest || time > newest {
            let side =
                if time < oldest { "older than what is kept (--retain)" } else { "ahead of this machine's clock" };
            return Err(Refusal::new(Reason::Time, format!("the profile starts at {time} ns, which is {side}")));
        }
        let kinds = sample_types(head, self.tables.strings, &labels.kind)?;
        let mut sums: BTreeMap<(usize, usize), Sums> = BTreeMap::new();
        let all = self.samples;
        for (stack, sample_labels, values) in all.samples() {
            if values.len() != kinds.len() {
                return Err(invalid(format!(
                    "a sample has {} values, and the profile {} sample types",
                    values.len(),
                    kinds.len()
                )));
            }
            allowed.step(1)?;
            let says = self.said(sample_labels, labels, allowed)?;
            let stack = self.stack(stack, allowed)?;
            if let Some(value) = values.iter().find(|value| **value > MOST_VALUE) {
                return Err(invalid(format!("a sample's value is {value}, and at most {MOST_VALUE} is counted")));
            }
            // Servers drop samples that weigh nothing; a negative weight has no meaning.
            if values.iter().any(|value| *value < 0) {
                continue;
            }
            for (index, value) in values.iter().enumerate().filter(|(_, value)| **value > 0) {
                let count = kinds[index].count(*value, &values);
                let sum = sums.entry((index, says.series)).or_default();
                let before = sum.samples.len() + sum.traces.len();
                let entry = sum.samples.entry((says.span, stack)).or_default();
                *entry = (entry.0.saturating_add(*value), entry.1.saturating_add(count));
                if let (Some(span), Some(trace)) = (says.span, says.trace) {
                    sum.traces.insert(span, trace);
                }
                allowed.take((sum.samples.len() + sum.traces.len() - before) * ENTRY, "the profile")?;
            }
        }
        if sums.is_empty() {
            return Err(invalid("the profile holds no sample with a positive value"));
        }
        allowed.take(sums.len().saturating_mul(SERIES), "the profile")?;
        let parts = sums.into_iter().map(|((kind, series), sums)| Part {
            kind: Arc::clone(&kinds[kind].kind),
            period: kinds[kind].period,
            span_name: self.series[series].span_name.clone(),
            labels: Arc::clone(&self.series[series].labels),
            samples: sums
                .samples
                .into_iter()
                .map(|((span, stack), (value, count))| Sample { span, stack, value, count })
                .collect(),
            traces: sums.traces.into_iter().collect(),
        });
        let parts = parts.collect();
        let service = labels.service.as_str().into();
        Ok(Profile { service, time, functions: self.functions, stacks: self.stacks, parts, mark: None })
    }

    /// The number of a stack in the trie.
    fn stack(&mut self, stack: S::Stack, allowed: &mut Allowed) -> Result<usize, Refusal> {
        if let Some(known) = self.paths.get(&stack) {
            return Ok(*known);
        }
        let all = self.samples;
        let mut frames = Vec::new();
        for id in all.locations(stack)? {
            let Some(lines) = self.tables.locations.get(&id) else {
                return Err(invalid(format!("a sample refers to location {id}, which the profile does not have")));
            };
            let room = MOST_FRAMES + 1 - frames.len();
            frames.extend(self.tables.frames[lines.clone()].iter().take(room));
            if frames.len() > MOST_FRAMES {
                break;
            }
        }
        allowed.step(frames.len())?;
        let is_cut = frames.len() > MOST_FRAMES;
        frames.truncate(if is_cut { MOST_FRAMES - 1 } else { MOST_FRAMES });
        let mut at = 0;
        if is_cut || frames.is_empty() {
            let function = self.own_function(if is_cut { BEYOND } else { NO_STACK });
            at = self.node(StackNode { parent: 0, function, line: 0 });
        }
        let before = self.stacks.len();
        for (function, line) in frames.into_iter().rev() {
            let function = match self.used.entry(function) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(free) => {
                    self.functions.push(self.tables.function(function, allowed)?);
                    *free.insert(self.functions.len() - 1)
                }
            };
            at = self.node(StackNode { parent: at, function, line });
        }
        // One location may stand for a thousand lines, in each of a hundred thousand stacks.
        allowed.take((self.stacks.len() - before + 1).saturating_mul(NODE), "the profile")?;
        self.paths.insert(stack, at);
        Ok(at)
    }

    fn node(&mut self, node: StackNode) -> usize {
        *self.nodes.entry(node).or_insert_with(|| {
            self.stacks.push(node);
            self.stacks.len()
        })
    }

    /// The number of a function that the profile itself does not have.
    fn own_function(&mut self, name: &'static str) -> usize {
        *self.own.entry(name).or_insert_with(|| {
            self.functions.push(Function { name: name.into(), file: "".into() });
            self.functions.len() - 1
        })
    }

    /// Reads the labels of a sample; numbers its series.
    fn said(&mut self, key: S::Labels, labels: &Labels, allowed: &mut Allowed) -> Result<Said, Refusal> {
        if let Some(said) = self.said.get(&key) {
            return Ok(*said);
        }
        let SampleLabels { span, trace, others } = self.samples.labels(key)?;
        allowed.step(others.len())?;
        allowed.take(ENTRY, "the profile")?;
        let others: Vec<(&str, &str)> = others.into_iter().collect();
        let series = match self.numbers.get(&others) {
            Some(known) => *known,
            None => self.add_series(others, labels, allowed)?,
        };
        let said = Said { span, trace, series };
        self.said.insert(key, said);
        Ok(said)
    }

    fn add_series(
        &mut self,
        others: Vec<(&'a str, &'a str)>,
        labels: &Labels,
        allowed: &mut Allowed,
    ) -> Result<usize, Refusal> {
        let next = self.series.len();
        if next == MOST_SERIES {
            let sentence = format!("the labels of the profile's samples make more than {MOST_SERIES} series");
            return Err(Refusal::new(Reason::TooLarge, sentence));
        }
        let mut all: BTreeMap<&str, &str> =
            labels.all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        all.extend(others.iter().copied());
        labels::check(&all)?;
        // In JSON a character may become six.
        let json = serde_json::json!(all).to_string();
        self.label_bytes = self.label_bytes.saturating_add(json.len());
        if self.label_bytes > MOST_LABEL_BYTES {
            let sentence = format!("the label sets of the profile's samples have more than {MOST_LABEL_BYTES} bytes");
            return Err(Refusal::new(Reason::TooLarge, sentence));
        }
        allowed.take(json.len() + SERIES + others.len() * 32, "the profile")?;
        // Grafana's Ruby SDK calls it span.
        let span_name = all.get("span_name").or_else(|| all.get("span")).map(|name| (*name).into());
        self.series.push(Series { labels: json.into(), span_name });
        self.numbers.insert(others, next);
        Ok(next)
    }
}
