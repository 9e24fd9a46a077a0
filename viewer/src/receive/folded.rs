//! Folded stacks, `main;work 12` a line, as a profile.

use std::collections::HashMap;

use spanprof_core::wire::pprof::{Function, Line, Location, Profile as Pprof, Sample, ValueType};

use crate::clock::SECOND;
use crate::http::allowed::Allowed;
use crate::http::refusal::{Reason, Refusal, invalid};

/// Bytes that a line, and a frame in it, take as a profile.
const LINE: usize = size_of::<Sample>() * 2 + 64;
const FRAME: usize = 8 + size_of::<Location>() + size_of::<Line>() * 4 + size_of::<Function>() + 120;
/// Lines of folded stacks in one request.
const MOST_LINES: usize = 200_000;

/// What the number of a stack is counted in.
#[derive(Clone, Copy)]
pub(super) struct Value {
    /// Name and unit.
    sample_type: (&'static str, &'static str),
    period_type: (&'static str, &'static str),
    weight: i64,
}

impl Value {
    pub(super) const OBJECTS: Self =
        Self { sample_type: ("alloc_objects", "count"), period_type: ("space", "bytes"), weight: 1 };
    pub(super) const BYTES: Self =
        Self { sample_type: ("alloc_space", "bytes"), period_type: ("space", "bytes"), weight: 1 };

    /// Samples of CPU, so many a second.
    pub(super) fn cpu(rate: i64) -> Self {
        let cpu = ("cpu", "nanoseconds");
        Self { sample_type: cpu, period_type: cpu, weight: SECOND / rate }
    }
}

/// Reads stacks with their numbers, or stacks that count once for each line.
pub(super) fn profile(bytes: &[u8], is_lines: bool, value: Value, allowed: &mut Allowed) -> Result<Pprof, Refusal> {
    // A name of one letter becomes a string, a function and a location with a line.
    let (lines, frames) = bytes.iter().fold((1_usize, 1_usize), |(lines, frames), byte| match byte {
        b'\n' => (lines + 1, frames + 1),
        b';' => (lines, frames + 1),
        _ => (lines, frames),
    });
    let weight = lines.saturating_mul(LINE).saturating_add(frames.saturating_mul(FRAME));
    allowed.take(weight.saturating_add(bytes.len()), "the profile")?;
    let text = std::str::from_utf8(bytes).map_err(|_| invalid("the folded stacks are not UTF-8"))?;
    let Value { sample_type: (sample_type, unit), period_type: (period_type, period_unit), weight } = value;
    let mut builder = PprofBuilder::default();
    let mut value_type = |name, unit| ValueType { r#type: builder.string(name), unit: builder.string(unit) };
    let sample_type = vec![value_type(sample_type, unit)];
    let period_type = Some(value_type(period_type, period_unit));
    for (number, line) in text.lines().enumerate() {
        if number >= MOST_LINES {
            return Err(Refusal::new(Reason::TooLarge, format!("there are more than {MOST_LINES} lines")));
        }
        if line.trim().is_empty() {
            continue;
        }
        let counted = || {
            let (stack, count) = line.trim_end().rsplit_once([' ', '\t'])?;
            Some((stack, count.parse::<i64>().ok().filter(|count| *count >= 0)?))
        };
        let (stack, count) = if is_lines {
            (line, 1)
        } else {
            let cut: String = line.chars().take(80).collect();
            counted().ok_or_else(|| invalid(format!("line {}: {cut:?} is not a;b;c 12", number + 1)))?
        };
        builder.sample(stack, count.saturating_mul(weight));
    }
    Ok(Pprof { sample_type, period_type, period: weight, ..builder.profile() })
}

/// A profile being made of names.
#[derive(Default)]
struct PprofBuilder<'a> {
    strings: HashMap<&'a str, i64>,
    table: Vec<String>,
    functions: HashMap<&'a str, u64>,
    profile: Pprof,
}

impl<'a> PprofBuilder<'a> {
    fn string(&mut self, text: &'a str) -> i64 {
        if self.table.is_empty() {
            self.table.push(String::new());
            self.strings.insert("", 0);
        }
        *self.strings.entry(text).or_insert_with(|| {
            self.table.push(text.into());
            i64::try_from(self.table.len() - 1).unwrap_or(0)
        })
    }

    fn sample(&mut self, stack: &'a str, value: i64) {
        let frames = stack.split(';').filter(|name| !name.is_empty());
        let mut location_id: Vec<u64> = frames.map(|name| self.location(name)).collect();
        location_id.reverse();
        self.profile.sample.push(Sample { location_id, value: vec![value], label: Vec::new() });
    }

    /// Each function has one location, with the same id.
    fn location(&mut self, function: &'a str) -> u64 {
        if let Some(id) = self.functions.get(function) {
            return *id;
        }
        let name = self.string(function);
        let id = u64::try_from(self.functions.len()).unwrap_or(0) + 1;
        self.functions.insert(function, id);
        self.profile.function.push(Function { id, name, ..Function::default() });
        let line = vec![Line { function_id: id, line: 0, column: 0 }];
        self.profile.location.push(Location { id, line, ..Location::default() });
        id
    }

    fn profile(self) -> Pprof {
        Pprof { string_table: self.table, ..self.profile }
    }
}
