//! What the values of a profile mean, and how many samples they stand for.

use std::sync::Arc;

use spanprof_core::wire::pprof::{Profile, ValueType};

use super::strings::string;
use crate::http::refusal::{Refusal, invalid};
use crate::profile_types::{CPU, WALL, is_measure};
use crate::store::ProfileType;

/// Sample types of a profile; profilers send four.
const MOST_TYPES: usize = 32;
/// The longest profile type: its name, and names and units of sample type and period. Each is kept as a whole.
const LONGEST_TYPE: usize = 1_024;

/// A sample type, and how its values are counted in samples.
pub(super) struct SampleType {
    /// What its values mean.
    pub(super) profile_type: Arc<ProfileType>,
    /// Value of one period, 0 if unknown.
    pub(super) period: i64,
    count: Count,
}

enum Count {
    /// Another value of the sample says it, or the value itself.
    Value(usize),
    /// Of an allocation that is sampled by its bytes: of so many objects with so many bytes, each of the size that both say, those
    /// that were drawn. Both values stand for all of them.
    Drawn { objects: usize, bytes: usize, period: i64 },
    /// The value is a multiple of the period.
    Periods(i64),
    /// The same of samples of a CPU. Another value says how many waits it stands for: a long wait is one, and a short one that
    /// stands for many of its kind counts by periods.
    Waits(usize, i64),
    /// Nothing says it, so a row is one.
    One,
}

impl SampleType {
    /// How many samples a value stands for, among the values of its sample.
    pub(super) fn count(&self, value: i64, values: &[i64]) -> i64 {
        let periods = |period: i64| (value.saturating_add(period / 2) / period).max(1);
        match self.count {
            Count::Value(index) => values[index].max(1),
            Count::Drawn { objects, bytes, period } => drawn(values[objects], values[bytes], period),
            Count::Periods(period) => periods(period),
            Count::Waits(index, period) if values[index] > 0 => values[index].min(periods(period)),
            Count::Waits(_, period) => periods(period),
            Count::One => 1,
        }
    }
}

/// Of so many objects with so many bytes the number that was sampled, each with probability 1 − e^(−size / period).
#[expect(clippy::cast_possible_truncation, reason = "it is at most the number of objects")]
fn drawn(objects: i64, bytes: i64, period: i64) -> i64 {
    let size = bytes as f64 / objects.max(1) as f64;
    let drawn = objects as f64 * -(-size / period as f64).exp_m1();
    (drawn.round() as i64).max(1)
}

/// What Pyroscope calls profiles of a sample type, where their sender does not say it.
pub(super) fn profile_name(sample_type: &str) -> &str {
    metric_name(&[sample_type], |_| None)
}

/// What Pyroscope calls a profile by its sample types; `shown` is how its sender calls one of them.
pub(super) fn metric_name<'a>(sample_types: &[&'a str], shown: impl Fn(&str) -> Option<&'a str>) -> &'a str {
    if sample_types.contains(&"wall") {
        return "wall";
    }
    let metric = |word: &str| match word {
        "samples" | "itimer" => Some("process_cpu"),
        "space" | "objects" => Some("memory"),
        // Go's block and mutex profiles have these names both; where nothing tells them apart, Pyroscope takes them for this.
        "contentions" | "delay" => Some("mutex"),
        "goroutine" => Some("goroutines"),
        // Time in which nothing ran.
        "off_cpu" => None,
        word if word.contains("cpu") => Some("process_cpu"),
        word if word.contains("alloc_") || word.contains("inuse_") => Some("memory"),
        word if word.contains("mutex_") => Some("mutex"),
        word if word.contains("block_") => Some("block"),
        word if word.contains("goroutines") => Some("goroutines"),
        _ => None,
    };
    let called = |name: &&'a str| shown(name).unwrap_or(name);
    let known = sample_types.iter().find_map(|name| metric(called(name)));
    known.or(sample_types.last().map(called)).unwrap_or("")
}

/// The sample type beside another that says how many samples that stands for.
fn counter_of(types: &[(&str, &str)], name: &str) -> Option<usize> {
    let find = |wanted: &str| types.iter().position(|(name, unit)| *unit == "count" && *name == wanted);
    let measure = name.rsplit_once('_').filter(|(_, what)| ["size", "space", "time", "duration"].contains(what));
    let what = measure.map_or(name, |(what, _)| what);
    let others = ["samples", "count", "objects"].into_iter().find_map(|counted| find(&format!("{what}_{counted}")));
    let others = others.or_else(|| {
        find(match name {
            "space" => "objects",
            "delay" => "contentions",
            _ => "samples",
        })
    });
    others.or_else(|| find("sample"))
}

/// Which of the sample types the name of the profile alone means: the one of its own name, the one that the profile says, or
/// the last one that is a time or a size. Counters stand before what they count in some profiles and after it in others.
fn main_type(types: &[(&str, &str)], profile_name: &str, default: &str) -> usize {
    let find = |wanted: &str| types.iter().position(|(name, _)| *name == wanted);
    let own = find(if profile_name == CPU { "cpu" } else { profile_name });
    let own = own.or_else(|| find(default).filter(|_| !default.is_empty()));
    own.or_else(|| types.iter().rposition(|(_, unit)| is_measure(unit))).unwrap_or(types.len() - 1)
}

