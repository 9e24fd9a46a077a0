//! The strings of a profile: looked up by their numbers, and truncated to what is kept of them.

use crate::http::refusal::{Refusal, invalid};

/// Names of functions and files are truncated to so many bytes.
pub(super) const LONGEST_TEXT: usize = 4_096;

/// The beginning of a text, of at most so many bytes.
pub(super) fn truncated(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// A string of a table; `what` is named in the refusal.
pub(super) fn string<'a>(strings: &'a [String], index: i64, what: &str) -> Result<&'a str, Refusal> {
    // A profile without any string is allowed to say 0.
    if index == 0 {
        return Ok("");
    }
    let found = usize::try_from(index).ok().and_then(|index| strings.get(index));
    found
        .map(String::as_str)
        .ok_or_else(|| invalid(format!("{what} is string {index}, and the profile has {} strings", strings.len())))
}
