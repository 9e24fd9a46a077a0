//! What profilers say of themselves: the engine's `stats()`, which come as a comment of each window's first profile.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed; // a number that orders nothing
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use spanprof_core::wire::pprof::Profile;
use spanprof_core::wire::stats_comment::{PREFIX, VERSION};

use super::senders::Senders;
use super::strings::truncated;
use crate::clock;
use crate::sender::Sender;

/// Longer ones are not the engine's.
const MOST_BYTES: usize = 16 << 10;
/// Comments of a profile that are read.
const MOST_COMMENTS: usize = 4;
/// Counts of a comment, and bytes of what is in it; one that has more is not the engine's, which has some forty short ones.
const MOST_COUNTS: usize = 64;
const LONGEST: usize = 100;
/// Bytes that are kept of an error.
const LONGEST_ERROR: usize = 500;
/// Bytes of a count, with its place in a map, and of a report beside its counts and texts.
const COUNT: usize = 80;
const REPORT: usize = 320;
/// Profilers that are remembered, of all tenants; of more, the one of the tenant with the most that was not heard of for longest
/// is forgotten.
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
    #[serde(deserialize_with = "short")]
    instance: String,
    pid: Option<u32>,
    #[serde(deserialize_with = "short")]
    package: String,
    last_error: String,
    #[serde(deserialize_with = "counts")]
    stats: BTreeMap<String, Stat>,
}

/// A profiler, as it was heard of last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ProfilerState {
    #[serde(skip)]
    tenant: u64,
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

impl ServiceReport {
    /// Which profiler it is.
    pub(super) fn of(&self) -> (String, String) {
        (self.service.clone(), self.report.instance.clone())
    }

    /// What it takes in memory, with the name of its profiler beside it.
    pub(super) fn bytes(&self) -> usize {
        let Self { service, report } = self;
        let texts = 2 * (service.len() + report.instance.len()) + report.package.len() + report.last_error.len();
        REPORT + texts + report.stats.keys().map(|name| COUNT + name.len()).sum::<usize>()
    }
}

/// A text that is no longer than those of the engine.
fn short<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.len() > LONGEST { Err(D::Error::custom("it is too long")) } else { Ok(text) }
}

/// As many counts as the engine may have, counted while they are read.
fn counts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Stat>, D::Error> {
    struct Counts;
    impl<'de> Visitor<'de> for Counts {
        type Value = BTreeMap<String, Stat>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MOST_COUNTS} counts by name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut counts = BTreeMap::new();
            while let Some(name) = map.next_key::<String>()? {
                if counts.len() == MOST_COUNTS || name.len() > LONGEST {
                    return Err(A::Error::custom("there are more counts than the engine has, or longer names"));
                }
                counts.insert(name, map.next_value()?);
            }
            Ok(counts)
        }
    }
    deserializer.deserialize_map(Counts)
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
    known
        .map(|mut report| {
            report.last_error = truncated(&report.last_error, LONGEST_ERROR).into();
            ServiceReport { service: service.into(), report }
        })
        .collect()
}

/// The profilers of a tenant that were heard of.
#[derive(Debug, Default)]
pub(crate) struct Profilers {
    tenant: u64,
    all: Arc<AllProfilers>,
}

/// Those of all tenants.
#[derive(Debug, Default)]
struct AllProfilers {
    /// The newest at the end.
    heard: Mutex<Vec<ProfilerState>>,
    senders: Senders,
    tenants: AtomicU64,
}

impl Profilers {
    /// Those of another tenant, which share the room.
    pub(crate) fn of_another(&self) -> Self {
        Self { tenant: self.all.tenants.fetch_add(1, Relaxed) + 1, all: Arc::clone(&self.all) }
    }

    /// Takes note of what a profile's comment says.
    pub(super) fn record(&self, report: ServiceReport) {
        self.record_at(report, clock::now() / clock::MILLISECOND);
    }

