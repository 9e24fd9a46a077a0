//! What a request may still take of memory and time.

use std::time::Duration;

use super::refusal::{Reason, Refusal};
use crate::budget::{Held, NoRoom, PATIENCE_AT_WORK};
use crate::work;

/// Frames of stacks, samples and labels that are looked at for one request: a second's work.
const MOST_STEPS: usize = 20_000_000;
/// The same for a small request.
const MOST_SMALL_STEPS: usize = MOST_STEPS / 20;
/// The largest profile that is taken, unpacked; profilers split theirs at a tenth of it.
const MOST_PROFILE: usize = 16 << 20;
/// What a byte of a profile takes when it is decoded and made rows of, where it is mostly samples of deep stacks.
const OF_A_BYTE: usize = 16;
/// How long a small request waits for bytes that others have; then it is worked on among the large ones, as the threads of the
/// small are few.
const SMALL_PATIENCE: Duration = Duration::from_millis(100);
/// Label sets of a profile, which make a series each, and their bytes.
const MOST_SERIES: usize = 5_000;
const MOST_LABEL_BYTES: usize = 8 << 20;
/// Bytes that are taken from the budget at a time.
const AT_A_TIME: usize = 64 << 10;
/// Between two looks at the clock there are so many steps.
const BETWEEN: usize = 4_096;

/// The bytes and steps of one request.
#[derive(Debug)]
pub(crate) struct Allowed {
    held: Held,
    /// Taken from the budget and not used yet.
    spare: usize,
    /// What the profile takes that was decoded last.
    decoded: usize,
    steps: usize,
    most_steps: usize,
    /// The bytes of a profile, unpacked.
    most_profile: usize,
    /// Label sets of a profile, and their bytes.
    most_series: (usize, usize),
    looked: usize,
    is_small: bool,
}

impl Allowed {
    /// What a request holds already counts too.
    pub(crate) fn new(held: Held) -> Self {
        Self {
            held,
            spare: 0,
            decoded: 0,
            steps: 0,
            most_steps: MOST_STEPS,
            most_profile: MOST_PROFILE,
            most_series: (MOST_SERIES, MOST_LABEL_BYTES),
            looked: 0,
            is_small: false,
        }
    }

    /// The same for a small request.
    pub(crate) fn of_small(held: Held) -> Self {
        Self { most_steps: MOST_SMALL_STEPS, is_small: true, ..Self::new(held) }
    }

    /// The same for a file, which somebody chose: it is as large as there is memory.
    pub(crate) fn of_file(held: Held) -> Self {
        let most_series = (usize::MAX, usize::MAX);
        Self { most_steps: usize::MAX, most_profile: held.most_of_one(), most_series, ..Self::new(held) }
    }

    /// The largest profile, unpacked.
    pub(crate) fn most_profile(&self) -> usize {
        self.most_profile
    }

    /// The most label sets of a profile, and the most bytes of all of them.
    pub(crate) fn most_series(&self) -> (usize, usize) {
        self.most_series
    }

    /// The most bytes that a request may take.
    pub(crate) fn most(&self) -> usize {
        self.held.most_of_one()
    }

    /// Takes bytes for `what`, which the refusal names.
    pub(crate) fn take(&mut self, bytes: usize, what: &str) -> Result<(), Refusal> {
        if bytes > self.spare {
            let needed = bytes - self.spare;
            let more = needed.max(AT_A_TIME);
            let patience = if self.is_small { SMALL_PATIENCE } else { PATIENCE_AT_WORK };
            let grown = self.held.grow_within(more, patience).map(|()| more);
            // Near the end the exact number may still fit.
            let grown = grown.or_else(|_| self.held.grow_within(needed, Duration::ZERO).map(|()| needed));
            self.spare += grown.map_err(|no| match no {
                NoRoom::Busy if self.is_small => no_room(NoRoom::TooLarge(self.most()), what),
                no => no_room(no, what),
            })?;
        }
        self.spare -= bytes;
        Ok(())
    }

    /// Gives bytes back that are free again.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.spare += bytes;
    }

    /// Refuses a profile of so many bytes, unpacked, to a small request that would hardly have room for it: it is worked on
    /// among the large ones, and what was done before that is done twice.
    pub(crate) fn expect_profile(&self, bytes: usize) -> Result<(), Refusal> {
        if self.is_small && bytes.saturating_mul(OF_A_BYTE) > self.most() {
            return Err(no_room(NoRoom::TooLarge(self.most()), "the profile"));
        }
        Ok(())
    }

    /// Takes the bytes of a profile that is about to be decoded.
    pub(crate) fn take_decoded(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.take(bytes, "the profile")?;
        self.decoded += bytes;
        Ok(())
    }

    /// Gives them back when its rows are made.
    pub(crate) fn give_back_decoded(&mut self) {
        self.spare += std::mem::take(&mut self.decoded);
    }

    /// Counts work; refuses too much of it, and any after the time of the request.
    pub(crate) fn step(&mut self, steps: usize) -> Result<(), Refusal> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > self.most_steps {
            let most = self.most_steps;
            let sentence = format!("the request has more than {most} frames, samples and labels in all its stacks");
            return Err(Refusal::new(Reason::TooLarge, sentence));
        }
        if self.steps - self.looked >= BETWEEN {
            self.looked = self.steps;
            if work::is_over() {
                return Err(Refusal::new(Reason::TooLarge, "the request takes too long to be worked on"));
            }
        }
        Ok(())
    }
}

/// A refusal of what has no room.
pub(crate) fn no_room(no: NoRoom, what: &str) -> Refusal {
    let reason = match no {
        NoRoom::TooLarge(_) => Reason::TooLarge,
        NoRoom::Busy => Reason::Busy,
    };
    Refusal::new(reason, format!("{what} {no}"))
}

#[cfg(any(test, feature = "fuzzing"))]
impl Allowed {
    /// As much as a large server allows.
    pub(crate) fn plenty() -> Self {
        Self::new(crate::budget::Budget::new(256 << 20, 128 << 20).hold())
    }
}
