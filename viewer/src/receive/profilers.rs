//! What profilers say of themselves: the engine's `stats()`, which come as a comment of each window's first profile.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use spanprof_core::wire::pprof::Profile;
use spanprof_core::wire::stats_comment::{PREFIX, VERSION};

use crate::clock;

/// Longer ones are not the engine's.
const MOST_BYTES: usize = 16 << 10;
/// Comments of a profile that are read.
const MOST_COMMENTS: usize = 4;
/// Profilers that are remembered; of more, those that were not heard of for longest are forgotten.
const MOST_PROFILERS: usize = 500;
/// Nothing was heard of one for so long: its process has ended.
const SILENT: i64 = 15 * 60 * 1_000;

/// A number of the engine's, or how many samples and what they weigh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Stat {
    /// As it is.
    Number(u64),
    /// Samples, and the sum of their values.
    Tally([u64; 2]),
}

/// What a profiler said last.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct ProfilerReport {
    #[serde(default = "version_of_none")]
    version: u32,
    instance: String,
    pid: Option<u32>,
    package: String,
    last_error: String,
    stats: BTreeMap<String, Stat>,
}

/// A profiler, as it was heard of last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ProfilerState {
    #[serde(skip)]
    service: String,
    /// A random number of the profiler's own.
    pub(crate) instance: String,
    /// Its process, where it reports that.
    pub(crate) pid: Option<u32>,
    /// Name and version of its package.
    pub(crate) package: String,
    /// Its newest error, "" for none.
    pub(crate) last_error: String,
    /// All that `stats()` tells there, as the window began that was last uploaded.
    pub(crate) stats: BTreeMap<String, Stat>,
    /// When that came.
    pub(crate) last_unix_ms: i64,
}

impl ProfilerState {
    /// A number, or how many samples; 0 if it was not said.
    pub(crate) fn count(&self, name: &str) -> u64 {
        match self.stats.get(name) {
            Some(Stat::Number(number) | Stat::Tally([number, _])) => *number,
            None => 0,
        }
    }
}

/// What a profiler of a service said.
#[derive(Debug)]
pub(super) struct ServiceReport {
    service: String,
    report: ProfilerReport,
}

/// How a comment is to be read that does not say it.
fn version_of_none() -> u32 {
    1
}

/// What the comments of a profile say. A comment that is not the engine's, or of a version that is not known here, says nothing; of
/// many the last few count.
pub(super) fn reports(service: &str, profile: &Profile) -> Vec<ServiceReport> {
    let newest = profile.comment.iter().rev().take(MOST_COMMENTS).rev();
    let texts = newest.filter_map(|index| profile.string_table.get(usize::try_from(*index).ok()?));
    let texts = texts.filter(|text| text.len() <= MOST_BYTES).filter_map(|text| text.strip_prefix(PREFIX));
    let reports = texts.filter_map(|json| serde_json::from_str(json).ok());
    let known = reports.filter(|report: &ProfilerReport| (1..=VERSION).contains(&report.version));
    known.map(|report| ServiceReport { service: service.into(), report }).collect()
}

/// The profilers that were heard of.
#[derive(Debug, Default)]
pub(crate) struct Profilers(Mutex<Vec<ProfilerState>>);

impl Profilers {
    /// Takes note of what a profile's comment says.
    pub(super) fn record(&self, report: ServiceReport) {
        self.record_at(report, clock::now() / clock::MILLISECOND);
    }