    fn record_at(&self, ServiceReport { service, report }: ServiceReport, now: i64) {
        let ProfilerReport { version: _, instance, pid, package, last_error, stats } = report;
        let (tenant, mut all) = (self.tenant, self.all.heard.lock().unwrap_or_else(PoisonError::into_inner));
        let is_it =
            |known: &ProfilerState| (known.tenant, &known.service, &known.instance) == (tenant, &service, &instance);
        all.retain(|known| known.last_unix_ms >= now - SILENT && !is_it(known));
        if all.len() >= MOST_PROFILERS {
            forget_one(&mut all);
        }
        all.push(ProfilerState { tenant, service, instance, pid, package, last_error, stats, last_unix_ms: now });
    }

    /// Takes note of what a service's profiles, or else its traces, were sent with.
    pub(super) fn note_sender(&self, service: &str, sender: Sender, is_of_profiles: bool) {
        self.all.senders.note(self.tenant, service, sender, is_of_profiles);
    }

    /// What a service is sent with, as far as it says so.
    pub(crate) fn sender(&self, service: &str) -> Option<Sender> {
        self.all.senders.of(self.tenant, service)
    }

    /// Those of a service that still run, by process.
    pub(crate) fn of(&self, service: &str) -> Vec<ProfilerState> {
        let since = clock::now() / clock::MILLISECOND - SILENT;
        let mut all = self.all.heard.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.last_unix_ms >= since);
        let of_it = all.iter().filter(|one| one.tenant == self.tenant && one.service == service);
        let mut of_it: Vec<ProfilerState> = of_it.cloned().collect();
        drop(all);
        of_it.sort_by(|a, b| (a.pid, &a.instance).cmp(&(b.pid, &b.instance)));
        of_it
    }
}

/// Makes room for one: nobody is forgotten because another tenant has many.
fn forget_one(all: &mut Vec<ProfilerState>) {
    let mut numbers: BTreeMap<u64, usize> = BTreeMap::new();
    all.iter().for_each(|one| *numbers.entry(one.tenant).or_default() += 1);
    let largest = numbers.into_iter().max_by_key(|(_, number)| *number).map(|(tenant, _)| tenant);
    if let Some(first) = all.iter().position(|one| Some(one.tenant) == largest) {
        all.remove(first);
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
        profilers.all.heard.lock().unwrap().iter_mut().for_each(|one| one.last_unix_ms -= SILENT + 1_000);
        record(&profilers, "other", &[&comment("a", 1)]);
        assert_eq!(profilers.all.heard.lock().unwrap().len(), 1, "what is silent takes no room");
        assert_eq!(profilers.of("shop"), []);
    }

    #[test]
    fn all_tenants_share_the_room_and_none_sees_or_displaces_those_of_another() {
        let one = Profilers::default();
        let [few, many] = [one.of_another(), one.of_another()];
        for number in 0..10 {
            record(&few, "shop", &[&comment(&number.to_string(), 1)]);
        }
        for number in 0..2 * MOST_PROFILERS {
            record(&many, "shop", &[&comment(&number.to_string(), 1)]);
        }
        let known = [&one, &few, &many].map(|profilers| profilers.of("shop").len());
        assert_eq!(known, [0, 10, MOST_PROFILERS - 10]);
    }

    #[test]
    fn a_comment_that_would_take_much_memory_is_not_the_engines() {
        let said = |instance: &str, package: &str, error: &str, names: &[String]| {
            let stats: BTreeMap<&String, u64> = names.iter().map(|name| (name, 1)).collect();
            let said = serde_json::json!({
                "instance": instance, "package": package, "last_error": error, "stats": stats,
            });
            let found = reports("shop", &profile(&[&format!("{PREFIX}{said}")]));
            found.into_iter().next().map(|report| report.report)
        };
        let names = |number: usize, length: usize| -> Vec<String> {
            (0..number).map(|name| format!("{name:0length$}")).collect()
        };
        let long = "x".repeat(LONGEST + 1);
        let known = said(&long[1..], &long[1..], &"e".repeat(5_000), &names(MOST_COUNTS, LONGEST)).unwrap();
        assert_eq!((known.stats.len(), known.last_error.len()), (MOST_COUNTS, LONGEST_ERROR));
        assert_eq!(said("a", "p", "", &names(MOST_COUNTS + 1, 1)), None);
        assert_eq!(said("a", "p", "", &names(1, LONGEST + 1)), None);
        assert_eq!(said(&long, "p", "", &[]), None);
        assert_eq!(said("a", &long, "", &[]), None);
    }
}
