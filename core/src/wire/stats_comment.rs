//! What a profiler says of itself in each window's first profile, for a viewer that shows how its profilers are: [`PREFIX`]
//! and a JSON object in pprof's field for free text, which other servers keep or ignore.

use serde_json::{Map, Value, json};

/// What such a comment begins with; JSON follows.
pub const PREFIX: &str = "spanprof.stats ";

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
            "instance": format!("{:016x}", self.instance),
            "pid": self.pid,
            "package": format!("{package} {version}"),
            "last_error": self.last_error,
            "stats": self.stats,
        });
        format!("{PREFIX}{said}")
    }
}
