//! Halves a profile that a proxy found too large.
//!
//! The encoder splits at the limits of servers; a proxy in front of one may have a smaller limit, which it only tells
//! by refusing. The window is long gone then, so the encoded profile is taken apart.

use std::collections::HashSet;
use std::io::Read;

use flate2::bufread::GzDecoder;
use prost::Message;

use super::pprof::{Encoded, gzip};
use crate::stats::Tally;
use crate::wire::pprof::{Profile, Sample, ValueType};

/// The two halves of a profile, each with the tables that it needs; `None` if it has less than two samples, or there is no memory.
///
/// Weights are exact. How many samples were taken is not in a profile, so their number is shared out by stacks.
pub(crate) fn split(encoded: &Encoded) -> Option<[Encoded; 2]> {
    let mut bytes = Vec::new();
    GzDecoder::new(encoded.body.as_slice()).read_to_end(&mut bytes).ok()?;
    let profile = Profile::decode(bytes.as_slice()).ok()?;
    if profile.sample.len() < 2 {
        return None;
    }
    let (first, second) = profile.sample.split_at(profile.sample.len() / 2);
    let weight = first.iter().filter_map(|sample| u64::try_from(*sample.value.last()?).ok()).sum();
    let samples = encoded.tally.samples / 2;
    let first_tally = Tally { samples, weight };
    let second_tally = Tally {
        samples: encoded.tally.samples - samples,
        weight: encoded.tally.weight.saturating_sub(first_tally.weight),
    };
    let encode = |samples: &[Sample], tally| {
        let body = gzip(&with_samples(&profile, samples).encode_to_vec())?;
        Some(Encoded { body, tally, ..*encoded })
    };
    Some([encode(first, first_tally)?, encode(second, second_tally)?])
}

/// The profile with these samples only, and only what they refer to.
fn with_samples(profile: &Profile, samples: &[Sample]) -> Profile {
    let locations: HashSet<u64> = samples.iter().flat_map(|sample| &sample.location_id).copied().collect();
    let mut part = Profile {
        sample: samples.to_vec(),
        location: profile.location.iter().filter(|location| locations.contains(&location.id)).cloned().collect(),
        string_table: Vec::new(),
        function: Vec::new(),
        ..profile.clone()
    };
    let lines = part.location.iter().flat_map(|location| &location.line);
    let functions: HashSet<u64> = lines.map(|line| line.function_id).collect();
    part.function = profile.function.iter().filter(|function| functions.contains(&function.id)).copied().collect();

    let mut strings =
        Moved { from: &profile.string_table, to: vec![String::new()], places: vec![0; profile.string_table.len()] };
    for value_type in part.sample_type.iter_mut().chain(part.period_type.as_mut()) {
        *value_type = ValueType { r#type: strings.at(value_type.r#type), unit: strings.at(value_type.unit) };
    }
    for label in part.sample.iter_mut().flat_map(|sample| &mut sample.label) {
        (label.key, label.str) = (strings.at(label.key), strings.at(label.str));
    }
    for function in &mut part.function {
        function.name = strings.at(function.name);
        function.system_name = strings.at(function.system_name);
        function.filename = strings.at(function.filename);
    }
    for comment in &mut part.comment {
        *comment = strings.at(*comment);
    }
    part.string_table = strings.to;
    part
}

/// A string table that is filled from another one as strings are met.
#[derive(Debug)]
struct Moved<'a> {
    from: &'a [String],
    to: Vec<String>,
    /// By old index; 0 = not met.
    places: Vec<i64>,
}

