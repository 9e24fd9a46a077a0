//! What a span's time went to: the label `state` of wall-time samples.

/// What a thread did with its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum State {
    /// It ran.
    #[default]
    Cpu,
    /// It waited for a file, a socket or a pipe.
    Io,
    /// It waited for another thread: a mutex, a condition, a semaphore, a thread's end.
    Lock,
    /// It waited for the interpreter's lock, as Python calls it.
    Gil,
    /// It slept, or waited for a signal.
    Sleep,
    /// It waited for a child process.
    Child,
    /// It waited for the name of a host or a user.
    Name,
    /// A flow of the program's, not a thread: it was suspended until something came.
    Await,
    /// As before, but what it waited for had come: its thread did other things.
    Busy,
    /// It waited for the interpreter's lock, as Ruby calls it.
    Gvl,
    /// It was ready to run, and other threads had the processors, or the container had used up its share.
    RunQueue,
    /// It ran the garbage collector.
    Gc,
    /// It waited for the runtime's own work: a garbage collection, the compilation of a method.
    Runtime,
}

impl State {
    /// How many there are.
    pub(crate) const COUNT: usize = 13;

    const ALL: [Self; Self::COUNT] = [
        Self::Cpu,
        Self::Io,
        Self::Lock,
        Self::Gil,
        Self::Sleep,
        Self::Child,
        Self::Name,
        Self::Await,
        Self::Busy,
        Self::Gvl,
        Self::RunQueue,
        Self::Gc,
        Self::Runtime,
    ];

    /// The state of this number.
    pub(crate) fn of(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Whether a flow of the program's was in it, and no thread.
    pub(crate) const fn is_of_flow(self) -> bool {
        matches!(self, Self::Await | Self::Busy)
    }

    /// The label's value.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Io => "io",
            Self::Lock => "lock",
            Self::Gil => "gil",
            Self::Sleep => "sleep",
            Self::Child => "child",
            Self::Name => "name",
            Self::Await => "await",
            Self::Busy => "busy",
            Self::Gvl => "gvl",
            Self::RunQueue => "run_queue",
            Self::Gc => "gc",
            Self::Runtime => "runtime",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_numbers_by_which_calls_name_them() {
        for (number, state) in (0..).zip(State::ALL) {
            assert_eq!((state as u32, State::of(number)), (number, Some(state)));
        }
        assert_eq!(State::of(13), None);
    }
}
