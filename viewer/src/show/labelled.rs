//! The stacks of a selection with the spans that they are of.

use super::error::ShowError;
use super::fold::fold_with_places;
use super::shown::Shown;
use crate::selection::{Selection, StackDisplay};
use crate::store::{Labelled, REST_ID, Stacks};

impl Shown {
    /// The stacks of a selection, and by what they are of; a stack that had no place is the rest.
    pub(crate) fn labelled(
        &self,
        selection: &Selection,
        display: StackDisplay,
    ) -> Result<(Stacks, Labelled), ShowError> {
        let resolved = self.resolve(selection)?;
        let stacks = self.stacks(selection, StackDisplay { fold: false, ..display })?;
        let mut labelled = self.store.labelled(&resolved)?;
        let (stacks, places) = if display.fold {
            let (folded, places) = fold_with_places(&stacks)?;
            (folded, Some(places))
        } else {
            (stacks, None)
        };
        for (_, stack, _) in &mut labelled.rows {
            *stack = match &places {
                Some(places) => places.get(stack).copied().unwrap_or(REST_ID),
                None if stacks.nodes.contains_key(stack) => *stack,
                None => REST_ID,
            };
        }
        Ok((stacks, labelled))
    }
}
