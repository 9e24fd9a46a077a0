//! OTLP traces: spans become rows.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span as OtlpSpan;

use super::Receiver;
use super::bounds::Inside;
use super::otlp::{Export, Rejected};
use super::refusal::{Reason, Refusal};
use crate::ids::{SpanId, TraceId};
use crate::store::{Span, Status};

/// Resources (1) with scopes (2) with spans (2); what a span and a resource hold are entries.
const ENTRIES: Inside = Inside::Fields(&[(
    1,
    Inside::Fields(&[
        (1, Inside::Flat),
        (2, Inside::Fields(&[(2, Inside::Fields(&[(9, Inside::Flat), (11, Inside::Flat)]))])),
    ]),
)]);
/// The attribute by which profilers say that a span's samples are labelled with its id.
const PROFILED: &str = "pyroscope.profile.id";
/// Bits of OTLP's Span.flags: whether it is known that the parent is remote, and whether it is.
const REMOTE_KNOWN: u32 = 0x100;
const REMOTE: u32 = 0x200;
/// Longer attribute values are cut to this many characters.
const LONGEST_VALUE: usize = 4_096;

impl Export for ExportTraceServiceRequest {
    const SIGNAL: &'static str = "traces";
    const NAME: &'static str = "ExportTraceServiceRequest";
    const REJECTED: &'static str = "rejectedSpans";
    const ENTRIES: Inside = ENTRIES;

    /// A span that cannot be is left out and said in the answer.
    fn store(self, receiver: &Receiver) -> Result<Rejected, Refusal> {
        let times = receiver.times();
        let mut spans = Vec::new();
        let mut rejected = Rejected::default();
        for resource in self.resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = service_name(&attributes);
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                match row(span, &service, times) {
                    Ok(span) => spans.push(span),
                    Err(refusal) => rejected.add(receiver, Self::SIGNAL, refusal.of_service(&service)),
                }
            }
        }
        receiver.store.insert_spans(&spans).map_err(|error| Refusal::new(Reason::Store, error.to_string()))?;
        Ok(rejected)
    }
}

/// Attribute service.name of a resource.
pub(super) fn service_name(attributes: &[KeyValue]) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == "service.name");
    match found.and_then(|attribute| attribute.value.as_ref()).and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(name)) if !name.is_empty() => name.clone(),
        _ => "unknown_service".into(),
    }
}

fn row(span: OtlpSpan, service: &str, (oldest, newest): (i64, i64)) -> Result<Span, Refusal> {
    let name: String = span.name.chars().take(LONGEST_VALUE).collect();
    let invalid = |what: &str| Refusal::new(Reason::Invalid, format!("span {name:?}: {what}"));
    let trace =
        TraceId::from_bytes(&span.trace_id).ok_or_else(|| invalid("the trace id is not 16 bytes, or all zeros"))?;
    let id = SpanId::from_bytes(&span.span_id).ok_or_else(|| invalid("the span id is not 8 bytes, or all zeros"))?;
    let parent = SpanId::from_bytes(&span.parent_span_id);
    let start = i64::try_from(span.start_time_unix_nano).map_err(|_| invalid("the start is beyond the year 2262"))?;
    let end = i64::try_from(span.end_time_unix_nano).map_err(|_| invalid("the end is beyond the year 2262"))?;
    // A clock that was set back in between must not make a negative length.
    let end = end.max(start);
    // A span that took longer than anything is kept is as new as its end.
    if end < oldest || start > newest {
        let side = if end < oldest { "older than what is kept (--retain)" } else { "ahead of this machine's clock" };
        return Err(Refusal::new(Reason::Time, format!("span {name:?} from {start} to {end} ns is {side}")));
    }
    let root = if parent.is_none() {
        Some(true)
    } else {
        (span.flags & REMOTE_KNOWN != 0).then_some(span.flags & REMOTE != 0)
    };
    let status = Status::from_number(span.status.map_or(0, |status| i64::from(status.code)));
    let profiled = span.attributes.iter().any(|attribute| attribute.key == PROFILED);
    let attributes: serde_json::Map<_, _> =
        span.attributes.into_iter().map(|attribute| (attribute.key, json(attribute.value))).collect();
    Ok(Span {
        trace,
        span: id,
        parent,
        service: service.into(),
        name,
        start,
        duration: end.saturating_sub(start),
        status,
        root,
        profiled,
        attributes: serde_json::Value::Object(attributes).to_string(),
    })
}

fn json(value: Option<AnyValue>) -> serde_json::Value {
    match value.and_then(|value| value.value) {
        None | Some(Value::StringValueStrindex(_)) => serde_json::Value::Null,
        Some(Value::StringValue(text)) => text.chars().take(LONGEST_VALUE).collect::<String>().into(),
        Some(Value::BoolValue(value)) => value.into(),
        Some(Value::IntValue(value)) => value.into(),
        Some(Value::DoubleValue(value)) => value.into(),
        Some(Value::ArrayValue(array)) => array.values.into_iter().map(|value| json(Some(value))).collect(),
        Some(Value::KvlistValue(list)) => {
            let pairs: serde_json::Map<_, _> =
                list.values.into_iter().map(|pair| (pair.key, json(pair.value))).collect();
            serde_json::Value::Object(pairs)
        }
        Some(Value::BytesValue(bytes)) => format!("{} bytes", bytes.len()).into(),
    }
}
