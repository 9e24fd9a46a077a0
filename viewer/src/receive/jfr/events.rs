//! The events of a chunk: which ones become samples, of which kind and with which value.

use std::borrow::Cow;

use ahash::{HashMap, HashSet};

use super::chunk::Chunk;
use super::cursor::{Bad, Cursor, Text};
use super::kinds::Kind;
use super::names;
use super::pools::{Constant, Frame, Pools};
use super::recording::{Origin, Recording, Sample};
use super::types::{Types, Value};
use crate::http::allowed::Allowed;

/// Frames of a stack that are read; whoever makes rows of them says that there are more.
const MOST_FRAMES: usize = 1_001;
/// Bytes that an entry of a map takes.
const ENTRY: usize = 48;
/// What is kept of a setting.
const LONGEST_SETTING: usize = 64;

/// An event that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A sample of a thread, by a timer of CPU time or, where the event is wall, by the clock.
    Execution,
    /// So many samples of a thread by the clock.
    WallClock,
    /// A value of a kind.
    Of(Kind),
    Setting,
}

/// Their names, and the field that has the value.
const EVENTS: [(&str, Event, &str); 10] = [
    ("jdk.ExecutionSample", Event::Execution, ""),
    ("profiler.WallClockSample", Event::WallClock, "samples"),
    ("jdk.ObjectAllocationInNewTLAB", Event::Of(Kind::InTlab), "tlabSize"),
    ("jdk.ObjectAllocationOutsideTLAB", Event::Of(Kind::OutsideTlab), "allocationSize"),
    ("jdk.ObjectAllocationSample", Event::Of(Kind::AllocSample), "weight"),
    ("jdk.JavaMonitorEnter", Event::Of(Kind::Mutex), "duration"),
    ("jdk.ThreadPark", Event::Of(Kind::Block), "duration"),
    ("profiler.LiveObject", Event::Of(Kind::Live), ""),
    ("profiler.Malloc", Event::Of(Kind::Malloc), "size"),
    ("jdk.ActiveSetting", Event::Setting, ""),
];

/// The fields that are looked at, beside the one with the value.
const FIELDS: [&str; 8] = ["stackTrace", "state", "spanId", "spanName", "contextId", "traceIdHi", "traceIdLo", "id"];
const VALUE: usize = FIELDS.len();
/// And those of a setting.
const TEXTS: [&str; 2] = ["name", "value"];

/// How events of a class are read.
struct Plan {
    /// Of the class.
    id: i64,
    class: usize,
    event: Event,
    /// For each field its place among [`FIELDS`], and among [`TEXTS`].
    fields: Vec<(Option<usize>, Option<usize>)>,
}

/// What a thread did, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sleeping,
    Runnable,
    Other,
}

/// A chunk that is read into a recording.
struct Reader<'r, 't, 'a> {
    recording: &'r mut Recording,
    chunk: &'t Chunk<'a>,
    pools: Pools<'t, 'a>,
    states: HashMap<i64, State>,
    /// Types of frames that are no methods of Java.
    native: HashSet<i64>,
    /// The functions of its methods, and its stacks, as far as they were met.
    functions: HashMap<i64, u64>,
    stacks: HashMap<i64, usize>,
    /// The class of ExecutionSample, which settings name.
    execution: Option<i64>,
}

/// Reads a chunk.
pub(super) fn read(chunk: &Chunk<'_>, recording: &mut Recording, allowed: &mut Allowed) -> Result<(), Bad> {
    let types = Types::read(chunk.types()?, allowed)?;
    let pools = Pools::read(chunk, &types, allowed)?;
    let plans: Vec<Plan> = EVENTS.iter().filter_map(|(name, event, value)| plan(&types, name, *event, value)).collect();
    let states = pools.all(Constant::ThreadState, allowed)?.into_iter().map(|(number, name)| {
        let state = match &*name {
            "STATE_SLEEPING" => State::Sleeping,
            "STATE_RUNNABLE" => State::Runnable,
            _ => State::Other,
        };
        (number, state)
    });
    let states = states.collect();
    // In Java's own recordings native are methods of Java that are written in C, in async-profiler's functions of C.
    let frame_types = pools.all(Constant::FrameType, allowed)?;
    let has_kernel = frame_types.iter().any(|(_, name)| name == "Kernel");
    let is_native = |name: &str| matches!(name, "C++" | "Kernel") || name == "Native" && has_kernel;
    let native = frame_types.into_iter().filter(|(_, name)| is_native(name)).map(|(number, _)| number).collect();
    let execution = plans.iter().find(|plan| plan.event == Event::Execution).map(|plan| plan.id);
    let (functions, stacks) = (HashMap::default(), HashMap::default());
    let mut reader = Reader { recording, chunk, pools, states, native, functions, stacks, execution };
    let mut events = chunk.events()?;
    while let Some((id, fields)) = Chunk::event(&mut events)? {
        allowed.step(1)?;
        if let Some(plan) = plans.iter().find(|plan| plan.id == id) {
            reader.event(&types, plan, fields, allowed)?;
        }
    }
    // The next chunk has its own.
    let known = (reader.functions.len() + reader.stacks.len()) * ENTRY;
    allowed.give_back(types.weight + reader.pools.weight + known);
    Ok(())
}

fn plan(types: &Types<'_>, name: &str, event: Event, value: &str) -> Option<Plan> {
    let (class, id) = types.by_name(name)?;
    let fields = types.names(class).map(|field| {
        let number = FIELDS.iter().position(|known| *known == field);
        let number = number.or((!value.is_empty() && field == value).then_some(VALUE));
        let text = TEXTS.iter().position(|known| event == Event::Setting && *known == field);
        (number, text)
    });
    Some(Plan { id, class, event, fields: fields.collect() })
}

