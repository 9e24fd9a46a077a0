//! Which names tags may have, and what becomes of those that may not.

use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::messages::Level;
use crate::wire::labels::RESERVED;

/// Names that were refused and reported; no more than `MAX_REPORTED`. Locked for a search and a push, as all of a binding's locks are: see
/// [`may_be_a_tag`].
static REPORTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MAX_REPORTED: usize = 32;

/// Whether a label may have this name; one bad name makes a server refuse the whole profile.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) names `field`, the name and what is allowed.
pub fn check_tag_name(field: &str, name: &str) -> Result<(), Error> {
    if name.starts_with("__") || RESERVED.contains(&name) {
        let allowed = format!("other names; {} and names that start with __ are reserved", RESERVED.join(", "));
        return Err(Error::invalid(field, name, &allowed));
    }
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts_well || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.') {
        return Err(Error::invalid(field, format!("{name:?}"), "names like [A-Za-z_][A-Za-z0-9_.]*"));
    }
    Ok(())
}

/// Whether a tag that a program sets while it runs may have this name. If not it is left out, since what is inside of its block has
/// to run: `report` is given one sentence for each such name, of the first 32. `field` is what the program called.
///
/// Called with the interpreter's lock held, where there is one, so that no fork finds the list locked.
pub fn may_be_a_tag(field: &str, name: &str, report: impl FnOnce(Level, String)) -> bool {
    let Err(error) = check_tag_name(field, name) else { return true };
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if reported.len() < MAX_REPORTED && !reported.iter().any(|known| known == name) {
        reported.push(name.to_owned());
        report(Level::Warning, format!("{}; the tag is left out", error.message()));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, as the names that were reported are those of the process.
    #[test]
    fn a_name_that_no_tag_may_have_is_reported_once_and_no_more_than_so_many() {
        let mut sentences = Vec::new();
        let mut may_be = |name: &str| may_be_a_tag("tag_wrapper", name, |level, text| sentences.push((level, text)));
        assert!(may_be("region"));
        for _ in 0..2 {
            assert!(!may_be("span_id"));
            assert!(!may_be("a-b"));
        }
        for number in 0..2 * MAX_REPORTED {
            assert!(!may_be(&format!("{number}")));
        }
        assert_eq!(sentences.len(), MAX_REPORTED);
        assert_eq!(
            sentences[1],
            (
                Level::Warning,
                "tag_wrapper: \"a-b\" is not allowed; allowed: names like [A-Za-z_][A-Za-z0-9_.]*; the tag is left out"
                    .to_owned()
            )
        );
    }
}
