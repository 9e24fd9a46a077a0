//! What the time of one span went to, exactly: each wait is added, whether or not it becomes a sample.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wait_state::State;

/// Nanoseconds by [`State`]. Who makes a span's [`SpanRecord`](crate::SpanRecord) owns them
/// ([`with_times`](crate::SpanRecord::with_times)); threads that are in the span add to them. Sixty-four bits hold 584 years.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SpanTimes([AtomicU64; State::COUNT]);

/// The attributes of spans that say them, in the states' order.
const ATTRIBUTES: [&str; State::COUNT] = [
    "pyroscope.time.cpu",
    "pyroscope.time.io",
    "pyroscope.time.lock",
    "pyroscope.time.gil",
    "pyroscope.time.sleep",
    "pyroscope.time.child",
    "pyroscope.time.name",
    "pyroscope.time.await",
    "pyroscope.time.busy",
    "pyroscope.time.gvl",
    "pyroscope.time.run_queue",
    "pyroscope.time.gc",
    "pyroscope.time.runtime",
];

impl SpanTimes {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; State::COUNT])
    }

    /// Nanoseconds in a state so far. Relaxed: what threads that are still in the span add meanwhile may be missing.
    #[inline]
    pub fn get(&self, state: State) -> u64 {
        self.0[state as usize].load(Ordering::Relaxed)
    }

    /// Adds to a state. Async-signal-safe.
    #[inline]
    pub fn add(&self, state: State, ns: u64) {
        self.0[state as usize].fetch_add(ns, Ordering::Relaxed);
    }

    /// Those above 0, by the number of their state, with the name of the attribute.
    pub fn attributes(&self) -> impl Iterator<Item = (usize, &'static str, u64)> {
        let all = self.0.iter().zip(ATTRIBUTES).enumerate();
        all.map(|(state, (ns, name))| (state, name, ns.load(Ordering::Relaxed))).filter(|(.., ns)| *ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_named_after_states_and_those_of_zero_are_left_out() {
        let times = SpanTimes::new();
        assert_eq!(times.attributes().count(), 0);
        for (number, name) in (0..).zip(ATTRIBUTES) {
            let state = State::of(number).unwrap();
            assert_eq!(name.strip_prefix("pyroscope.time."), Some(state.label()));
            times.add(state, u64::from(number));
            times.add(state, 1);
            assert_eq!(times.get(state), u64::from(number) + 1);
        }
        times.add(State::Io, 40);
        let attributes: Vec<_> = times.attributes().take(2).collect();
        assert_eq!(attributes, [(0, "pyroscope.time.cpu", 1), (1, "pyroscope.time.io", 42)]);
    }
}