/// The sample types of a profile, in order; `strings` are what it refers to.
pub(super) fn sample_types(
    pprof: &Profile,
    strings: &[String],
    profile_name: &str,
) -> Result<Vec<SampleType>, Refusal> {
    let number = pprof.sample_type.len();
    if number > MOST_TYPES {
        return Err(invalid(format!("the profile has {number} sample types, and at most {MOST_TYPES} are taken")));
    }
    let word = |index, what| match string(strings, index, what)? {
        word if word.len() > LONGEST_TYPE => Err(invalid(format!("{what} has more than {LONGEST_TYPE} bytes"))),
        word => Ok(word),
    };
    let text =
        |value: &ValueType| Ok::<_, Refusal>((word(value.r#type, "a sample type")?, word(value.unit, "a unit")?));
    let types = pprof.sample_type.iter().map(text).collect::<Result<Vec<_>, _>>()?;
    if types.is_empty() {
        return Err(invalid("the profile has no sample type"));
    }
    let (period_type, period_unit) = pprof.period_type.as_ref().map_or(Ok(("", "")), text)?;
    let longest = types.iter().map(|(name, unit)| name.len() + unit.len()).max().unwrap_or(0);
    if profile_name.len() + longest + period_type.len() + period_unit.len() + 4 > LONGEST_TYPE {
        return Err(invalid(format!("the five parts of a profile type have more than {LONGEST_TYPE} bytes together")));
    }
    let default = word(pprof.default_sample_type, "the default sample type")?;
    let main = main_type(&types, profile_name, default);
    let waits = types.iter().position(|(name, unit)| (*name, *unit) == ("wait_count", "count"));
    // Of nanoseconds or bytes, one is what senders write that have no period.
    let least = |unit: &str| if is_measure(unit) { 2 } else { 1 };
    let drawn_by = (period_unit == "bytes" && pprof.period >= least(period_unit)).then_some(pprof.period);
    let counted = types.iter().enumerate().map(|(index, (name, unit))| {
        let period = if *unit == period_unit && pprof.period >= least(unit) { pprof.period } else { 0 };
        let partner = |objects: usize| {
            let counted = |(name, unit): &(&str, &str)| *unit == "bytes" && counter_of(&types, name) == Some(objects);
            types.iter().position(counted).filter(|_| types[objects].0.ends_with("objects"))
        };
        let counter = if *unit == "count" { Some(index) } else { counter_of(&types, name) };
        // Node's profiles of wall time hold CPU time too.
        let is_cpu = profile_name == WALL && (*name, *unit) == ("cpu", "nanoseconds");
        SampleType {
            profile_type: Arc::new(ProfileType {
                name: if is_cpu { CPU } else { profile_name }.into(),
                text: [profile_name, *name, *unit, period_type, period_unit].join(":"),
                unit: (*unit).into(),
                main: index == main || is_cpu,
            }),
            period,
            count: match (counter, counter.and_then(partner), drawn_by, waits) {
                (_, _, _, Some(waits)) if period > 0 => Count::Waits(waits, period),
                (Some(objects), Some(bytes), Some(period), _) => Count::Drawn { objects, bytes, period },
                (Some(counter), ..) => Count::Value(counter),
                _ if period > 0 => Count::Periods(period),
                _ => Count::One,
            },
        }
    });
    Ok(counted.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_type_is_bounded_as_a_whole() {
        let types = |words: usize, name: usize| {
            let strings = ["".into(), "t".repeat(words), "u".repeat(words)];
            let pprof = Profile {
                sample_type: vec![ValueType { r#type: 1, unit: 2 }; 2],
                period_type: Some(ValueType { r#type: 1, unit: 2 }),
                ..Profile::default()
            };
            let read = sample_types(&pprof, &strings, &"n".repeat(name));
            read.map(|types| types[0].profile_type.text.len()).map_err(|refusal| refusal.message().to_owned())
        };
        assert_eq!(types(200, 220), Ok(1_024));
        let refused = "the five parts of a profile type have more than 1024 bytes together";
        assert_eq!(types(200, 221).unwrap_err(), refused);
        assert_eq!(types(1_025, 1).unwrap_err(), "a sample type has more than 1024 bytes");
    }

    #[test]
    fn a_long_wait_is_one_sample_and_so_is_a_short_one_that_stands_for_many() {
        let strings = ["", "wait_count", "count", "wall", "nanoseconds"].map(String::from);
        let period = 10_000_000;
        let pprof = Profile {
            sample_type: vec![ValueType { r#type: 1, unit: 2 }, ValueType { r#type: 3, unit: 4 }],
            period_type: Some(ValueType { r#type: 3, unit: 4 }),
            period,
            ..Profile::default()
        };
        let types = sample_types(&pprof, &strings, "wall").unwrap();
        assert!(types[1].profile_type.main && types[1].profile_type.text == "wall:wall:nanoseconds:wall:nanoseconds");
        let count = |waits, value| types[1].count(value, &[waits, value]);
        // Of CPU seven samples; of waits one of two seconds, one that stands for 5,000 of 2 µs, three of 20 ms.
        let counts = [count(0, 7 * period), count(1, 200 * period), count(5_000, period), count(3, 6 * period)];
        assert_eq!(counts, [7, 1, 1, 3]);
    }
}
