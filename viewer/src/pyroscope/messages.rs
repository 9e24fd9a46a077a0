//! The messages of `querier.v1` and `types.v1`, written by hand from the published `.proto` files: in protobuf, and in
//! protobuf's JSON, where names are lowerCamelCase and 64-bit integers are strings. Fields that are not listed here are
//! skipped, as newer clients may send them. Each stands whole, as its `.proto` has it: what two have in common has other tags.

use serde::{Deserialize, Serialize};

use super::json::{format, int64, int64s, optional_int64};

/// `ProfileTypesRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct ProfileTypesRequest {
    #[prost(int64, tag = "1")]
    #[serde(with = "int64")]
    pub(super) start: i64,
    #[prost(int64, tag = "2")]
    #[serde(with = "int64")]
    pub(super) end: i64,
}

/// `ProfileTypesResponse`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProfileTypesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) profile_types: Vec<ProfileType>,
}

/// `types.v1.ProfileType`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProfileType {
    #[prost(string, tag = "1")]
    #[serde(rename = "ID")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) sample_type: String,
    #[prost(string, tag = "5")]
    pub(super) sample_unit: String,
    #[prost(string, tag = "6")]
    pub(super) period_type: String,
    #[prost(string, tag = "7")]
    pub(super) period_unit: String,
}

/// `types.v1.LabelNamesRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct LabelNamesRequest {
    #[prost(string, repeated, tag = "1")]
    pub(super) matchers: Vec<String>,
    #[prost(int64, tag = "2")]
    #[serde(with = "int64")]
    pub(super) start: i64,
    #[prost(int64, tag = "3")]
    #[serde(with = "int64")]
    pub(super) end: i64,
}

/// `types.v1.LabelValuesRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct LabelValuesRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) matchers: Vec<String>,
    #[prost(int64, tag = "3")]
    #[serde(with = "int64")]
    pub(super) start: i64,
    #[prost(int64, tag = "4")]
    #[serde(with = "int64")]
    pub(super) end: i64,
}

/// `types.v1.LabelNamesResponse` and `types.v1.LabelValuesResponse`, which are the same.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct NamesResponse {
    #[prost(string, repeated, tag = "1")]
    pub(super) names: Vec<String>,
}

/// `SeriesRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SeriesRequest {
    #[prost(string, repeated, tag = "1")]
    pub(super) matchers: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    #[serde(alias = "label_names")]
    pub(super) label_names: Vec<String>,
    #[prost(int64, tag = "3")]
    #[serde(with = "int64")]
    pub(super) start: i64,
    #[prost(int64, tag = "4")]
    #[serde(with = "int64")]
    pub(super) end: i64,
}

/// `SeriesResponse`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SeriesResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) labels_set: Vec<Labels>,
}

/// `types.v1.Labels`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, prost::Message, Serialize)]
pub(super) struct Labels {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<LabelPair>,
}

/// `types.v1.LabelPair`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, prost::Message, Serialize)]
pub(super) struct LabelPair {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// `SelectMergeStacktracesRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SelectMergeStacktracesRequest {
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
    #[prost(int64, optional, tag = "5")]
    #[serde(alias = "max_nodes", with = "optional_int64")]
    pub(super) max_nodes: Option<i64>,
    #[prost(int32, tag = "6")]
    #[serde(with = "format")]
    pub(super) format: i32,
    #[prost(message, optional, tag = "7")]
    #[serde(alias = "stack_trace_selector")]
    pub(super) stack_trace_selector: Option<StackTraceSelector>,
    #[prost(string, repeated, tag = "8")]
    #[serde(alias = "profile_id_selector")]
    pub(super) profile_id_selector: Vec<String>,
    #[prost(string, repeated, tag = "10")]
    #[serde(alias = "trace_id_selector")]
    pub(super) trace_id_selector: Vec<String>,
    #[prost(string, repeated, tag = "11")]
    #[serde(alias = "span_selector")]
    pub(super) span_selector: Vec<String>,
}

/// `types.v1.StackTraceSelector`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StackTraceSelector {
    #[prost(message, repeated, tag = "1")]
    #[serde(alias = "call_site")]
    pub(super) call_site: Vec<CallSite>,
}

/// `types.v1.Location`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct CallSite {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

/// `SelectMergeStacktracesResponse`, and `SelectMergeSpanProfileResponse`, whose fields have the same numbers.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct SelectMergeStacktracesResponse {
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) flamegraph: Option<FlameGraph>,
    #[prost(bytes = "vec", tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "super::json::base64")]
    pub(super) tree: Vec<u8>,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) dot: String,
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pprof: Option<PprofProfile>,
}

