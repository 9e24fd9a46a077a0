//! The stacks of a selection, which graphs, tables, comparisons and downloads are made from.

use super::error::ShowError;
use super::estimate::{Sums, percentile};
use super::fold::fold;
use super::shown::Shown;
use crate::profile_types::NANOSECONDS;
use crate::selection::{Bound, Selection, StackDisplay};
use crate::states::StateTimes;
use crate::store::Stacks;

impl Shown {
    /// The stacks of a selection; a span or trace that nothing is known of is an error, and so is such a profile type.
    pub(crate) fn stacks(&self, selection: &Selection, display: StackDisplay) -> Result<Stacks, ShowError> {
        let stacks = self.store.stacks(&self.resolve(selection)?)?;
        if stacks.sums.is_empty() {
            self.check_profile_type(selection)?;
            self.check_known(selection)?;
        }
        if display.fold { fold(&stacks) } else { Ok(stacks) }
    }

    /// The selection with percentiles looked up among the spans that the rest of it chooses.
    pub(crate) fn resolve(&self, selection: &Selection) -> Result<Selection, ShowError> {
        if !selection.has_percentile() {
            return Ok(selection.clone());
        }
        let walls = self.store.walls(&Selection { least: None, most: None, ..selection.clone() })?;
        let time = |bound: Option<Bound>| match bound {
            Some(Bound::Percentile(percent)) => match percentile(&walls, percent.into()) {
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
    let sums = Sums::of(stacks.sums.iter().map(|&(_, value, count)| (value, count)));
    Sums { averaged_over: stacks.averaged_over, concurrent: stacks.concurrent, ..sums }
}

/// The value in each state.
pub(super) fn state_times(stacks: &Stacks) -> StateTimes {
    let mut times = StateTimes::default();
    stacks.states.iter().for_each(|&(_, state, value)| times.add(state, value));
    times
}

/// The same where any sample says its state.
pub(super) fn states(stacks: &Stacks) -> Option<StateTimes> {
    Some(state_times(stacks)).filter(StateTimes::is_told)
}

/// The unit in a profile type.
pub(super) fn unit(profile_type: &str) -> &str {
    profile_type.split(':').nth(2).unwrap_or(NANOSECONDS)
}
