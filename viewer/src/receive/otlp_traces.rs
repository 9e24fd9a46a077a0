//! OTLP traces: spans become rows.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, EntityRef, InstrumentationScope, KeyValue, KeyValueList,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as OtlpSpan, Status as OtlpStatus};

use super::bounds::{Inside, Message, flat};
use super::labels::LANGUAGE;
use super::otlp::{Export, Rejected};
use super::otlp_field::Fields;
use super::otlp_fields::TRACES;
use super::process::{Process, THREAD};
use super::receiver::Receiver;
use super::strings::truncated;
use crate::http::allowed::Allowed;
use crate::http::refusal::{Reason, Refusal};
use crate::ids::{SpanId, TraceId};
use crate::sender::Sender;
use crate::span_status::Status;
use crate::store::Span;

static REQUEST: Message =
    Message { size: size_of::<ExportTraceServiceRequest>(), fields: &[(1, Inside::Message(&RESOURCE_SPANS))] };
static RESOURCE_SPANS: Message = Message {
    size: size_of::<ResourceSpans>(),
    fields: &[(1, Inside::One(&RESOURCE)), (2, Inside::Message(&SCOPE_SPANS))],
};
/// What a resource says of itself.
pub(super) static RESOURCE: Message =
    Message { size: size_of::<Resource>(), fields: &[(1, Inside::Message(&ATTRIBUTE)), (3, Inside::Message(&ENTITY))] };
static ENTITY: Message = flat::<EntityRef>();
static SCOPE_SPANS: Message =
    Message { size: size_of::<ScopeSpans>(), fields: &[(1, Inside::One(&SCOPE)), (2, Inside::Message(&SPAN))] };
/// The library that made spans or profiles.
pub(super) static SCOPE: Message =
    Message { size: size_of::<InstrumentationScope>(), fields: &[(3, Inside::Message(&ATTRIBUTE))] };
static SPAN: Message = Message {
    size: size_of::<OtlpSpan>(),
    fields: &[
        (9, Inside::Message(&ATTRIBUTE)),
        (11, Inside::Message(&EVENT)),
        (13, Inside::Message(&LINK)),
        (15, Inside::One(&STATUS)),
    ],
};
static EVENT: Message = Message { size: size_of::<Event>(), fields: &[(3, Inside::Message(&ATTRIBUTE))] };
static LINK: Message = Message { size: size_of::<Link>(), fields: &[(4, Inside::Message(&ATTRIBUTE))] };
static STATUS: Message = flat::<OtlpStatus>();
/// An attribute, with what is nested in it.
pub(super) static ATTRIBUTE: Message = Message { size: size_of::<KeyValue>(), fields: &[(2, Inside::One(&VALUE))] };
/// The value of one.
pub(super) static VALUE: Message =
    Message { size: size_of::<AnyValue>(), fields: &[(5, Inside::One(&ARRAY)), (6, Inside::One(&LIST))] };
static ARRAY: Message = Message { size: size_of::<ArrayValue>(), fields: &[(1, Inside::Message(&VALUE))] };
static LIST: Message = Message { size: size_of::<KeyValueList>(), fields: &[(1, Inside::Message(&ATTRIBUTE))] };

/// The attribute by which profilers say that a span's samples are labelled with its id.
const PROFILED: &str = "pyroscope.profile.id";
/// Bits of OTLP's Span.flags: whether it is known that the parent is remote, and whether it is.
const REMOTE_KNOWN: u32 = 0x100;
const REMOTE: u32 = 0x200;
/// Longer names of spans, and attributes' keys and values, are cut to this many bytes.
const LONGEST_VALUE: usize = 4_096;
/// Bytes of all attributes of a span.
const MOST_ATTRIBUTES: usize = 1 << 20;
/// Longer names of services, as labels of profiles may not be longer.
const LONGEST_SERVICE: usize = 2_048;

impl Export for ExportTraceServiceRequest {
    const SIGNAL: &'static str = "traces";
    const NAME: &'static str = "ExportTraceServiceRequest";
    const REJECTED: &'static str = "rejectedSpans";
    const WEIGHT: &'static Message = &REQUEST;
    const FIELDS: &'static Fields = &TRACES;

    /// A span that cannot be is left out and said in the answer.
    fn store(self, receiver: &Receiver, _mark: u64, allowed: &mut Allowed) -> Result<Rejected, Refusal> {
        let times = receiver.times();
        let mut spans = Vec::new();
        let mut rejected = Rejected::default();
        let mut senders: BTreeMap<Arc<str>, Sender> = BTreeMap::new();
        for resource in self.resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = service_name(&attributes);
            if let Some(sender) = language(&attributes).and_then(Sender::of_language) {
                senders.insert(Arc::clone(&service), sender);
            }
            let process = process(&attributes);
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                allowed.step(10)?;
                match row(span, (&service, process.as_ref()), times) {
                    Ok(span) => {
                        allowed.take(size_of::<Span>() * 2 + span.name.len() + span.attributes.len(), "the spans")?;
                        spans.push(span);
                    }
                    Err(refusal) => rejected.add(refusal.of_service(&service)),
                }
            }
        }
        receiver.insert_spans(&spans)?;
        if !spans.is_empty() {
            for (service, sender) in senders {
                receiver.note_sender(&service, Some(sender), false)?;
            }
        }
        rejected.tell(receiver, Self::SIGNAL);
        Ok(rejected)
    }
}

