//! What a recording's events become: profiles as Pyroscope makes and names them of the same upload.

use spanprof_core::wire::pprof::{Profile as Pprof, ValueType};

/// A kind of profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Cpu,
    Wall,
    InTlab,
    OutsideTlab,
    AllocSample,
    Mutex,
    Block,
    Live,
    Malloc,
}

/// All of them; the number of a kind is its place.
pub(super) const ALL: [Kind; 9] = [
    Kind::Cpu,
    Kind::Wall,
    Kind::InTlab,
    Kind::OutsideTlab,
    Kind::AllocSample,
    Kind::Mutex,
    Kind::Block,
    Kind::Live,
    Kind::Malloc,
];

/// Name and unit of a sample type or a period type.
type Named = (&'static str, &'static str);

impl Kind {
    /// Label `__name__`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "process_cpu",
            Self::Wall => "wall",
            Self::Mutex => "mutex",
            Self::Block => "block",
            Self::InTlab | Self::OutsideTlab | Self::AllocSample | Self::Live | Self::Malloc => "memory",
        }
    }

    /// What the values of a sample are; where there are two the first one counts events.
    pub(super) fn sample_types(self) -> &'static [Named] {
        match self {
            Self::Cpu => &[("cpu", "nanoseconds")],
            Self::Wall => &[("wall", "nanoseconds")],
            Self::InTlab => &[("alloc_in_new_tlab_objects", "count"), ("alloc_in_new_tlab_bytes", "bytes")],
            Self::OutsideTlab => &[("alloc_outside_tlab_objects", "count"), ("alloc_outside_tlab_bytes", "bytes")],
            Self::AllocSample => &[("alloc_sample_objects", "count"), ("alloc_sample_bytes", "bytes")],
            Self::Mutex | Self::Block => &[("contentions", "count"), ("delay", "nanoseconds")],
            Self::Live => &[("live", "count")],
            Self::Malloc => &[("malloc_objects", "count"), ("malloc_bytes", "bytes")],
        }
    }

    fn period_type(self) -> Option<Named> {
        match self {
            Self::Cpu => Some(("cpu", "nanoseconds")),
            Self::Wall => Some(("wall", "nanoseconds")),
            Self::InTlab | Self::OutsideTlab | Self::AllocSample => Some(("space", "bytes")),
            Self::Mutex => Some(("mutex", "count")),
            Self::Block => Some(("block", "count")),
            Self::Live => Some(("objects", "count")),
            Self::Malloc => None,
        }
    }

    /// A pprof without samples that says what the values mean.
    pub(super) fn head(self, time_nanos: i64, period: i64) -> Pprof {
        let mut string_table = vec![String::new()];
        let mut string = |text: &str| {
            string_table.push(text.into());
            i64::try_from(string_table.len() - 1).unwrap_or(0)
        };
        let mut value_type = |(name, unit): &Named| ValueType { r#type: string(name), unit: string(unit) };
        let sample_type = self.sample_types().iter().map(&mut value_type).collect();
        let period_type = self.period_type().as_ref().map(value_type);
        let period = if matches!(self, Self::Cpu | Self::Wall) { period } else { 0 };
        Pprof { sample_type, period_type, period, time_nanos, string_table, ..Pprof::default() }
    }
}
