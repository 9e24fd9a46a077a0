//! Which process a sender is, as far as its resource says it, so that samples and spans of it find each other.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::strings::cut;
use crate::store::Place;

/// The attributes of a resource that tell its process, and of spans and samples that tell their thread.
const PROCESS: &str = "process.pid";
pub(super) const THREAD: &str = "thread.id";
/// What is compared beside the numbers: the number of a process is one of a machine or a container.
const TOLD: [&str; 5] = ["service.name", "service.instance.id", "container.id", "host.id", "host.name"];
/// Longer values are cut to so many bytes.
const LONGEST: usize = 256;

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    number: i64,
    told: String,
}

impl Process {
    /// None if its number is not said, or nothing beside it.
    pub(super) fn of<'a>(attributes: impl Iterator<Item = (&'a str, Cow<'a, str>)>) -> Option<Self> {
        let (mut number, mut told) = (None, BTreeMap::new());
        for (name, value) in attributes {
            if name == PROCESS {
                number = value.parse().ok();
            } else if TOLD.contains(&name) && !value.is_empty() {
                told.entry(name).or_insert_with(|| cut(&value, LONGEST).to_owned());
            }
        }
        let number = number.filter(|_| !told.is_empty())?;
        Some(Self { number, told: serde_json::json!(told).to_string() })
    }

    /// A thread of it.
    pub(super) fn place(&self, thread: i64) -> Place {
        Place::of(self.number, thread, &self.told)
    }
}
