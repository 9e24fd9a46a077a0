//! Where the time of spans goes: the states that the samples of profiles of type `wall` are labelled with, their words and
//! their order, and the formula that the pages, the API and the commands share:
//!
//! > wall time = time in each state + time that its child spans account for + what nothing explains, never less than 0
//!
//! What other threads or tasks spend in a span is no part of it: samples that say so (the label `flow`) are [`TimeSpent::concurrent`]. Of
//! profilers that do not say it the states add up to more than the wall time; that is said by [`TimeSpent::over`].

use serde::ser::{Serialize, SerializeMap as _, Serializer};

use crate::format;

/// What the attributes are called by which a span says itself how long it was in a state, in nanoseconds; the state's label follows.
const ATTRIBUTE: &str = "pyroscope.time.";

/// What a span did while its time went by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum State {
    Cpu,
    Lock,
    Gil,
    Gvl,
    Io,
    Sleep,
    Await,
    Busy,
    RunQueue,
    Child,
    Name,
    Runtime,
    Gc,
    Other,
    /// The sample has no such label, as those of other profilers of this type.
    NotTold,
}

impl State {
    /// All of them, in the order in which they stand in a bar.
    pub(crate) const ALL: [Self; 15] = [
        Self::Cpu,
        Self::Lock,
        Self::Gil,
        Self::Gvl,
        Self::Io,
        Self::Sleep,
        Self::Await,
        Self::Busy,
        Self::RunQueue,
        Self::Child,
        Self::Name,
        Self::Runtime,
        Self::Gc,
        Self::Other,
        Self::NotTold,
    ];

    /// The value of the label `state`, and its name in the API and in the classes of a page.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Lock => "lock",
            Self::Gil => "gil",
            Self::Gvl => "gvl",
            Self::Io => "io",
            Self::Sleep => "sleep",
            Self::Await => "await",
            Self::Busy => "busy",
            Self::RunQueue => "run_queue",
            Self::Child => "child",
            Self::Name => "name",
            Self::Runtime => "runtime",
            Self::Gc => "gc",
            Self::Other => "other",
            Self::NotTold => "not_told",
        }
    }

    /// What people call it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Lock => "lock",
            Self::Gil => "GIL",
            Self::Gvl => "GVL",
            Self::Io => "I/O",
            Self::Sleep => "sleep",
            Self::Await => "await",
            Self::Busy => "loop busy",
            Self::RunQueue => "run queue",
            Self::Child => "child process",
            Self::Name => "name look-up",
            Self::Runtime => "runtime",
            Self::Gc => "GC",
            Self::Other => "other",
            Self::NotTold => "(not told)",
        }
    }

    /// What it means, in a few words.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Cpu => "on a CPU",
            Self::Lock => "waited for a lock",
            Self::Gil => "waited for Python's interpreter lock",
            Self::Gvl => "waited for Ruby's interpreter lock",
            Self::Io => "waited for a file, a socket or a disk",
            Self::Sleep => "slept, as the program told it to",
            Self::Await => "a coroutine was suspended until what it awaits was there",
            Self::Busy => "ready to run, but the event loop was busy with others",
            Self::RunQueue => "ready to run, but no CPU was free, or the container had used up its share",
            Self::Child => "waited for a child process",
            Self::Name => "waited for a name to be looked up (DNS)",
            Self::Runtime => "waited for the runtime's own work",
            Self::Gc => "garbage collection",
            Self::Other => "waited for something else",
            Self::NotTold => "the profiler does not say what was done in this time",
        }
    }

    /// Whether it is known to be on no CPU. A collection is the thread's own CPU time, beside what the program itself burnt.
    pub(crate) fn is_wait(self) -> bool {
        !matches!(self, Self::Cpu | Self::Gc | Self::NotTold)
    }

    /// By the label's value; one that a newer profiler may send is some other state.
    pub(crate) fn of_label(label: Option<&str>) -> Self {
        let told = |label: &str| Self::parse(label).filter(|state| *state != Self::NotTold).unwrap_or(Self::Other);
        label.map_or(Self::NotTold, told)
    }

    /// By its name in the API.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.label() == text)
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

/// Nanoseconds by state, in the order of states; none is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateTimes(Vec<(State, i64)>);

