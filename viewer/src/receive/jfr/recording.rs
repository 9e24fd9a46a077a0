//! A recording as it is read: names, stacks and samples of all its chunks.

use std::borrow::Cow;
use std::ops::Range;

use ahash::HashMap;
use spanprof_core::wire::pprof::{Function, Line, Location};

use super::kinds::{ALL, Kind};
use super::snapshot::Snapshot;
use crate::http::allowed::Allowed;
use crate::http::refusal::Refusal;
use crate::ids::{SpanId, TraceId};
use crate::receive::pprof::{SampleLabels, SampleOf, Samples};

/// Bytes that an entry of a map takes.
const ENTRY: usize = 64;
/// A location with its line, and what finds it.
const LOCATION: usize = size_of::<Location>() * 2 + size_of::<Line>() + ENTRY;
/// A function, and what finds it.
const FUNCTION: usize = size_of::<Function>() * 2 + ENTRY;

/// What a sample belongs to, all by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) span: i64,
    /// A text of the snapshot.
    pub(super) span_name: i64,
    /// Labels of the snapshot.
    pub(super) context: i64,
    /// The upper and the lower half of a trace id.
    pub(super) trace: [i64; 2],
}

/// An event that is part of a profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) stack: usize,
    pub(super) origin: Origin,
    /// As many as its kind has sample types.
    pub(super) values: [i64; 2],
}

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) strings: Vec<String>,
    numbers: HashMap<String, i64>,
    pub(super) functions: Vec<Function>,
    by_name: HashMap<(i64, i64), u64>,
    pub(super) locations: Vec<Location>,
    by_line: HashMap<(u64, i64), u64>,
    /// The locations of all stacks, one stack after the other.
    frames: Vec<u64>,
    stacks: Vec<Range<usize>>,
    samples: [Vec<Sample>; ALL.len()],
    /// When its first chunk began.
    pub(super) start: i64,
    pub(super) settings: Settings,
}

/// What a recording says of how it was made.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// async-profiler's event, such as itimer.
    pub(super) event: String,
    /// Nanoseconds between samples of CPU time, and of all threads.
    pub(super) interval: Option<i64>,
    pub(super) wall: Option<i64>,
}

impl Recording {
    /// The number of a text.
    pub(super) fn string(&mut self, text: &str, allowed: &mut Allowed) -> Result<i64, Refusal> {
        if let Some(known) = self.numbers.get(text) {
            return Ok(*known);
        }
        allowed.take(2 * text.len() + ENTRY, "the recording")?;
        let number = i64::try_from(self.strings.len()).unwrap_or(i64::MAX);
        self.strings.push(text.into());
        self.numbers.insert(text.into(), number);
        Ok(number)
    }

    /// The id of a function.
    pub(super) fn function(&mut self, name: &str, file: &str, allowed: &mut Allowed) -> Result<u64, Refusal> {
        // However often the same name is made of its parts.
        allowed.step(name.len() / 8 + 1)?;
        let key = (self.string(name, allowed)?, self.string(file, allowed)?);
        if let Some(known) = self.by_name.get(&key) {
            return Ok(*known);
        }
        allowed.take(FUNCTION, "the recording")?;
        let id = next(self.functions.len());
        self.functions.push(Function { id, name: key.0, filename: key.1, ..Function::default() });
        self.by_name.insert(key, id);
        Ok(id)
    }

    /// The id of a line in a function.
    pub(super) fn location(&mut self, function_id: u64, line: i64, allowed: &mut Allowed) -> Result<u64, Refusal> {
        if let Some(known) = self.by_line.get(&(function_id, line)) {
            return Ok(*known);
        }
        allowed.take(LOCATION, "the recording")?;
        let id = next(self.locations.len());
        let lines = vec![Line { function_id, line, column: 0 }];
        self.locations.push(Location { id, line: lines, ..Location::default() });
        self.by_line.insert((function_id, line), id);
        Ok(id)
    }

    /// Adds a frame to the stack that is read, caller after callee.
    pub(super) fn frame(&mut self, location: u64, allowed: &mut Allowed) -> Result<(), Refusal> {
        allowed.take(2 * size_of::<u64>(), "the recording")?;
        self.frames.push(location);
        Ok(())
    }

    /// Ends it; its number.
    pub(super) fn end_stack(&mut self, allowed: &mut Allowed) -> Result<usize, Refusal> {
        allowed.take(2 * size_of::<Range<usize>>() + ENTRY, "the recording")?;
        let start = self.stacks.last().map_or(0, |stack| stack.end);
        self.stacks.push(start..self.frames.len());
        Ok(self.stacks.len() - 1)
    }

    pub(super) fn sample(&mut self, kind: Kind, sample: Sample, allowed: &mut Allowed) -> Result<(), Refusal> {
        allowed.take(2 * size_of::<Sample>(), "the recording")?;
        self.samples[kind as usize].push(sample);
        Ok(())
    }

    /// Whether there is any sample of a kind that weighs something.
    pub(super) fn has(&self, kind: Kind) -> bool {
        let mut values = self.samples[kind as usize].iter().flat_map(|sample| sample.values);
        values.any(|value| value > 0)
    }

    /// Multiplies the values of all samples of a kind, which are numbers of samples.
    pub(super) fn weigh(&mut self, kind: Kind, weight: i64) {
        for sample in &mut self.samples[kind as usize] {
            sample.values[0] = sample.values[0].saturating_mul(weight);
        }
    }
}

fn next(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX - 1) + 1
}

/// The samples of one kind.
pub(super) struct OfKind<'a> {
    pub(super) recording: &'a Recording,
    pub(super) snapshot: &'a Snapshot<'a>,
    pub(super) kind: Kind,
}

impl<'a> Samples<'a> for OfKind<'a> {
    type Stack = usize;
    type Labels = Origin;

    fn samples(&self) -> impl Iterator<Item = SampleOf<'a, usize, Origin>> {
        let values = self.kind.sample_types().len();
        let samples = self.recording.samples[self.kind as usize].iter();
        samples.map(move |sample| (sample.stack, sample.origin, Cow::Borrowed(&sample.values[..values])))
    }

    fn locations(&self, stack: usize) -> Result<impl Iterator<Item = u64>, Refusal> {
        Ok(self.recording.frames[self.recording.stacks[stack].clone()].iter().copied())
    }

    fn labels(&self, origin: Origin) -> Result<SampleLabels<'a>, Refusal> {
        let mut read = SampleLabels::default();
        for (name, value) in self.snapshot.labels(origin.context) {
            read.add(name, value);
        }
        read.add("span_name", self.snapshot.text(origin.span_name));
        let [upper, lower] = origin.trace.map(i64::to_be_bytes);
        read.span = SpanId::from_column(origin.span).or(read.span);
        read.trace = TraceId::from_bytes(&[upper, lower].concat()).or(read.trace);
        Ok(read)
    }
}
