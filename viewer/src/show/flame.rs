//! A flame graph.

use serde::Serialize;

use super::error::ShowError;
use super::estimate::Sums;
use super::shown::Shown;
use super::stacks::{states, sums, unit};
use super::tree::{Frame, tree};
use crate::selection::{Selection, StackDisplay};
use crate::states::StateTimes;
use crate::store::Function;

/// A flame graph.
#[derive(Debug, Serialize)]
pub(crate) struct Flame {
    /// What it shows.
    pub(crate) sentence: String,
    /// All five parts of the profile type; empty without samples.
    pub(crate) profile_type: String,
    /// Unit of all values.
    pub(crate) unit: String,
    #[serde(flatten)]
    pub(crate) sums: Sums,
    /// The value in each state; none where no sample says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) states: Option<StateTimes>,
    /// Whether samples belong to their spans by time alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) joined_by_time: bool,
    /// What `frames` refers to.
    pub(crate) functions: Vec<Function>,
    /// `[parent, function, line, total, own]`, callers before what they called; the first is the total.
    pub(crate) frames: Vec<Frame<1>>,
    /// The total of each of `frames` in each state, where any sample says it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) states_of_frames: Vec<StateTimes>,
}

impl Shown {
    /// The flame graph of a selection.
    pub(crate) fn flame(&self, selection: &Selection, display: StackDisplay) -> Result<Flame, ShowError> {
        let stacks = self.stacks(selection, display)?;
        let states = states(&stacks);
        let tree = tree([&stacks], display.lines)?;
        Ok(Flame {
            states_of_frames: if states.is_some() { tree.states } else { Vec::new() },
            states,
            joined_by_time: self.store.has_joined(&self.resolve(selection)?)?,
            sentence: selection.sentence(),
            unit: unit(&stacks.profile_type).into(),
            sums: sums(&stacks),
            profile_type: stacks.profile_type,
            functions: tree.functions,
            frames: tree.frames,
        })
    }
}