impl StateTimes {
    /// What a span's attributes say, a JSON object: sums that its process kept of all that it did, and not samples.
    pub(crate) fn of_attributes(attributes: &str) -> Self {
        let mut times = Self::default();
        if !attributes.contains(ATTRIBUTE) {
            return times;
        }
        let attributes: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(attributes).unwrap_or_default();
        for (name, value) in &attributes {
            let state = name.strip_prefix(ATTRIBUTE).and_then(State::parse);
            if let (Some(state), Some(ns @ 1..)) = (state, value.as_i64()) {
                times.add(state, ns);
            }
        }
        times
    }

    /// Adds time in a state.
    pub(crate) fn add(&mut self, state: State, ns: i64) {
        if ns == 0 {
            return;
        }
        match self.0.binary_search_by_key(&state, |(known, _)| *known) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(ns),
            Err(at) => self.0.insert(at, (state, ns)),
        }
    }

    /// The same with other times.
    pub(crate) fn map(&self, mut time: impl FnMut(i64) -> i64) -> Self {
        Self(self.iter().map(|(state, ns)| (state, time(ns))).filter(|(_, ns)| *ns != 0).collect())
    }

    /// Adds all of another one.
    pub(crate) fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(state, ns)| self.add(state, ns));
    }

    /// Of times that attributes say: the CPU time of a local root is its child spans' too, where these have times of their own. So it
    /// is the span's own as far as its wall time has room for it beside its waits and their `of_children`.
    pub(crate) fn own(mut self, wall: i64, of_children: i64) -> Self {
        if of_children > 0 {
            let others = self.sum().saturating_sub(self.of(State::Cpu));
            let room = wall.saturating_sub(of_children).saturating_sub(others).max(0);
            for (state, ns) in &mut self.0 {
                if *state == State::Cpu {
                    *ns = (*ns).min(room);
                }
            }
            self.0.retain(|(_, ns)| *ns != 0);
        }
        self
    }

    /// States with their times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (State, i64)> {
        self.0.iter().copied()
    }

    /// The time in one of them.
    pub(crate) fn of(&self, state: State) -> i64 {
        self.iter().find(|(known, _)| *known == state).map_or(0, |(_, ns)| ns)
    }

    /// The time in all of them.
    pub(crate) fn sum(&self) -> i64 {
        self.iter().fold(0, |sum: i64, (_, ns)| sum.saturating_add(ns))
    }

    /// The time in which it was known to be on no CPU.
    pub(crate) fn waits(&self) -> i64 {
        self.iter().filter(|(state, _)| state.is_wait()).fold(0, |sum: i64, (_, ns)| sum.saturating_add(ns))
    }

    /// The state with the most time, the first of equal ones.
    pub(crate) fn largest(&self) -> Option<State> {
        self.0.iter().rev().max_by_key(|(_, ns)| *ns).map(|(state, _)| *state)
    }

    /// Whether any sample says its state.
    pub(crate) fn is_told(&self) -> bool {
        self.iter().any(|(state, _)| state != State::NotTold)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An object of nanoseconds by state.
impl Serialize for StateTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(self.0.len()))?;
        for (state, ns) in self.iter() {
            object.serialize_entry(&state, &ns)?;
        }
        object.end()
    }
}

/// One part in so many of a wall time is too little to be called more than all of it.
pub(crate) const OVER: i64 = 50;

/// Why all states can be more than the wall time, by so much, with so much of it in the run queue.
pub(crate) fn why_over(over: i64, run_queue: i64) -> String {
    let starved = "as no CPU was free: while the thread of an event loop stood in the run queue its coroutines waited too, so both have that time; or ";
    let starved = if run_queue >= over { starved } else { "" };
    format!(
        "{starved}of few spans by chance, as CPU time is sampled; else threads, fibers or tasks ran at once and the profiler does not tell \
         them apart, or no trace was received of some spans"
    )
}

/// A wall time, explained as far as it is known.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct TimeSpent {
    /// What shares are of: without traces the time in all states.
    #[serde(skip)]
    wall: i64,
    /// What its own samples say.
    pub(crate) states: StateTimes,
    /// The part of the rest that its child spans account for, whose samples carry their own span.
    #[serde(rename = "in_child_spans_ns")]
    pub(crate) in_child_spans: i64,
    /// What nothing explains.
    #[serde(rename = "unexplained_ns")]
    pub(crate) unexplained: i64,
    /// Beside it: what other threads or tasks spent meanwhile.
    #[serde(rename = "concurrent_ns", skip_serializing_if = "is_zero")]
    concurrent: i64,
}

