//! A flame graph.

use serde::Serialize;

use super::estimate::Sums;
use super::fold::fold;
use super::tree::{Frame, tree};
use super::{ShowError, Shown};
use crate::look::Look;
use crate::selection::{Bound, Selection};
use crate::store::{Function, Stacks};

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
    /// What `frames` refers to.
    pub(crate) functions: Vec<Function>,
    /// `[parent, function, line, total, own]`, callers before what they called; the first is the total.
    pub(crate) frames: Vec<Frame<1>>,
}

impl Shown {
    /// The flame graph of a selection.
    pub(crate) fn flame(&self, selection: &Selection, look: Look) -> Result<Flame, ShowError> {
        let stacks = self.stacks(selection, look)?;
        let tree = tree([&stacks], look.lines);
        Ok(Flame {
            sentence: selection.sentence(),
            unit: unit(&stacks.kind).into(),
            sums: sums(&stacks),
            profile_type: stacks.kind,
            functions: tree.functions,
            frames: tree.frames,
        })
    }

    /// The stacks of a selection; a span or trace that nothing is known of is an error.
    pub(crate) fn stacks(&self, selection: &Selection, look: Look) -> Result<Stacks, ShowError> {
        let stacks = self.store.stacks(&self.resolve(selection)?)?;
        if stacks.sums.is_empty() {
            self.check_known(selection)?;
        }
        Ok(if look.fold { fold(&stacks) } else { stacks })
    }

    /// The selection with percentiles looked up among the spans that the rest of it chooses.
    pub(crate) fn resolve(&self, selection: &Selection) -> Result<Selection, ShowError> {
        if !selection.has_percentile() {
            return Ok(selection.clone());
        }
        let walls = self.store.walls(&Selection { least: None, most: None, ..selection.clone() })?;
        let time = |bound: Option<Bound>| match bound {
            Some(Bound::Percentile(percent)) => match super::percentile(&walls, percent.into()) {
                Some(wall) => Ok(Some(Bound::Time(wall))),
                None => Err(ShowError::NotFound(format!(
                    "There is no span to take the percentile {} of among {}; percentiles need the traces.",
                    Bound::Percentile(percent).text(),
                    Selection { least: None, most: None, ..selection.clone() }.sentence()
                ))),
            },
            bound => Ok(bound),
        };
        Ok(Selection { least: time(selection.least)?, most: time(selection.most)?, ..selection.clone() })
    }
}

/// What all samples add up to.
pub(super) fn sums(stacks: &Stacks) -> Sums {
    Sums::of(stacks.sums.iter().map(|&(_, value, count)| (value, count)))
}

/// The unit in a profile type.
pub(super) fn unit(kind: &str) -> &str {
    kind.split(':').nth(2).unwrap_or("nanoseconds")
}