/// `PprofProfile`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct PprofProfile {
    #[prost(message, optional, tag = "1")]
    #[serde(serialize_with = "super::json::profile")]
    pub(super) profile: Option<spanprof_core::wire::pprof::Profile>,
}

/// `SelectMergeSpanProfileRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SelectMergeSpanProfileRequest {
    #[prost(string, tag = "1")]
    #[serde(rename = "profileTypeID", alias = "profile_typeID")]
    pub(super) profile_type_id: String,
    #[prost(string, tag = "2")]
    #[serde(alias = "label_selector")]
    pub(super) label_selector: String,
    #[prost(string, repeated, tag = "3")]
    #[serde(alias = "span_selector")]
    pub(super) span_selector: Vec<String>,
    #[prost(int64, tag = "4")]
    #[serde(with = "int64")]
    pub(super) start: i64,
    #[prost(int64, tag = "5")]
    #[serde(with = "int64")]
    pub(super) end: i64,
    #[prost(int64, optional, tag = "6")]
    #[serde(alias = "max_nodes", with = "optional_int64")]
    pub(super) max_nodes: Option<i64>,
    #[prost(int32, tag = "7")]
    #[serde(with = "format")]
    pub(super) format: i32,
}

/// `SelectMergeProfileRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SelectMergeProfileRequest {
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
    #[prost(message, optional, tag = "6")]
    #[serde(alias = "stack_trace_selector")]
    pub(super) stack_trace_selector: Option<StackTraceSelector>,
    #[prost(string, repeated, tag = "7")]
    #[serde(alias = "profile_id_selector")]
    pub(super) profile_id_selector: Vec<String>,
    #[prost(string, repeated, tag = "8")]
    #[serde(alias = "trace_id_selector")]
    pub(super) trace_id_selector: Vec<String>,
}

/// `DiffRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct DiffRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) left: Option<SelectMergeStacktracesRequest>,
    #[prost(message, optional, tag = "2")]
    pub(super) right: Option<SelectMergeStacktracesRequest>,
}

/// `DiffResponse`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct DiffResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) flamegraph: Option<FlameGraphDiff>,
}

/// `FlameGraph`: each bar of a level is four values.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FlameGraph {
    #[prost(string, repeated, tag = "1")]
    pub(super) names: Vec<String>,
    #[prost(message, repeated, tag = "2")]
    pub(super) levels: Vec<Level>,
    #[prost(int64, tag = "3")]
    #[serde(with = "int64")]
    pub(super) total: i64,
    #[prost(int64, tag = "4")]
    #[serde(with = "int64")]
    pub(super) max_self: i64,
}

/// `FlameGraphDiff`: each bar of a level is seven values.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FlameGraphDiff {
    #[prost(string, repeated, tag = "1")]
    pub(super) names: Vec<String>,
    #[prost(message, repeated, tag = "2")]
    pub(super) levels: Vec<Level>,
    #[prost(int64, tag = "3")]
    #[serde(with = "int64")]
    pub(super) total: i64,
    #[prost(int64, tag = "4")]
    #[serde(with = "int64")]
    pub(super) max_self: i64,
    #[prost(int64, tag = "5")]
    #[serde(with = "int64")]
    pub(super) left_ticks: i64,
    #[prost(int64, tag = "6")]
    #[serde(with = "int64")]
    pub(super) right_ticks: i64,
}

/// `Level`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct Level {
    #[prost(int64, repeated, tag = "1")]
    #[serde(serialize_with = "int64s")]
    pub(super) values: Vec<i64>,
}

/// `AnalyzeQueryRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct AnalyzeQueryRequest {}

/// `AnalyzeQueryResponse`: what parts of a distributed server a question would be put to, of which there are none.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct AnalyzeQueryResponse {}

/// `types.v1.GetProfileStatsRequest`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct GetProfileStatsRequest {}

/// `types.v1.GetProfileStatsResponse`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetProfileStatsResponse {
    #[prost(bool, tag = "1")]
    pub(super) data_ingested: bool,
    #[prost(int64, tag = "2")]
    #[serde(with = "int64")]
    pub(super) oldest_profile_time: i64,
    #[prost(int64, tag = "3")]
    #[serde(with = "int64")]
    pub(super) newest_profile_time: i64,
}