    fn record_at(&self, ServiceReport { service, report }: ServiceReport, now: i64) {
        let ProfilerReport { version: _, instance, pid, package, last_error, stats } = report;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| !(known.service == service && known.instance == instance));
        if all.len() >= MOST_PROFILERS {
            // The newest are at the end.
            all.remove(0);
        }
        all.push(ProfilerState { service, instance, pid, package, last_error, stats, last_unix_ms: now });
    }

    /// Those of a service that still run, by process.
    pub(crate) fn of(&self, service: &str) -> Vec<ProfilerState> {
        let since = clock::now() / clock::MILLISECOND - SILENT;
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of_it: Vec<ProfilerState> =
            all.iter().filter(|one| one.service == service && one.last_unix_ms >= since).cloned().collect();
        of_it.sort_by(|a, b| (a.pid, &a.instance).cmp(&(b.pid, &b.instance)));
        of_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(comments: &[&str]) -> Profile {
        let strings = std::iter::once("").chain(comments.iter().copied()).map(str::to_owned);
        let comment = (1..=comments.len()).map(|index| index.try_into().unwrap()).chain([-1, 99]).collect();
        Profile { string_table: strings.collect(), comment, ..Profile::default() }
    }

    fn record(profilers: &Profilers, service: &str, comments: &[&str]) {
        reports(service, &profile(comments)).into_iter().for_each(|report| profilers.record(report));
    }

    fn comment(instance: &str, taken: u64) -> String {
        format!(
            r#"spanprof.stats {{"instance":"{instance}","pid":7,"package":"pyroscope-otel 2.0.0","last_error":"","stats":{{"taken":[{taken},5],"threads":3}}}}"#
        )
    }

    #[test]
    fn the_newest_of_each_profiler_counts() {
        let profilers = Profilers::default();
        for (instance, taken) in [("a", 1), ("b", 2), ("a", 3)] {
            record(&profilers, "shop", &["built by hand", &comment(instance, taken)]);
        }
        record(&profilers, "other", &[&comment("c", 9)]);
        let counts: Vec<_> =
            profilers.of("shop").iter().map(|one| (one.count("taken"), one.count("threads"))).collect();
        assert_eq!(counts, [(3, 3), (2, 3)]);
        assert_eq!(profilers.of("shop")[0].count("no such name"), 0);
    }

    /// `comment`, as one of another version says it.
    fn versioned(version: &str, instance: &str) -> String {
        comment(instance, 1).replacen('{', &format!(r#"{{"version":{version},"new":[],"#), 1)
    }

    #[test]
    fn a_comment_is_of_the_first_version_unless_it_says_otherwise_and_of_one_that_is_not_known_it_is_left_alone() {
        let profilers = Profilers::default();
        let newer = (VERSION + 1).to_string();
        let other = r#"spanprof.stats {"version":99,"who":"f"}"#;
        let texts = [
            comment("a", 1),
            versioned("1", "b"),
            versioned(&VERSION.to_string(), "c"),
            versioned(&newer, "d"),
            versioned("0", "e"),
            versioned("-1", "f"),
            versioned(r#""1""#, "g"),
            versioned("null", "h"),
            versioned("18446744073709551616", "i"),
            other.to_owned(),
        ];
        for text in &texts {
            record(&profilers, "shop", &[text]);
        }
        let known: Vec<_> = profilers.of("shop").iter().map(|one| one.instance.clone()).collect();
        assert_eq!(known, ["a", "b", "c"]);
    }

    #[test]
    fn what_is_no_such_comment_is_left_alone() {
        let profilers = Profilers::default();
        let long = comment("a", 1) + &" ".repeat(MOST_BYTES);
        for text in ["", "spanprof.stats", "spanprof.stats {}", "spanprof.stats [", "spanprof.stats null", &long] {
            record(&profilers, "shop", &[text]);
        }
        assert_eq!(profilers.of("shop"), []);
    }

    #[test]
    fn as_many_are_remembered_as_there_is_room_for_and_silent_ones_are_gone() {
        let profilers = Profilers::default();
        for number in 0..MOST_PROFILERS + 10 {
            record(&profilers, "shop", &[&comment(&number.to_string(), 1)]);
        }
        assert_eq!(profilers.of("shop").len(), MOST_PROFILERS);
        assert!(!profilers.of("shop").iter().any(|one| one.instance == "9"));
        profilers.0.lock().unwrap().iter_mut().for_each(|one| one.last_unix_ms -= SILENT + 1_000);
        assert_eq!(profilers.of("shop"), []);
    }
}
