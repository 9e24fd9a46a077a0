//! A profile being read: stacks become a trie, label sets series, samples sums.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::Arc;

use ahash::{HashMap, HashMapExt as _};
use spanprof_core::wire::pprof::Profile as Pprof;

use super::samples::{SampleLabels, Samples};
use super::tables::{ENTRY, NODE, Tables};
use crate::clock;
use crate::http::allowed::Allowed;
use crate::http::refusal::{Reason, Refusal, invalid};
use crate::ids::{SpanId, TraceId};
use crate::receive::labels::{self, Labels};
use crate::receive::sample_types::sample_types;
use crate::store::{Function, Part, Place, Profile, Sample, StackNode, TimedSample, TimedSamples};

/// Frames of a stack; of deeper ones the leaf end is kept.
const MOST_FRAMES: usize = 1_000;
/// The largest value of a sample, 104 days of nanoseconds or 9 PB, so that sums of them stay numbers.
const MOST_VALUE: i64 = 1 << 53;
/// The functions of two frames that the profile itself does not have, by numbers that no function of the tables has.
const NO_STACK: usize = usize::MAX;
const BEYOND: usize = usize::MAX - 1;
/// Bytes that a series takes, with what finds it.
const SERIES: usize = 256;
/// And a sample that says when it was taken, also while it is stored.
const TIMED: usize = 4 * size_of::<TimedSample>();

/// A profile being read.
pub(in crate::receive) struct Reader<'r, 'a, S: Samples<'a>> {
    tables: &'r Tables<'a>,
    samples: &'r S,
    functions: Vec<Function>,
    /// Which of them those of the tables became.
    used: HashMap<usize, usize>,
    stacks: Vec<StackNode>,
    /// By nodes whose functions are those of the tables.
    nodes: HashMap<StackNode, usize>,
    paths: HashMap<S::Stack, usize>,
    /// Of the stack that is read, leaf first; kept for the next one.
    frames: Vec<(usize, i64)>,
    origins: HashMap<S::Labels, Origin>,
    series: Vec<Series>,
    /// By what samples add to the labels of all.
    numbers: HashMap<Vec<(&'a str, &'a str)>, usize>,
    label_bytes: usize,
}

/// What a sample belongs to, by its labels.
#[derive(Clone, Copy)]
struct Origin {
    span: Option<SpanId>,
    trace: Option<TraceId>,
    place: Option<Place>,
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
    /// By the number of the place.
    timed: BTreeMap<i64, TimedSamples>,
}

