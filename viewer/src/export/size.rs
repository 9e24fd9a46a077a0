//! How large a file may be.

use crate::show::{ShowError, Steps};
use crate::store::{StackFrame, Stacks};

/// What a stack takes in a pprof, and in what is written of that; and each of its frames: the number of its location, and that as
/// text, which may be moved to where it has room.
const SAMPLE: usize = 400;
const LOCATION: usize = 28;

/// Refuses what would be larger than an answer may be, where each stack is written with the names of all its frames.
pub(crate) fn fits(stacks: &Stacks, most: usize) -> Result<(), ShowError> {
    let name = |frame: StackFrame| stacks.functions.get(&frame.function).map_or(0, |function| function.name.len());
    check(stacks, stacks.sums.iter().map(|(stack, ..)| *stack), most, 0, |frame| name(frame) + 9)
}

/// The same where each stack is written with the numbers of all its frames, as in a pprof.
pub(crate) fn fits_as_numbers(stacks: &Stacks, most: usize) -> Result<(), ShowError> {
    numbers_fit(stacks, stacks.sums.iter().map(|(stack, ..)| *stack), most)
}

/// The same of stacks that may come more than once.
pub(super) fn numbers_fit(stacks: &Stacks, chosen: impl Iterator<Item = i64>, most: usize) -> Result<(), ShowError> {
    check(stacks, chosen, most, SAMPLE, |_| LOCATION)
}

fn check(
    stacks: &Stacks,
    chosen: impl Iterator<Item = i64>,
    most: usize,
    of_stack: usize,
    of_frame: impl Fn(StackFrame) -> usize,
) -> Result<(), ShowError> {
    let (mut left, mut steps) = (most, Steps::default());
    let mut take = |bytes: usize| {
        steps.step()?;
        let too_large = || ShowError::TooLarge(format!("The file would have more than {most} bytes; choose less."));
        left = left.checked_sub(bytes).ok_or_else(too_large)?;
        Ok::<_, ShowError>(())
    };
    for stack in chosen {
        take(of_stack)?;
        stacks.frames(stack).try_for_each(|frame| take(of_frame(frame)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_pprof_takes_what_its_numbers_take_however_short_its_names_are() {
        let stacks = Stacks {
            nodes: (1..=100).map(|n| (n, (n - 1, 1, n))).collect(),
            functions: HashMap::new(),
            sums: vec![(100, 1, 1); 100],
            ..Stacks::default()
        };
        assert!(fits(&stacks, 100 * 100 * 9).is_ok() && fits(&stacks, 100 * 100 * 9 - 1).is_err());
        let bytes = 100 * (400 + 100 * 28);
        assert!(fits_as_numbers(&stacks, bytes).is_ok());
        assert!(matches!(fits_as_numbers(&stacks, bytes - 1), Err(ShowError::TooLarge(_))));
    }
}