impl Moved<'_> {
    fn at(&mut self, old: i64) -> i64 {
        let Some((text, place)) =
            usize::try_from(old).ok().and_then(|old| self.from.get(old).zip(self.places.get_mut(old)))
        else {
            return 0;
        };
        if *place == 0 && !text.is_empty() {
            *place = i64::try_from(self.to.len()).unwrap_or(0);
            self.to.push(text.clone());
        }
        *place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile_type::ProfileType;
    use crate::wire::pprof::{Function, Label, Line, Location};

    fn profile(samples: i64) -> Encoded {
        let strings = ["", "cpu", "nanoseconds", "span_id"].map(str::to_owned);
        let names = (0..samples).map(|i| format!("f{i}")).chain((0..samples).map(|i| format!("{i:016x}")));
        let profile = Profile {
            sample_type: vec![ValueType { r#type: 1, unit: 2 }],
            period_type: Some(ValueType { r#type: 1, unit: 2 }),
            string_table: strings.into_iter().chain(names).collect(),
            function: (0..samples)
                .map(|i| Function { id: (i + 1).unsigned_abs(), name: 4 + i, ..Function::default() })
                .collect(),
            location: (0..samples)
                .map(|i| (i + 1).unsigned_abs())
                .map(|id| Location {
                    id,
                    line: vec![Line { function_id: id, line: 1, column: 0 }],
                    ..Location::default()
                })
                .collect(),
            sample: (0..samples)
                .map(|i| Sample {
                    location_id: vec![(i + 1).unsigned_abs()],
                    value: vec![10 + i],
                    label: vec![Label { key: 3, str: 4 + samples + i, ..Label::default() }],
                })
                .collect(),
            time_nanos: 77,
            ..Profile::default()
        };
        Encoded {
            profile_type: ProfileType::process_cpu(1),
            start_unix_nanos: 77,
            body: gzip(&profile.encode_to_vec()).expect("memory"),
            tally: Tally {
                samples: 2 * samples.unsigned_abs() + 1,
                weight: (0..samples).map(|i| (10 + i).unsigned_abs()).sum(),
            },
        }
    }

    /// Every sample as function, span and value, and the strings that its profile carries.
    fn said(encoded: &Encoded) -> (Vec<(String, String, i64)>, usize) {
        let mut bytes = Vec::new();
        GzDecoder::new(encoded.body.as_slice()).read_to_end(&mut bytes).expect("gzip");
        let profile = Profile::decode(bytes.as_slice()).expect("pprof");
        let text = |index: i64| profile.string_table[usize::try_from(index).expect("index")].clone();
        assert_eq!(profile.sample_type, profile.period_type.into_iter().collect::<Vec<_>>());
        assert_eq!(
            (text(profile.sample_type[0].r#type), text(profile.sample_type[0].unit)),
            ("cpu".to_owned(), "nanoseconds".to_owned())
        );
        assert_eq!((profile.time_nanos, text(0)), (77, String::new()));
        let samples = profile.sample.iter().map(|sample| {
            let location =
                profile.location.iter().find(|location| location.id == sample.location_id[0]).expect("location");
            let function =
                profile.function.iter().find(|function| function.id == location.line[0].function_id).expect("function");
            assert_eq!(text(sample.label[0].key), "span_id");
            (text(function.name), text(sample.label[0].str), sample.value[0])
        });
        (samples.collect(), profile.string_table.len())
    }

    #[test]
    fn halves_hold_every_sample_once_and_only_their_own_strings() {
        let whole = profile(5);
        let [first, second] = split(&whole).expect("can be halved");
        let (mut samples, strings) = said(&first);
        assert_eq!((samples.len(), strings), (2, 4 + 2 * 2));
        samples.extend(said(&second).0);
        assert_eq!(samples, said(&whole).0);
        assert_eq!((first.tally.weight, second.tally.weight), (10 + 11, 12 + 13 + 14));
        assert_eq!(first.tally.samples + second.tally.samples, whole.tally.samples);
    }

    #[test]
    fn one_sample_and_what_is_no_profile_cannot_be_halved() {
        assert!(split(&profile(1)).is_none());
        assert!(split(&Encoded { body: b"no gzip".to_vec(), ..profile(2) }).is_none());
    }
}
