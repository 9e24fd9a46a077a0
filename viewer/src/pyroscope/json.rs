//! Protobuf's JSON where serde's differs: 64-bit integers are written as strings and read as either, enumerations are
//! names or numbers, bytes are base64.

use std::fmt::Display;

use base64::Engine as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use spanprof_core::wire::pprof::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};

/// `int64`.
pub(super) mod int64 {
    use super::{Deserialize as _, Deserializer, Serializer, Value, integer};

    pub(in crate::pyroscope) fn serialize<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(in crate::pyroscope) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        integer::<D::Error>(&Value::deserialize(deserializer)?)
    }
}

/// `optional int64`.
pub(super) mod optional_int64 {
    use super::{Deserialize as _, Deserializer, Value, integer};

    pub(in crate::pyroscope) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<i64>, D::Error> {
        integer::<D::Error>(&Value::deserialize(deserializer)?).map(Some)
    }
}

/// `ProfileFormat`; a name that is not known here asks for the default.
pub(super) mod format {
    use super::{Deserialize as _, Deserializer, Value, enumeration};

    pub(in crate::pyroscope) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        let names = [
            "PROFILE_FORMAT_UNSPECIFIED",
            "PROFILE_FORMAT_FLAMEGRAPH",
            "PROFILE_FORMAT_TREE",
            "PROFILE_FORMAT_DOT",
            "PROFILE_FORMAT_PPROF",
        ];
        Ok(enumeration(&Value::deserialize(deserializer)?, &names))
    }
}

/// An enumeration by its names, from 0 on; a name that is not known here asks for the default.
pub(super) fn enumerated<'de, D: Deserializer<'de>>(deserializer: D, names: &[&str]) -> Result<i32, D::Error> {
    Ok(enumeration(&Value::deserialize(deserializer)?, names))
}

/// `TimeSeriesAggregationType`.
pub(super) fn aggregation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    let names = ["TIME_SERIES_AGGREGATION_TYPE_SUM", "TIME_SERIES_AGGREGATION_TYPE_AVERAGE"];
    Ok(Some(enumeration(&Value::deserialize(deserializer)?, &names)))
}

/// `double`.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    number.ok_or_else(|| serde::de::Error::custom(format!("{value} is not a number")))
}

/// `repeated int64`.
pub(super) fn int64s<S: Serializer>(numbers: &[i64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(i64::to_string))
}

/// `bytes`.
pub(super) fn base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(bytes))
}

/// `google.v1.Profile`.
pub(super) fn profile<S: Serializer>(profile: &Option<Profile>, serializer: S) -> Result<S::Ok, S::Error> {
    profile.as_ref().map(InJson).serialize(serializer)
}

/// A message of pprof's, written as it is: a tree of JSON values would take many times what the text does.
pub(super) struct InJson<'a, M>(pub(super) &'a M);

/// Many of them.
struct Each<'a, M>(&'a [M]);

/// 64-bit integers, and one.
struct Texts<'a, N>(&'a [N]);
struct Text<N>(N);

impl<'a, M> Serialize for Each<'a, M>
where
    InJson<'a, M>: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(InJson))
    }
}

impl<N: Display> Serialize for Texts<'_, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Text))
    }
}

impl<N: Display> Serialize for Text<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Writes members by name.
macro_rules! members {
    ($message:ident: $type:ty, $($name:literal: $value:expr,)*) => {
        impl Serialize for InJson<'_, $type> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $message = self.0;
                let mut members = serializer.serialize_map(None)?;
                $(members.serialize_entry($name, &$value)?;)*
                members.end()
            }
        }
    };
}

members! { profile: Profile,
    "defaultSampleType": Text(profile.default_sample_type),
    "durationNanos": Text(profile.duration_nanos),
    "function": Each(&profile.function),
    "location": Each(&profile.location),
    "mapping": Each(&profile.mapping),
    "period": Text(profile.period),
    "periodType": profile.period_type.as_ref().map(InJson),
    "sample": Each(&profile.sample),
    "sampleType": Each(&profile.sample_type),
    "stringTable": profile.string_table,
    "timeNanos": Text(profile.time_nanos),
}

