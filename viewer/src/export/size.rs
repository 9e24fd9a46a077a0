//! How large a file may be.

use crate::show::ShowError;
use crate::store::Stacks;
use crate::work;

/// Refuses what would be larger than an answer may be, where each stack is written with all its frames.
pub(crate) fn fits(stacks: &Stacks, most: usize) -> Result<(), ShowError> {
    let mut left = most;
    for &(stack, ..) in &stacks.sums {
        for frame in stacks.frames(stack) {
            let name = stacks.functions.get(&frame.function).map_or(0, |function| function.name.len());
            let too_large = || ShowError::TooLarge(format!("The file would have more than {most} bytes; choose less."));
            left = left.checked_sub(name + 9).ok_or_else(too_large)?;
        }
        if work::is_over() {
            return Err(ShowError::Busy("The request took too long and was ended.".into()));
        }
    }
    Ok(())
}
