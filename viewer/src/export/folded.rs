//! Stacks as lines of text, for scripts that draw flame graphs.

use std::fmt::Write as _;

use crate::store::Stacks;

/// One stack a line, callers first: `main;handler;work 20000000`.
pub(super) fn folded(stacks: &Stacks) -> String {
    let mut lines: Vec<String> = Vec::with_capacity(stacks.sums.len());
    for &(stack, value, _) in &stacks.sums {
        // The two characters that the format is made of.
        let names: Vec<String> = stacks.names(stack).iter().map(|name| name.replace([';', '\n'], ",")).collect();
        lines.push(format!("{} {value}", names.join(";")));
    }
    lines.sort_unstable();
    lines.into_iter().fold(String::new(), |mut text, line| {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{line}");
        text
    })
}
