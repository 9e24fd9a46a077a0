//! What a profiler says of itself in each window's first profile, for a viewer that shows how its profilers are: [`PREFIX`]
//! and a JSON object in pprof's field for free text, which other servers keep or ignore.
//!
//! The object's `version` says how its other members are to be read. It is [`VERSION`] here, and grows when one of them gets another
//! meaning or another type, or goes away; a member or a count that is new leaves it as it is, as readers pass over names that they
//! do not know. An object without it, as older profilers wrote it, is of version 1. A reader that does not know a version takes
//! the comment for none of its own: the profile counts, and nobody is told.

use serde_json::{Map, Value, json};

/// What such a comment begins with; JSON follows.
pub const PREFIX: &str = "spanprof.stats ";

/// How the JSON is to be read: the newest version, and where the JSON says none, 1.
pub const VERSION: u32 = 1;

/// A profiler's comment.
#[derive(Debug)]
pub(crate) struct StatsComment<'a> {
    /// Which profiler it is.
    pub(crate) instance: u64,
    /// Where the user lets it be said.
    pub(crate) pid: Option<u32>,
    /// Name and version.
    pub(crate) package: &'a (String, String),
    pub(crate) last_error: &'a str,
    /// By name: a number, or samples and what they weigh.
    pub(crate) stats: Map<String, Value>,
}

impl StatsComment<'_> {
    /// As it stands in the profile.
    pub(crate) fn text(self) -> String {
        let (package, version) = self.package;
        let said = json!({
            "version": VERSION,
            "instance": format!("{:016x}", self.instance),
            "pid": self.pid,
            "package": format!("{package} {version}"),
            "last_error": self.last_error,
            "stats": self.stats,
        });
        format!("{PREFIX}{said}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_says_its_version() {
        let stats = Map::from_iter([("threads".to_owned(), 3.into())]);
        let package = ("pyroscope-otel".to_owned(), "2.0.0".to_owned());
        let text = StatsComment { instance: 7, pid: None, package: &package, last_error: "", stats }.text();
        let said: Value = serde_json::from_str(text.strip_prefix(PREFIX).unwrap()).unwrap();
        assert_eq!(said["version"], VERSION);
        assert_eq!((&said["instance"], &said["stats"]["threads"]), (&"0000000000000007".into(), &3.into()));
    }
}
