//! What a sample's value counts: kinds of profile, and what timers count. process_cpu is the first kind; wall, allocations,
//! locks and exceptions take the same path.

/// A kind of profile: one pprof of it is made each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProfileType {
    /// Pyroscope's `__name__`, for example `process_cpu`.
    pub name: &'static str,
    /// Sample types and their units, for example `("cpu", "nanoseconds")`. Of one, a sample's value is told; of two, the
    /// first is how many things it stands for (objects, waits), the second its value (bytes, nanoseconds).
    pub sample_types: &'static [(&'static str, &'static str)],
    /// Period type and unit.
    pub period_type: (&'static str, &'static str),
    /// Units of `period_type` between two samples.
    pub period: i64,
}

/// A profile type's index in the profiler that it was registered with, of 16 at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProfileTypeId(pub u8);

impl ProfileTypeId {
    /// Time by timer: registered first in every profiler.
    pub const TIMER: Self = Self(0);
}

impl ProfileType {
    /// CPU nanoseconds, sampled every `period_ns`.
    pub(crate) fn process_cpu(period_ns: i64) -> Self {
        Self {
            name: "process_cpu",
            sample_types: &[("cpu", "nanoseconds")],
            period_type: ("cpu", "nanoseconds"),
            period: period_ns,
        }
    }

    /// All time of spans, in nanoseconds, by what it went to: CPU time by its samples, and waits as they were measured. `period_ns`
    /// is that of CPU time, the coarser of the two.
    pub(crate) fn wall_time(period_ns: i64) -> Self {
        Self {
            name: "wall",
            sample_types: &[("wait_count", "count"), ("wall", "nanoseconds")],
            period_type: ("wall", "nanoseconds"),
            period: period_ns,
        }
    }

    /// Whether it is that of CPU time by timer.
    pub(crate) fn is_cpu_time(&self) -> bool {
        self.name == "process_cpu"
    }

    /// Whether it is that of all time of spans.
    pub(crate) fn is_wall_time(&self) -> bool {
        self.name == "wall" && self.sample_types.len() > 1
    }

    /// Wall-clock nanoseconds, sampled every `period_ns`.
    pub(crate) fn wall(period_ns: i64) -> Self {
        Self {
            name: "wall",
            sample_types: &[("wall", "nanoseconds")],
            period_type: ("wall", "nanoseconds"),
            period: period_ns,
        }
    }
}

/// What a timer counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SampleClock {
    /// CPU time of the thread: a thread that waits is left alone.
    #[default]
    Cpu,
    /// Wall time: every thread is interrupted, also in system calls. For stress tests of a host's handler code.
    Wall,
}

impl SampleClock {
    pub(crate) fn of(by_wall_time: bool) -> Self {
        if by_wall_time { Self::Wall } else { Self::Cpu }
    }
}