members! { value: ValueType,
    "type": Text(value.r#type),
    "unit": Text(value.unit),
}

members! { sample: Sample,
    "label": Each(&sample.label),
    "locationId": Texts(&sample.location_id),
    "value": Texts(&sample.value),
}

members! { label: Label,
    "key": Text(label.key),
    "num": Text(label.num),
    "numUnit": Text(label.num_unit),
    "str": Text(label.str),
}

members! { mapping: Mapping,
    "filename": Text(mapping.filename),
    "hasFunctions": mapping.has_functions,
    "id": Text(mapping.id),
}

members! { location: Location,
    "address": Text(location.address),
    "id": Text(location.id),
    "line": Each(&location.line),
    "mappingId": Text(location.mapping_id),
}

members! { line: Line,
    "functionId": Text(line.function_id),
    "line": Text(line.line),
}

members! { function: Function,
    "filename": Text(function.filename),
    "id": Text(function.id),
    "name": Text(function.name),
    "startLine": Text(function.start_line),
    "systemName": Text(function.system_name),
}

fn integer<E: serde::de::Error>(value: &Value) -> Result<i64, E> {
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
    // Some clients write whole numbers with an exponent.
    let number = number.or_else(|| format!("{:.0}", value.as_f64().filter(|float| float.fract() == 0.0)?).parse().ok());
    number.ok_or_else(|| E::custom(format!("{value} is not a 64-bit integer")))
}

fn enumeration(value: &Value, names: &[&str]) -> i32 {
    let by_name = || names.iter().position(|name| value.as_str() == Some(name)).and_then(|at| i32::try_from(at).ok());
    value.as_i64().and_then(|number| i32::try_from(number).ok()).or_else(by_name).unwrap_or(0)
}

/// Takes out members that are null, which mean the default.
pub(super) fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// A profile that is the whole answer.
pub(super) struct PlainProfile(pub(super) Profile);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_written_with_its_numbers_as_texts() {
        let profile = Profile {
            sample_type: vec![ValueType { r#type: 1, unit: 2 }],
            period_type: Some(ValueType { r#type: 1, unit: 2 }),
            sample: vec![Sample {
                location_id: vec![1, u64::MAX],
                value: vec![i64::MIN],
                label: vec![Label { key: 1, str: 2, num: 3, num_unit: 4 }],
            }],
            mapping: vec![Mapping { id: 1, filename: 2, has_functions: true, ..Mapping::default() }],
            location: vec![Location {
                id: 1,
                mapping_id: 2,
                address: 3,
                line: vec![Line { function_id: 1, line: 7, column: 0 }],
                ..Location::default()
            }],
            function: vec![Function { id: 1, name: 2, system_name: 3, filename: 4, start_line: 5 }],
            string_table: vec![String::new(), "cpu\"".into()],
            time_nanos: 1,
            duration_nanos: 2,
            period: 3,
            default_sample_type: 4,
            ..Profile::default()
        };
        let kind = serde_json::json!({ "type": "1", "unit": "2" });
        let expected = serde_json::json!({
            "sampleType": [kind], "periodType": kind, "period": "3", "defaultSampleType": "4",
            "sample": [{
                "locationId": ["1", "18446744073709551615"], "value": ["-9223372036854775808"],
                "label": [{ "key": "1", "str": "2", "num": "3", "numUnit": "4" }],
            }],
            "mapping": [{ "id": "1", "filename": "2", "hasFunctions": true }],
            "location": [{ "id": "1", "mappingId": "2", "address": "3", "line": [{ "functionId": "1", "line": "7" }] }],
            "function": [{ "id": "1", "name": "2", "systemName": "3", "filename": "4", "startLine": "5" }],
            "stringTable": ["", "cpu\""], "timeNanos": "1", "durationNanos": "2",
        });
        // The same bytes as the tree of values has.
        assert_eq!(serde_json::to_string(&InJson(&profile)).unwrap(), expected.to_string());
    }
}
