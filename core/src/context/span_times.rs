//! What the time of one span went to, exactly: each wait is added, whether or not it becomes a sample.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wait_state::State;

/// Nanoseconds by [`State`]. Who makes a span's [`SpanRecord`](crate::SpanRecord) owns them
/// ([`with_times`](crate::SpanRecord::with_times)); threads that are in the span add to them. Sixty-four bits hold 584 years.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SpanTimes {
    sums: [AtomicU64; State::COUNT],
    /// Of these, calls of less than a millisecond: some of that is CPU time.
    short: [AtomicU64; State::COUNT],
}

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
        Self { sums: [const { AtomicU64::new(0) }; State::COUNT], short: [const { AtomicU64::new(0) }; State::COUNT] }
    }

    /// Nanoseconds in a state so far. Relaxed: what threads that are still in the span add meanwhile may be missing.
    #[inline]
    pub fn get(&self, state: State) -> u64 {
        self.sums[state as usize].load(Ordering::Relaxed)
    }

    /// Adds to a state. Async-signal-safe.
    #[inline]
    pub fn add(&self, state: State, ns: u64) {
        self.sums[state as usize].fetch_add(ns, Ordering::Relaxed);
    }

    /// Adds a wait, by the clock, of a call of less than a millisecond. Async-signal-safe.
    #[inline]
    pub(crate) fn add_short(&self, state: State, ns: u64) {
        self.add(state, ns);
        self.short[state as usize].fetch_add(ns, Ordering::Relaxed);
    }

    /// The CPU time of the span's own thread, once, when the span has ended after `wall_ns`. What that and the waits are more than the wall
    /// time is CPU time within calls that waited, so it is taken off the short ones, each state by its part: a call that is switched out for
    /// microseconds burns as many. What these do not have is taken off the CPU time.
    pub fn add_cpu(&self, cpu_ns: u64, wall_ns: u64) {
        let sum = |times: &[AtomicU64]| times.iter().map(|ns| ns.load(Ordering::Relaxed)).fold(0, u64::saturating_add);
        let (waits, all_short) = (sum(&self.sums), sum(&self.short));
        let more_ns = waits.saturating_add(cpu_ns).saturating_sub(wall_ns).min(cpu_ns);
        let within_ns = more_ns.min(all_short);
        for (ns, short) in self.sums.iter().zip(&self.short) {
            let part = u128::from(within_ns) * u128::from(short.swap(0, Ordering::Relaxed));
            let part = part.div_ceil(u128::from(all_short.max(1)));
            let part = u64::try_from(part).unwrap_or(u64::MAX).min(ns.load(Ordering::Relaxed));
            ns.fetch_sub(part, Ordering::Relaxed);
        }
        self.add(State::Cpu, cpu_ns - (more_ns - within_ns));
    }

    /// Those above 0, by the number of their state, with the name of the attribute.
    pub fn attributes(&self) -> impl Iterator<Item = (usize, &'static str, u64)> {
        let all = self.sums.iter().zip(ATTRIBUTES).enumerate();
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

    #[test]
    fn cpu_time_within_short_calls_is_taken_off_these_and_no_sum_is_more_than_the_wall_time() {
        let after = |cpu_ns, wall_ns| {
            let times = SpanTimes::new();
            times.add(State::Sleep, 1_000);
            times.add_short(State::Io, 90);
            times.add_short(State::Lock, 30);
            times.add_cpu(cpu_ns, wall_ns);
            let sum: u64 = times.attributes().map(|(.., ns)| ns).sum();
            assert!(sum <= wall_ns || wall_ns < 1_000, "{sum}");
            [State::Sleep, State::Io, State::Lock, State::Cpu].map(|state| times.get(state))
        };
        assert_eq!(after(80, 1_200), [1_000, 90, 30, 80]);
        assert_eq!(after(80, 1_160), [1_000, 60, 20, 80]);
        assert_eq!(after(80, 1_159), [1_000, 59, 19, 80]);
        assert_eq!(after(200, 1_120), [1_000, 0, 0, 120]);
        // An end that was set by hand.
        assert_eq!(after(80, 10), [1_000, 30, 10, 80]);
    }
}
