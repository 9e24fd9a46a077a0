//! Protobuf's JSON where serde's differs: 64-bit integers are written as strings and read as either, enumerations are
//! names or numbers, bytes are base64.

use base64::Engine as _;
use serde::{Deserialize, Deserializer, Serializer};
use serde_json::{Value, json};
use spanprof_core::wire::pprof::{Label, Line, Profile, ValueType};

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
    serde::Serialize::serialize(&profile.as_ref().map(profile_value), serializer)
}

/// A profile in JSON.
pub(super) fn profile_value(profile: &Profile) -> Value {
    let text = |number: i64| number.to_string();
    let kind = |kind: &ValueType| json!({ "type": text(kind.r#type), "unit": text(kind.unit) });
    let line = |line: &Line| json!({ "functionId": line.function_id.to_string(), "line": text(line.line) });
    let label = |label: &Label| json!({ "key": text(label.key), "str": text(label.str), "num": text(label.num), "numUnit": text(label.num_unit) });
    json!({
        "sampleType": profile.sample_type.iter().map(kind).collect::<Vec<_>>(),
        "sample": profile.sample.iter().map(|sample| json!({
            "locationId": sample.location_id.iter().map(u64::to_string).collect::<Vec<_>>(),
            "value": sample.value.iter().map(i64::to_string).collect::<Vec<_>>(),
            "label": sample.label.iter().map(label).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "mapping": profile.mapping.iter().map(|mapping| json!({
            "id": mapping.id.to_string(), "filename": text(mapping.filename), "hasFunctions": mapping.has_functions,
        })).collect::<Vec<_>>(),
        "location": profile.location.iter().map(|location| json!({
            "id": location.id.to_string(), "mappingId": location.mapping_id.to_string(),
            "address": location.address.to_string(), "line": location.line.iter().map(line).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "function": profile.function.iter().map(|function| json!({
            "id": function.id.to_string(), "name": text(function.name), "systemName": text(function.system_name),
            "filename": text(function.filename), "startLine": text(function.start_line),
        })).collect::<Vec<_>>(),
        "stringTable": profile.string_table,
        "timeNanos": text(profile.time_nanos),
        "durationNanos": text(profile.duration_nanos),
        "periodType": profile.period_type.as_ref().map(kind),
        "period": text(profile.period),
        "defaultSampleType": text(profile.default_sample_type),
    })
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
