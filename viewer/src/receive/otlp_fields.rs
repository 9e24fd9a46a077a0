//! The fields of OTLP's messages that are read here, as JSON names them, from `opentelemetry-proto` 1.10.

use super::otlp_field::{Fields, Kind, many, one};

/// `ExportTraceServiceRequest`.
pub(super) static TRACES: Fields = Fields(&[many("resourceSpans", 1, Kind::Message(&RESOURCE_SPANS))]);
static RESOURCE_SPANS: Fields =
    Fields(&[one("resource", 1, Kind::Message(&RESOURCE)), many("scopeSpans", 2, Kind::Message(&SCOPE_SPANS))]);
static SCOPE_SPANS: Fields = Fields(&[many("spans", 2, Kind::Message(&SPAN))]);
static SPAN: Fields = Fields(&[
    one("traceId", 1, Kind::Hex),
    one("spanId", 2, Kind::Hex),
    one("parentSpanId", 4, Kind::Hex),
    one("name", 5, Kind::Text),
    one("startTimeUnixNano", 7, Kind::Fixed64),
    one("endTimeUnixNano", 8, Kind::Fixed64),
    many("attributes", 9, Kind::Message(&ATTRIBUTE)),
    one("status", 15, Kind::Message(&STATUS)),
    one("flags", 16, Kind::Fixed32),
]);
static STATUS: Fields =
    Fields(&[one("code", 3, Kind::Enum(&["STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR"]))]);

/// `ExportProfilesServiceRequest`.
pub(super) static PROFILES: Fields = Fields(&[
    many("resourceProfiles", 1, Kind::Message(&RESOURCE_PROFILES)),
    one("dictionary", 2, Kind::Message(&DICTIONARY)),
]);
static RESOURCE_PROFILES: Fields =
    Fields(&[one("resource", 1, Kind::Message(&RESOURCE)), many("scopeProfiles", 2, Kind::Message(&SCOPE_PROFILES))]);
static SCOPE_PROFILES: Fields =
    Fields(&[one("scope", 1, Kind::Message(&SCOPE)), many("profiles", 2, Kind::Message(&PROFILE))]);
static SCOPE: Fields = Fields(&[one("name", 1, Kind::Text), many("attributes", 3, Kind::Message(&ATTRIBUTE))]);
static PROFILE: Fields = Fields(&[
    one("sampleType", 1, Kind::Message(&VALUE_TYPE)),
    many("samples", 2, Kind::Message(&SAMPLE)),
    one("timeUnixNano", 3, Kind::Fixed64),
    one("durationNano", 4, Kind::Uint64),
    one("periodType", 5, Kind::Message(&VALUE_TYPE)),
    one("period", 6, Kind::Int64),
    one("profileId", 7, Kind::Hex),
]);
static VALUE_TYPE: Fields = Fields(&[one("typeStrindex", 1, Kind::Int32), one("unitStrindex", 2, Kind::Int32)]);
static SAMPLE: Fields = Fields(&[
    one("stackIndex", 1, Kind::Int32),
    many("attributeIndices", 2, Kind::Int32),
    one("linkIndex", 3, Kind::Int32),
    many("values", 4, Kind::Int64),
    many("timestampsUnixNano", 5, Kind::Fixed64),
]);
static DICTIONARY: Fields = Fields(&[
    many("mappingTable", 1, Kind::Message(&MAPPING)),
    many("locationTable", 2, Kind::Message(&LOCATION)),
    many("functionTable", 3, Kind::Message(&FUNCTION)),
    many("linkTable", 4, Kind::Message(&LINK)),
    many("stringTable", 5, Kind::Text),
    many("attributeTable", 6, Kind::Message(&NAMED)),
    many("stackTable", 7, Kind::Message(&STACK)),
]);
static MAPPING: Fields = Fields(&[one("filenameStrindex", 4, Kind::Int32)]);
static LOCATION: Fields = Fields(&[
    one("mappingIndex", 1, Kind::Int32),
    one("address", 2, Kind::Uint64),
    many("lines", 3, Kind::Message(&LINE)),
]);
static LINE: Fields = Fields(&[one("functionIndex", 1, Kind::Int32), one("line", 2, Kind::Int64)]);
static FUNCTION: Fields = Fields(&[
    one("nameStrindex", 1, Kind::Int32),
    one("systemNameStrindex", 2, Kind::Int32),
    one("filenameStrindex", 3, Kind::Int32),
    one("startLine", 4, Kind::Int64),
]);
static LINK: Fields = Fields(&[one("traceId", 1, Kind::Hex), one("spanId", 2, Kind::Hex)]);
static NAMED: Fields = Fields(&[one("keyStrindex", 1, Kind::Int32), one("value", 2, Kind::Message(&VALUE))]);
static STACK: Fields = Fields(&[many("locationIndices", 1, Kind::Int32)]);

static RESOURCE: Fields = Fields(&[many("attributes", 1, Kind::Message(&ATTRIBUTE))]);
static ATTRIBUTE: Fields =
    Fields(&[one("key", 1, Kind::Text), one("value", 2, Kind::Message(&VALUE)), one("keyStrindex", 3, Kind::Int32)]);
static VALUE: Fields = Fields(&[
    one("stringValue", 1, Kind::Text),
    one("boolValue", 2, Kind::Bool),
    one("intValue", 3, Kind::Int64),
    one("doubleValue", 4, Kind::Double),
    one("arrayValue", 5, Kind::Message(&ARRAY)),
    one("kvlistValue", 6, Kind::Message(&LIST)),
    one("bytesValue", 7, Kind::Base64),
    one("stringValueStrindex", 8, Kind::Int32),
]);
static ARRAY: Fields = Fields(&[many("values", 1, Kind::Message(&VALUE))]);
static LIST: Fields = Fields(&[many("values", 1, Kind::Message(&ATTRIBUTE))]);
