//! The messages of `SelectHeatmap`, as those of [`messages`](super::messages).

use serde::{Deserialize, Serialize};

use super::json::{enumerated, int64, number, optional_int64};
use super::messages::LabelPair;
use super::points_messages::{Exemplar, exemplar_type};

/// `SelectHeatmapRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SelectHeatmapRequest {
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
    #[prost(double, tag = "5")]
    #[serde(deserialize_with = "number")]
    pub(super) step: f64,
    #[prost(string, repeated, tag = "6")]
    #[serde(alias = "group_by")]
    pub(super) group_by: Vec<String>,
    /// `HeatmapQueryType`: 1 = profiles, 2 = spans.
    #[prost(int32, tag = "7")]
    #[serde(alias = "query_type", deserialize_with = "query_type")]
    pub(super) query_type: i32,
    /// `ExemplarType`: 2 = profiles, 3 = spans; 0 and 1 = none.
    #[prost(int32, tag = "8")]
    #[serde(alias = "exemplar_type", deserialize_with = "exemplar_type")]
    pub(super) exemplar_type: i32,
    #[prost(int64, optional, tag = "9")]
    #[serde(with = "optional_int64")]
    pub(super) limit: Option<i64>,
}

fn query_type<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let names = ["HEATMAP_QUERY_TYPE_UNSPECIFIED", "HEATMAP_QUERY_TYPE_INDIVIDUAL", "HEATMAP_QUERY_TYPE_SPAN"];
    enumerated(deserializer, &names)
}

/// `SelectHeatmapResponse`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct SelectHeatmapResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) series: Vec<HeatmapSeries>,
}

/// `types.v1.HeatmapSeries`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct HeatmapSeries {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    pub(super) slots: Vec<HeatmapSlot>,
}

/// `types.v1.HeatmapSlot`: what is between its time and a step before it.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HeatmapSlot {
    #[prost(int64, tag = "1")]
    #[serde(with = "int64")]
    pub(super) timestamp: i64,
    #[prost(double, repeated, tag = "2")]
    pub(super) y_min: Vec<f64>,
    #[prost(int32, repeated, tag = "3")]
    pub(super) counts: Vec<i32>,
    #[prost(message, repeated, tag = "4")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) exemplars: Vec<Exemplar>,
}
