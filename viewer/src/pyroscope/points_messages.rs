//! The messages of `SelectSeries`, as those of [`messages`](super::messages), and the examples that its points and heat maps have.

use serde::{Deserialize, Serialize};

use super::json::{enumerated, int64, number, optional_int64};
use super::messages::LabelPair;

/// `SelectSeriesRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SelectSeriesRequest {
    #[prost(string, tag = "1")]
    #[serde(rename = "profileTypeID", alias = "profile_typeID")]
    pub(super) profile_type_id: String,
    #[prost(string, tag = "2")]
    #[serde(alias = "label_selector")]
    pub(super) label_selector: String,
    #[prost(int64, tag = "3")]
    #[serde(with = "int64")]
    pub(super) start: i64,
    #[prost(int64, tag = "4")]
    #[serde(with = "int64")]
    pub(super) end: i64,
    #[prost(string, repeated, tag = "5")]
    #[serde(alias = "group_by")]
    pub(super) group_by: Vec<String>,
    #[prost(double, tag = "6")]
    #[serde(deserialize_with = "number")]
    pub(super) step: f64,
    #[prost(int32, optional, tag = "7")]
    #[serde(deserialize_with = "super::json::aggregation")]
    pub(super) aggregation: Option<i32>,
    #[prost(int64, optional, tag = "9")]
    #[serde(with = "optional_int64")]
    pub(super) limit: Option<i64>,
    /// `ExemplarType`: 2 = profiles; 0 and 1 = none.
    #[prost(int32, tag = "10")]
    #[serde(alias = "exemplar_type", deserialize_with = "exemplar_type")]
    pub(super) exemplar_type: i32,
}

/// `SelectSeriesResponse`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct SelectSeriesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) series: Vec<Series>,
}

/// `types.v1.Series`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct Series {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    pub(super) points: Vec<SeriesPoint>,
}

/// `types.v1.Point`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct SeriesPoint {
    #[prost(double, tag = "1")]
    pub(super) value: f64,
    #[prost(int64, tag = "2")]
    #[serde(with = "int64")]
    pub(super) timestamp: i64,
    #[prost(message, repeated, tag = "4")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) exemplars: Vec<Exemplar>,
}

/// `ExemplarType`.
pub(super) fn exemplar_type<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let names = ["EXEMPLAR_TYPE_UNSPECIFIED", "EXEMPLAR_TYPE_NONE", "EXEMPLAR_TYPE_INDIVIDUAL", "EXEMPLAR_TYPE_SPAN"];
    enumerated(deserializer, &names)
}

/// `types.v1.Exemplar`: a profile, or the samples of a span in one.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Exemplar {
    #[prost(int64, tag = "1")]
    #[serde(with = "int64")]
    pub(super) timestamp: i64,
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) profile_id: String,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) span_id: String,
    #[prost(int64, tag = "4")]
    #[serde(with = "int64")]
    pub(super) value: i64,
    #[prost(message, repeated, tag = "5")]
    pub(super) labels: Vec<LabelPair>,
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) trace_id: String,
}