/// Whether there is nothing to be said of a number.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
pub(crate) fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A part of a wall time; in the order in which they stand in a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Time in a state.
    In(State),
    /// Time that child spans account for.
    ChildSpans,
    /// Time that nothing explains.
    Unexplained,
}

impl Part {
    /// What people call it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::In(state) => state.word(),
            Self::ChildSpans => "(in child spans)",
            Self::Unexplained => "(unexplained)",
        }
    }

    /// What it means.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::In(state) => state.meaning(),
            Self::ChildSpans => "child spans of the same service ran, which have this time in their own states",
            Self::Unexplained => "no sample and no wait that was measured accounts for it",
        }
    }

    /// Its name in the classes of a page.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::In(state) => state.label(),
            Self::ChildSpans => "child-spans",
            Self::Unexplained => "unexplained",
        }
    }
}

/// A piece of a bar, in parts of its width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) part: Part,
    pub(crate) start: f64,
    pub(crate) width: f64,
}

impl TimeSpent {
    /// Of a wall time, if that is known; of the time in states; and of the time that child spans took whose samples are not
    /// among these.
    pub(crate) fn of(wall: Option<i64>, states: StateTimes, children: i64) -> Self {
        let sum = states.sum();
        let rest = wall.map_or(0, |wall| wall.saturating_sub(sum).max(0));
        let in_child_spans = rest.min(children.max(0));
        Self { wall: wall.unwrap_or(sum), states, in_child_spans, unexplained: rest - in_child_spans, concurrent: 0 }
    }

    /// The same, beside which other threads or tasks spent so much.
    pub(crate) fn beside(self, concurrent: i64) -> Self {
        Self { concurrent, ..self }
    }

