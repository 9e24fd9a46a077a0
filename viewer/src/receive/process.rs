//! Which process a sender is, as far as its resource says it, so that samples and spans of it find each other.

use std::borrow::Cow;

use crate::store::{Mark, Place, TOLD};

/// The attribute of a resource that has the number of its process, and that of spans and samples which has that of their thread.
const PROCESS: &str = "process.pid";
pub(super) const THREAD: &str = "thread.id";
/// What is compared beside the numbers: the number of a process is one of a machine or a container.
const NAMES: [&str; TOLD] = ["service.name", "service.instance.id", "container.id", "host.id", "host.name"];

/// A process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    number: i64,
    told: [i64; TOLD],
}

impl Process {
    /// None if its number is not said, or nothing beside it.
    pub(super) fn of<'a>(attributes: impl Iterator<Item = (&'a str, Cow<'a, str>)>) -> Option<Self> {
        let (mut number, mut told) = (None, [0; TOLD]);
        for (name, value) in attributes {
            if name == PROCESS {
                number = value.parse().ok();
            } else if let Some(at) = NAMES.iter().position(|known| *known == name)
                && !value.is_empty()
                && told[at] == 0
            {
                told[at] = number_of(&value);
            }
        }
        let number = number.filter(|_| told != [0; TOLD])?;
        Some(Self { number, told })
    }

    /// The same, as its samples say whose they are.
    pub(super) fn of_service(&self, service: &str) -> Self {
        let mut told = self.told;
        told[0] = number_of(service);
        Self { told, ..*self }
    }

    /// A thread of it.
    pub(super) fn place(&self, thread: i64) -> Place {
        Place::of(self.number, thread, self.told)
    }
}

/// A text as a number; 0 says that there is none.
fn number_of(text: &str) -> i64 {
    Mark::of(&text, false).hash | 1
}