impl<'a> Reader<'_, '_, 'a> {
    fn event(
        &mut self,
        types: &Types<'a>,
        plan: &Plan,
        mut fields: Cursor<'a>,
        allowed: &mut Allowed,
    ) -> Result<(), Bad> {
        let mut numbers = [0; VALUE + 1];
        let mut texts = [None, None];
        types.fields(plan.class, &mut fields, allowed, |place, value| match (plan.fields[place], value) {
            ((Some(known), _), Value::Number(number)) => numbers[known] = number,
            ((_, Some(known)), Value::Text(text)) => texts[known] = Some(text),
            _ => {}
        })?;
        let [stack, state, span, span_name, context, upper, lower, of, value] = numbers;
        if plan.event == Event::Setting {
            return self.setting(of, texts);
        }
        let stack = self.stack(stack, allowed)?;
        let sample = Sample {
            stack,
            origin: Origin { span, span_name, context, trace: [upper, lower] },
            values: [1, self.value(plan.event, value)],
        };
        let times = |number: i64| Sample { values: [number, 0], ..sample };
        let state = self.states.get(&state);
        let is_by_clock = self.recording.settings.event == "wall";
        let mut add = |kind, sample| self.recording.sample(kind, sample, allowed);
        match plan.event {
            Event::Execution => {
                if state.is_some_and(|state| *state != State::Sleeping) {
                    add(Kind::Cpu, times(1))?;
                }
                if is_by_clock {
                    add(Kind::Wall, times(1))?;
                }
            }
            Event::WallClock => {
                if is_by_clock && state == Some(&State::Runnable) {
                    add(Kind::Cpu, times(value))?;
                }
                add(Kind::Wall, times(value))?;
            }
            Event::Of(kind) => add(kind, sample)?,
            Event::Setting => {}
        }
        Ok(())
    }

    fn value(&self, event: Event, value: i64) -> i64 {
        match event {
            Event::Of(Kind::Mutex | Kind::Block) => self.chunk.nanoseconds(value),
            _ => value,
        }
    }

    /// Takes note of a setting: of async-profiler's, or of Java's own `jdk.ExecutionSample#period=20 ms`.
    fn setting(&mut self, of: i64, texts: [Option<Text<'a>>; 2]) -> Result<(), Bad> {
        let [Some(name), Some(value)] = texts else { return Ok(()) };
        let (name, value) = (self.pools.resolved(name)?, self.pools.resolved(value)?);
        let settings = &mut self.recording.settings;
        match &*name {
            "event" => settings.event = value.chars().take(LONGEST_SETTING).collect(),
            "interval" => settings.interval = nanoseconds(&value).or(settings.interval),
            "wall" => settings.wall = nanoseconds(&value).or(settings.wall),
            "period" if Some(of) == self.execution => settings.interval = nanoseconds(&value).or(settings.interval),
            _ => {}
        }
        Ok(())
    }

    /// The number that a stack has in the recording; one that the chunk does not have is empty.
    fn stack(&mut self, number: i64, allowed: &mut Allowed) -> Result<usize, Bad> {
        if let Some(known) = self.stacks.get(&number) {
            return Ok(*known);
        }
        let Self { recording, pools, native, functions, .. } = self;
        pools.frames(number, MOST_FRAMES, allowed, |frame, allowed| {
            let function = match functions.get(&frame.method) {
                Some(known) => *known,
                None => {
                    let (name, file) = name(pools, native, frame, allowed)?;
                    let function = recording.function(&name, &file, allowed)?;
                    allowed.take(ENTRY, "the recording")?;
                    functions.insert(frame.method, function);
                    function
                }
            };
            let location = recording.location(function, frame.line.max(0), allowed)?;
            Ok(recording.frame(location, allowed)?)
        })?;
        let stack = recording.end_stack(allowed)?;
        allowed.take(ENTRY, "the recording")?;
        self.stacks.insert(number, stack);
        Ok(stack)
    }
}

/// The name of a frame's function, and its library if it is native.
fn name<'a>(
    pools: &Pools<'_, 'a>,
    native: &HashSet<i64>,
    frame: Frame,
    allowed: &mut Allowed,
) -> Result<(Cow<'a, str>, Cow<'a, str>), Bad> {
    let method = pools.numbers(Constant::Method, frame.method, ["type", "name"], allowed)?;
    let Some([class, method]) = method else { return Ok(("(unknown)".into(), "".into())) };
    let class = pools.numbers(Constant::Class, class, ["name"], allowed)?;
    let class = class.map_or(Ok("".into()), |[name]| pools.text(Constant::Symbol, name, allowed))?;
    let method = pools.text(Constant::Symbol, method, allowed)?;
    allowed.step((class.len() + method.len()) / 8 + 1)?;
    Ok(match (&*class, &*method) {
        ("", _) => (method, "".into()),
        _ if native.contains(&frame.kind) => (method, class),
        (class, "") => (names::class(class).into_owned().into(), "".into()),
        (class, method) => (format!("{}.{method}", names::class(class)).into(), "".into()),
    })
}

/// Nanoseconds of `10000000`, as async-profiler writes it, or of `20 ms`; nothing if it is no length of time.
fn nanoseconds(text: &str) -> Option<i64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, "ns"));
    let unit = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(unit).filter(|time| *time > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_as_both_write_them() {
        let read = ["10000000", "20 ms", "1 s", "everyChunk", "0", "-1", "5 h", "9223372036854775807 s"];
        let wanted = [Some(10_000_000), Some(20_000_000), Some(1_000_000_000), None, None, None, None, None];
        assert_eq!(read.map(nanoseconds), wanted);
    }
}