    /// All parts that have any time.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Part, i64)> {
        let rest = [(Part::ChildSpans, self.in_child_spans), (Part::Unexplained, self.unexplained)];
        self.states.iter().map(|(state, ns)| (Part::In(state), ns)).chain(rest).filter(|(_, ns)| *ns > 0)
    }

    /// What part of the wall time a time is.
    pub(crate) fn share(&self, ns: i64) -> f64 {
        if self.wall > 0 { ns as f64 / self.wall as f64 } else { 0.0 }
    }

    /// What part of the wall time all states are together, where that is more than all of it.
    pub(crate) fn over(&self) -> Option<f64> {
        let sum = self.states.sum();
        // Within it, that is what sampling makes of CPU time, as `spanprof top` has it too.
        (self.wall > 0 && sum.saturating_sub(self.wall) > self.wall / OVER).then(|| self.share(sum))
    }

    /// Why that is so.
    pub(crate) fn why_over(&self) -> String {
        why_over(self.states.sum().saturating_sub(self.wall), self.states.of(State::RunQueue))
    }

    /// The pieces of a bar that is as wide as the wall time, or as all states where these are more.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> {
        let all = self.wall.max(self.states.sum()).max(1) as f64;
        let mut start = 0.0;
        self.parts().map(move |(part, ns)| {
            let segment = Segment { part, start, width: ns as f64 / all };
            start += segment.width;
            segment
        })
    }

    /// All parts in words, each with `between` before the next: `CPU 30.0 ms, 38 %`.
    pub(crate) fn sentence(&self, unit: &str, between: &str) -> String {
        let words = |(part, ns): (Part, i64)| {
            format!("{} {}, {}", part.word(), format::value(ns, unit), format::percent(self.share(ns)))
        };
        let over = self.over().map(|over| format!("together {} of the wall time", format::percent(over)));
        let concurrent = (self.concurrent > 0)
            .then(|| format!("beside it {} in other threads or tasks", format::value(self.concurrent, unit)));
        self.parts().map(words).chain(over).chain(concurrent).collect::<Vec<_>>().join(between)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(times: &[(State, i64)]) -> StateTimes {
        let mut sum = StateTimes::default();
        times.iter().for_each(|(state, ns)| sum.add(*state, *ns));
        sum
    }

    #[test]
    fn each_state_has_a_label_of_its_own_that_parses_to_it() {
        for (at, state) in State::ALL.into_iter().enumerate() {
            assert_eq!((state as usize, State::parse(state.label())), (at, Some(state)));
        }
        let read = [Some("io"), Some("quantum"), Some("not_told"), None].map(State::of_label);
        assert_eq!(read, [State::Io, State::Other, State::Other, State::NotTold]);
    }

    #[test]
    fn times_are_in_order_and_an_object_in_json() {
        let mut sum = times(&[(State::Io, 20), (State::Cpu, 30), (State::Io, 5), (State::Lock, 0)]);
        assert_eq!(serde_json::to_string(&sum).unwrap(), r#"{"cpu":30,"io":25}"#);
        sum.merge(&times(&[(State::Cpu, i64::MAX), (State::NotTold, 1)]));
        assert_eq!((sum.of(State::Cpu), sum.sum(), sum.waits()), (i64::MAX, i64::MAX, 25));
        assert_eq!(
            (sum.largest(), times(&[(State::Io, 3), (State::Gc, 3)]).largest()),
            (Some(State::Cpu), Some(State::Io))
        );
        assert!(sum.is_told() && !times(&[(State::NotTold, 7)]).is_told() && !StateTimes::default().is_told());
    }

    #[test]
    fn attributes_say_times_and_may_say_anything() {
        let said = r#"{"pyroscope.time.io":7,"pyroscope.time.cpu":2,"pyroscope.time.gil":-1,"pyroscope.time.lock":"3",
            "pyroscope.time.quantum":9,"pyroscope.time.":1,"io":5}"#;
        assert_eq!(StateTimes::of_attributes(said), times(&[(State::Io, 7), (State::Cpu, 2)]));
        for none in ["{}", "", "pyroscope.time.io", r#"["pyroscope.time.io"]"#] {
            assert!(StateTimes::of_attributes(none).is_empty(), "{none}");
        }
    }

    #[test]
    fn wall_time_is_the_sum_of_its_parts() {
        let spent = TimeSpent::of(Some(100), times(&[(State::Cpu, 30), (State::Lock, 40)]), 10);
        let parts: Vec<_> = spent.parts().collect();
        let expected =
            [(Part::In(State::Cpu), 30), (Part::In(State::Lock), 40), (Part::ChildSpans, 10), (Part::Unexplained, 20)];
        assert_eq!(parts, expected);
        assert_eq!(parts.iter().map(|(_, ns)| ns).sum::<i64>(), spent.wall);
        assert!((spent.segments().map(|segment| segment.width).sum::<f64>() - 1.0).abs() < 1e-9);
        // Child spans that ran at once account for no more than there is.
        assert_eq!(TimeSpent::of(Some(100), times(&[(State::Cpu, 30)]), 500).unexplained, 0);
        // Without traces all that is known is the states.
        let untraced = TimeSpent::of(None, times(&[(State::Cpu, 30)]), 9);
        assert_eq!((untraced.wall, untraced.in_child_spans, untraced.unexplained, untraced.over()), (30, 0, 0, None));
    }

    #[test]
    fn states_beyond_the_wall_time_are_said_and_not_hidden() {
        let spent = TimeSpent::of(Some(100), times(&[(State::Cpu, 90), (State::Io, 60)]), 5);
        assert_eq!((spent.in_child_spans, spent.unexplained, spent.over()), (0, 0, Some(1.5)));
        let by_chance = |cpu| TimeSpent::of(Some(100), times(&[(State::Cpu, cpu)]), 0).over();
        assert_eq!((by_chance(102), by_chance(103)), (None, Some(1.03)));
        assert_eq!(
            spent.sentence("nanoseconds", "; "),
            "CPU 90 ns, 90 %; I/O 60 ns, 60 %; together 150 % of the wall time"
        );
        assert!((spent.segments().map(|segment| segment.width).sum::<f64>() - 1.0).abs() < 1e-9);
        // What an event loop's thread was kept from is in what its coroutines await too, no more than that.
        let why =
            |queued| TimeSpent::of(Some(100), times(&[(State::Await, 90), (State::RunQueue, queued)]), 0).why_over();
        assert!(why(16).starts_with("as no CPU was free: while the thread of an event loop"), "{}", why(16));
        assert!(spent.why_over().starts_with("of few spans by chance"), "{}", spent.why_over());
        let beside = TimeSpent::of(Some(100), times(&[(State::Cpu, 90)]), 0).beside(70);
        assert_eq!(
            (beside.unexplained, beside.over(), beside.sentence("nanoseconds", "; ").as_str()),
            (10, None, "CPU 90 ns, 90 %; (unexplained) 10 ns, 10 %; beside it 70 ns in other threads or tasks")
        );
        assert_eq!(TimeSpent::of(Some(0), StateTimes::default(), 0).sentence("nanoseconds", "; "), "");
    }
}
