//! What the values of a profile mean, and how many samples they stand for.

use std::sync::Arc;

use spanprof_core::wire::pprof::{Profile, ValueType};

use super::strings::string;
use crate::http::refusal::{Refusal, invalid};
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
    /// Another value of the sample says it.
    Value(usize),
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
            Count::Periods(period) => periods(period),
            Count::Waits(index, period) if values[index] > 0 => values[index].min(periods(period)),
            Count::Waits(_, period) => periods(period),
            Count::One => 1,
        }
    }
}

/// What Pyroscope calls profiles of a sample type, where their sender does not say it.
pub(super) fn profile_name(sample_type: &str) -> &str {
    match sample_type {
        "cpu" | "samples" => "process_cpu",
        "goroutine" | "goroutines" => "goroutines",
        "contentions" | "delay" => "block",
        heap if heap.starts_with("alloc_") || heap.starts_with("inuse_") => "memory",
        other => other,
    }
}

/// Whether a sample type beside another says how many samples that stands for: Go's and .NET's names for it.
fn counts_samples(sample_type: &str) -> bool {
    matches!(sample_type, "samples" | "alloc_samples" | "lock_count")
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
    // pprof's convention: the last sample type is the one to show where none is named.
    let main = types.iter().position(|(name, _)| *name == default).unwrap_or(types.len() - 1);
    let counter = types.iter().position(|(name, unit)| *unit == "count" && counts_samples(name));
    let waits = types.iter().position(|(name, unit)| (*name, *unit) == ("wait_count", "count"));
    let counted = types.iter().enumerate().map(|(index, (name, unit))| SampleType {
        profile_type: Arc::new(ProfileType {
            name: profile_name.into(),
            text: [profile_name, *name, *unit, period_type, period_unit].join(":"),
            unit: (*unit).into(),
            main: index == main,
        }),
        period: if *unit == period_unit { pprof.period.max(0) } else { 0 },
        count: match counter {
            Some(counter) => Count::Value(counter),
            None if *unit == period_unit && pprof.period > 0 => match waits {
                Some(waits) => Count::Waits(waits, pprof.period),
                None => Count::Periods(pprof.period),
            },
            None => Count::One,
        },
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