impl<'r, 'a, S: Samples<'a>> Reader<'r, 'a, S> {
    pub(in crate::receive) fn new(tables: &'r Tables<'a>, samples: &'r S) -> Self {
        Self {
            tables,
            samples,
            functions: Vec::new(),
            used: HashMap::new(),
            stacks: Vec::new(),
            nodes: HashMap::new(),
            paths: HashMap::new(),
            frames: Vec::new(),
            origins: HashMap::new(),
            series: Vec::new(),
            numbers: HashMap::new(),
            label_bytes: 0,
        }
    }

    /// `head` says what the values mean, and when the profile began. A profile without samples becomes one without parts.
    pub(in crate::receive) fn read(
        mut self,
        head: &Pprof,
        labels: &Labels,
        (oldest, newest): (i64, i64),
        allowed: &mut Allowed,
    ) -> Result<Profile, Refusal> {
        let time = if head.time_nanos == 0 { clock::now() } else { head.time_nanos };
        if time < oldest || time > newest {
            let side =
                if time < oldest { "older than what is kept (--retain)" } else { "ahead of this machine's clock" };
            return Err(Refusal::new(Reason::Time, format!("the profile starts at {time} ns, which is {side}")));
        }
        let sample_types = sample_types(head, &head.string_table, &labels.profile_name)?;
        let mut sums: BTreeMap<(usize, usize), Sums> = BTreeMap::new();
        let (all, mut has_negative) = (self.samples, false);
        for (stack, sample_labels, values) in all.samples() {
            if values.len() != sample_types.len() {
                return Err(invalid(format!(
                    "a sample has {} values, and the profile {} sample types",
                    values.len(),
                    sample_types.len()
                )));
            }
            allowed.step(1)?;
            let origin = self.origin(sample_labels, labels, allowed)?;
            let stack = self.stack(stack, allowed)?;
            if let Some(value) = values.iter().find(|value| **value > MOST_VALUE) {
                return Err(invalid(format!("a sample's value is {value}, and at most {MOST_VALUE} is counted")));
            }
            // Servers drop samples that weigh nothing; a negative weight has no meaning.
            if values.iter().any(|value| *value < 0) {
                has_negative = true;
                continue;
            }
            for (index, value) in values.iter().enumerate().filter(|(_, value)| **value > 0) {
                let count = sample_types[index].count(*value, &values);
                let sum = sums.entry((index, origin.series)).or_default();
                let before = sum.samples.len() + sum.traces.len();
                let entry = sum.samples.entry((origin.span, stack)).or_default();
                *entry = (entry.0.saturating_add(*value), entry.1.saturating_add(count));
                if let (Some(span), Some(trace)) = (origin.span, origin.trace) {
                    sum.traces.insert(span, trace);
                }
                allowed.take((sum.samples.len() + sum.traces.len() - before) * ENTRY, "the profile")?;
            }
        }
        for (stack, sample_labels, time, value) in all.timed() {
            allowed.step(1)?;
            let origin = self.origin(sample_labels, labels, allowed)?;
            let (None, Some(place)) = (origin.span, origin.place) else { continue };
            let stack = self.stack(stack, allowed)?;
            // Of its series there are sums, unless they come to nothing.
            let Some(sums) = sums.get_mut(&(0, origin.series)).filter(|_| value > 0) else { continue };
            let empty = || TimedSamples { place, samples: Vec::new() };
            let timed = &mut sums.timed.entry(place.number).or_insert_with(empty).samples;
            allowed.take(TIMED + if timed.is_empty() { ENTRY } else { 0 }, "the profile")?;
            timed.push(TimedSample { time, stack, value, count: sample_types[0].count(value, &[value]) });
        }
        if sums.is_empty() && has_negative {
            return Err(invalid("the profile holds no sample with a positive value"));
        }
        allowed.take(sums.len().saturating_mul(SERIES), "the profile")?;
        let parts = sums.into_iter().map(|((sample_type, series), sums)| Part {
            profile_type: Arc::clone(&sample_types[sample_type].profile_type),
            period: sample_types[sample_type].period,
            span_name: self.series[series].span_name.clone(),
            labels: Arc::clone(&self.series[series].labels),
            samples: sums
                .samples
                .into_iter()
                .map(|((span, stack), (value, count))| Sample { span, stack, value, count })
                .collect(),
            traces: sums.traces.into_iter().collect(),
            timed: sums.timed.into_values().collect(),
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
        let mut frames = mem::take(&mut self.frames);
        frames.clear();
        for id in all.locations(stack)? {
            let room = MOST_FRAMES + 1 - frames.len();
            frames.extend(self.tables.frames(id)?.iter().take(room));
            if frames.len() > MOST_FRAMES {
                break;
            }
        }
        allowed.step(frames.len())?;
        let is_truncated = frames.len() > MOST_FRAMES;
        frames.truncate(if is_truncated { MOST_FRAMES - 1 } else { MOST_FRAMES });
        let mut at = 0;
        if is_truncated || frames.is_empty() {
            let function = if is_truncated { BEYOND } else { NO_STACK };
            at = self.node(StackNode { parent: 0, function, line: 0 }, allowed)?;
        }
        let before = self.stacks.len();
        for &(function, line) in frames.iter().rev() {
            at = self.node(StackNode { parent: at, function, line }, allowed)?;
        }
        // One location may stand for a thousand lines, in each of a hundred thousand stacks.
        allowed.take((self.stacks.len() - before + 1).saturating_mul(NODE), "the profile")?;
        self.paths.insert(stack, at);
        self.frames = frames;
        Ok(at)
    }

    fn node(&mut self, node: StackNode, allowed: &mut Allowed) -> Result<usize, Refusal> {
        if let Some(known) = self.nodes.get(&node) {
            return Ok(*known);
        }
        let function = self.function(node.function, allowed)?;
        self.stacks.push(StackNode { function, ..node });
        self.nodes.insert(node, self.stacks.len());
        Ok(self.stacks.len())
    }

    /// The number that a function of the tables has among those of the rows.
    fn function(&mut self, index: usize, allowed: &mut Allowed) -> Result<usize, Refusal> {
        let free = match self.used.entry(index) {
            Entry::Occupied(known) => return Ok(*known.get()),
            Entry::Vacant(free) => free,
        };
        let own = |name: &str| Function { name: name.into(), file: "".into() };
        self.functions.push(match index {
            NO_STACK => own("(no stack)"),
            BEYOND => own("(callers beyond 1,000 frames)"),
            _ => self.tables.function(index, allowed)?,
        });
        Ok(*free.insert(self.functions.len() - 1))
    }

    /// Reads the labels of a sample; numbers its series.
    fn origin(&mut self, key: S::Labels, labels: &Labels, allowed: &mut Allowed) -> Result<Origin, Refusal> {
        if let Some(origin) = self.origins.get(&key) {
            return Ok(*origin);
        }
        let SampleLabels { span, trace, place, others } = self.samples.labels(key)?;
        allowed.step(others.len())?;
        allowed.take(ENTRY, "the profile")?;
        let others: Vec<(&str, &str)> = others.into_iter().collect();
        let series = match self.numbers.get(&others) {
            Some(known) => *known,
            None => self.add_series(others, labels, allowed)?,
        };
        let origin = Origin { span, trace, place, series };
        self.origins.insert(key, origin);
        Ok(origin)
    }

    fn add_series(
        &mut self,
        others: Vec<(&'a str, &'a str)>,
        labels: &Labels,
        allowed: &mut Allowed,
    ) -> Result<usize, Refusal> {
        let next = self.series.len();
        let (most, most_bytes) = allowed.most_series();
        if next == most {
            let sentence = format!("the labels of the profile's samples make more than {most} series");
            return Err(Refusal::new(Reason::TooLarge, sentence));
        }
        let mut all: BTreeMap<&str, &str> =
            labels.all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        all.extend(others.iter().copied());
        labels::check(&all)?;
        // In JSON a character may become six.
        let json = serde_json::json!(all).to_string();
        self.label_bytes = self.label_bytes.saturating_add(json.len());
        if self.label_bytes > most_bytes {
            let sentence = format!("the label sets of the profile's samples have more than {most_bytes} bytes");
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