/// What a service without a name is called, as OpenTelemetry has it.
pub(super) const UNKNOWN_SERVICE: &str = "unknown_service";

/// A service's name as it is kept.
pub(super) fn truncated_service(name: &str) -> &str {
    truncated(name, LONGEST_SERVICE)
}

/// Attribute service.name of a resource, which all its spans share.
fn service_name(attributes: &[KeyValue]) -> Arc<str> {
    let found = attributes.iter().find(|attribute| attribute.key == "service.name");
    match found.and_then(|attribute| attribute.value.as_ref()).and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(name)) if !name.is_empty() => truncated_service(name).into(),
        _ => UNKNOWN_SERVICE.into(),
    }
}

/// Attribute telemetry.sdk.language of a resource.
fn language(attributes: &[KeyValue]) -> Option<&str> {
    let found = attributes.iter().find(|attribute| attribute.key == LANGUAGE)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(language) => Some(language),
        _ => None,
    }
}

/// The process that a resource is.
fn process(attributes: &[KeyValue]) -> Option<Process> {
    let texts = attributes.iter().filter_map(|attribute| {
        let text: Cow<'_, str> = match attribute.value.as_ref()?.value.as_ref()? {
            Value::StringValue(text) => text.as_str().into(),
            Value::IntValue(number) => number.to_string().into(),
            _ => return None,
        };
        Some((attribute.key.as_str(), text))
    });
    Process::of(texts)
}

fn row(
    span: OtlpSpan,
    (service, process): (&Arc<str>, Option<&Process>),
    (oldest, newest): (i64, i64),
) -> Result<Span, Refusal> {
    let name = truncated(&span.name, LONGEST_VALUE).to_owned();
    let invalid = |what: &str| Refusal::new(Reason::Invalid, format!("span {name:?}: {what}"));
    let trace =
        TraceId::from_bytes(&span.trace_id).ok_or_else(|| invalid("the trace id is not 16 bytes, or all zeros"))?;
    let id = SpanId::from_bytes(&span.span_id).ok_or_else(|| invalid("the span id is not 8 bytes, or all zeros"))?;
    let parent = SpanId::from_bytes(&span.parent_span_id);
    let start = i64::try_from(span.start_time_unix_nano).map_err(|_| invalid("the start is beyond the year 2262"))?;
    let end = i64::try_from(span.end_time_unix_nano).map_err(|_| invalid("the end is beyond the year 2262"))?;
    // A clock that was set back in between must not make a negative length.
    let end = end.max(start);
    // A span that took longer than anything is kept is as new as its end; one that ends later than now would stay when
    // all else is forgotten.
    if end < oldest || end > newest {
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
    let number = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::IntValue(number)) => Some(*number),
        _ => None,
    };
    let thread = span.attributes.iter().find(|attribute| attribute.key == THREAD).and_then(number);
    let place = process.zip(thread).map(|(process, thread)| process.place(thread));
    if span.attributes.iter().map(json_bytes).fold(0, usize::saturating_add) > MOST_ATTRIBUTES {
        return Err(invalid(&format!("its attributes have more than {MOST_ATTRIBUTES} bytes as JSON")));
    }
    let attributes: serde_json::Map<_, _> =
        span.attributes.into_iter().map(|attribute| (key(attribute.key), json(attribute.value))).collect();
    Ok(Span {
        trace,
        span: id,
        parent,
        service: Arc::clone(service),
        name,
        start,
        duration: end.saturating_sub(start),
        status,
        root,
        profiled,
        attributes: serde_json::Value::Object(attributes).to_string(),
        place,
    })
}

/// About the bytes that an attribute has as JSON, in which a character may become six.
fn json_bytes(attribute: &KeyValue) -> usize {
    fn of_value(value: Option<&AnyValue>) -> usize {
        let inside = match value.and_then(|value| value.value.as_ref()) {
            Some(Value::StringValue(text)) => of_text(text),
            Some(Value::ArrayValue(array)) => array.values.iter().map(|value| of_value(Some(value))).sum(),
            Some(Value::KvlistValue(list)) => list.values.iter().map(json_bytes).sum(),
            _ => 0,
        };
        inside + 32
    }
    fn of_text(text: &str) -> usize {
        let escaped = |byte: u8| if byte < 0x20 { 6 } else { 1 + usize::from(matches!(byte, b'"' | b'\\')) };
        text.bytes().take(LONGEST_VALUE).map(escaped).sum()
    }
    of_text(&attribute.key) + of_value(attribute.value.as_ref())
}

/// A text of bounded length.
fn key(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LONGEST_VALUE));
    text
}

fn json(value: Option<AnyValue>) -> serde_json::Value {
    match value.and_then(|value| value.value) {
        None | Some(Value::StringValueStrindex(_)) => serde_json::Value::Null,
        Some(Value::StringValue(text)) => key(text).into(),
        Some(Value::BoolValue(value)) => value.into(),
        Some(Value::IntValue(value)) => value.into(),
        Some(Value::DoubleValue(value)) => value.into(),
        Some(Value::ArrayValue(array)) => array.values.into_iter().map(|value| json(Some(value))).collect(),
        Some(Value::KvlistValue(list)) => {
            let pairs: serde_json::Map<_, _> =
                list.values.into_iter().map(|pair| (key(pair.key), json(pair.value))).collect();
            serde_json::Value::Object(pairs)
        }
        Some(Value::BytesValue(bytes)) => format!("{} bytes", bytes.len()).into(),
    }
}
