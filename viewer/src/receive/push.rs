//! Pyroscope's `push.v1.PusherService/Push`: Connect unary, in protobuf or JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::Message as _;
use serde::Deserialize;
use spanprof_core::wire::push::{LabelPair, PushRequest, RawProfileSeries, RawSample};

use super::bounds::{self, Inside, Message, flat};
use super::labels::Labels;
use super::pprof;
use super::profilers;
use super::receiver::Receiver;
use crate::http::allowed::Allowed;
use crate::http::body::{self, Format};
use crate::http::refusal::{PROFILES, Reason, Refusal};
use crate::store::Mark;

const PROTOBUF: &[&str] = &["application/proto", "application/protobuf", "application/x-protobuf"];
/// Series, and their labels and profiles.
static REQUEST: Message = Message { size: size_of::<PushRequest>(), fields: &[(1, Inside::Message(&SERIES))] };
static SERIES: Message = Message {
    size: size_of::<RawProfileSeries>(),
    fields: &[(1, Inside::Message(&PAIR)), (2, Inside::Message(&SAMPLE))],
};
static PAIR: Message = flat::<LabelPair>();
static SAMPLE: Message = flat::<RawSample>();
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Takes the profiles of a request, all of them or none.
pub(super) async fn receive(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Body) -> Response {
    match take(&receiver, headers, body).await {
        Ok(Format::Protobuf) => ([(CONTENT_TYPE, "application/proto")], Body::empty()).into_response(),
        Ok(Format::Json) => ([(CONTENT_TYPE, "application/json")], "{}").into_response(),
        Err(refusal) => {
            receiver.refusals.count(PROFILES, &refusal);
            refusal_in_json(&refusal)
        }
    }
}

/// Connect writes its errors as JSON, whatever the request was written in.
pub(crate) fn refusal_in_json(refusal: &Refusal) -> Response {
    let error = serde_json::json!({ "code": refusal.code().0, "message": refusal.message() });
    (refusal.status(), [(CONTENT_TYPE, "application/json")], error.to_string()).into_response()
}

async fn take(receiver: &Arc<Receiver>, headers: HeaderMap, body: Body) -> Result<Format, Refusal> {
    let read = receiver.read(body).await?;
    let format = Format::of(&headers, PROTOBUF)?;
    receiver
        .on_pool(read, move |receiver, bytes, allowed| {
            let bytes = body::unpack(bytes, &headers, allowed)?;
            let request = decode(&bytes, format, allowed)?;
            let unpacked = bytes.len();
            drop(bytes);
            allowed.give_back(unpacked);
            store(receiver, request, allowed)
        })
        .await?;
    Ok(format)
}

fn store(receiver: &Receiver, request: PushRequest, allowed: &mut Allowed) -> Result<(), Refusal> {
    if request.series.iter().all(|series| series.samples.is_empty()) {
        return Err(Refusal::new(Reason::Invalid, "the request holds no profile"));
    }
    let mut profiles = Vec::new();
    // The last of each profiler, as it said before what is no longer so.
    let mut reports = BTreeMap::new();
    let mut senders = BTreeMap::new();
    for (number, series) in request.series.into_iter().enumerate() {
        let labels = Labels::of_pairs(&series.labels).map_err(|refusal| {
            let refusal = refusal.within(format!("series {number}"));
            let service = series.labels.iter().rfind(|label| label.name == "service_name");
            service.map_or(refusal.clone(), |label| refusal.of_service(&label.value))
        })?;
        for raw in series.samples {
            let read = pprof::decode(&raw.raw_profile, allowed).and_then(|decoded| {
                let rows = pprof::rows(&decoded, &labels, receiver.times(), allowed)?;
                for report in profilers::reports(&labels.service, &decoded) {
                    allowed.take(report.bytes(), "the profilers' statistics")?;
                    if let Some(before) = reports.insert(report.of(), report) {
                        allowed.give_back(before.bytes());
                    }
                }
                Ok((rows, decoded.time_nanos != 0))
            });
            allowed.give_back_decoded();
            let (mut rows, has_time) = read.map_err(|refusal| refusal.of_service(&labels.service))?;
            // Bytes that say neither who nor when they are may be two profiles that are alike.
            let is_told_apart = !raw.id.is_empty() || has_time;
            let mark = || Mark::of(&(&labels.all, &raw.id, &raw.raw_profile), !raw.id.is_empty());
            rows.mark = is_told_apart.then(mark);
            profiles.push(rows);
        }
        if let Some(sender) = labels.sender() {
            senders.insert(labels.service, sender);
        }
    }
    if receiver.insert_profiles(profiles)? {
        for (service, sender) in senders {
            receiver.note_sender(&service, Some(sender), true)?;
        }
    }
    if !reports.is_empty() {
        let profilers = receiver.kept()?.profilers;
        reports.into_values().for_each(|report| profilers.record(report));
    }
    Ok(())
}

fn decode(bytes: &[u8], format: Format, allowed: &mut Allowed) -> Result<PushRequest, Refusal> {
    match format {
        Format::Protobuf => decode_protobuf(bytes, allowed),
        Format::Json => decode_json(bytes, allowed),
    }
}

/// Reads a request and stores it.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn take_any(bytes: &[u8], format: Format, receiver: &Receiver) -> Result<(), Refusal> {
    let allowed = &mut Allowed::plenty();
    store(receiver, decode(bytes, format, allowed)?, allowed)
}

fn decode_protobuf(bytes: &[u8], allowed: &mut Allowed) -> Result<PushRequest, Refusal> {
    allowed.take(bounds::weigh_protobuf(bytes, &REQUEST, "the request", allowed.most())?, "the request")?;
    PushRequest::decode(bytes)
        .map_err(|error| Refusal::new(Reason::Invalid, format!("the request is no PushRequest: {error}")))
}

/// Protobuf's JSON: lowerCamelCase, though the names of the .proto file are read too.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct JsonRequest {
    series: Vec<JsonSeries>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JsonSeries {
    labels: Vec<JsonLabel>,
    samples: Vec<JsonSample>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JsonLabel {
    name: String,
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JsonSample {
    #[serde(rename = "rawProfile", alias = "raw_profile")]
    raw_profile: String,
    #[serde(rename = "ID", alias = "id")]
    id: String,
}

fn decode_json(bytes: &[u8], allowed: &mut Allowed) -> Result<PushRequest, Refusal> {
    // The texts stand there a second time when they are no longer base64.
    let weight = bounds::weigh_json(bytes, size_of::<JsonSeries>(), "the request", allowed.most())?;
    allowed.take(weight.saturating_mul(2), "the request")?;
    let invalid =
        |message: String| Refusal::new(Reason::Invalid, format!("the request is no PushRequest in JSON: {message}"));
    let request: JsonRequest = serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))?;
    let mut series = Vec::with_capacity(request.series.len());
    for one in request.series {
        let labels = one.labels.into_iter().map(|label| LabelPair { name: label.name, value: label.value }).collect();
        let mut samples = Vec::with_capacity(one.samples.len());
        for sample in one.samples {
            let raw_profile =
                decode_base64(&sample.raw_profile).map_err(|error| invalid(format!("rawProfile: {error}")))?;
            samples.push(RawSample { raw_profile, id: sample.id });
        }
        series.push(RawProfileSeries { labels, samples });
    }
    Ok(PushRequest { series })
}

/// Both alphabets, with padding or without, as protobuf's JSON demands of readers.
fn decode_base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    let alphabet = if text.contains(['-', '_']) { alphabet::URL_SAFE } else { alphabet::STANDARD };
    GeneralPurpose::new(&alphabet, LENIENT).decode(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use spanprof_core::wire::pprof::{Location, Profile, Sample, ValueType};

    use super::*;
    use crate::budget::Budget;
    use crate::receive::profilers::Profilers;
    use crate::receive::{Keeper, Kept, Permits};
    use crate::store::{StorageLimits, Store};

    #[test]
    fn json_takes_both_spellings_and_both_alphabets() {
        let body = br#"{"series":[{"labels":[{"name":"a","value":"b"}],"samples":[{"rawProfile":"+/8=","ID":"x"},{"raw_profile":"-_8"}]}],"unknown":1}"#;
        let request = decode_json(body, &mut Allowed::plenty()).unwrap();
        assert_eq!(request.series[0].labels, [LabelPair { name: "a".into(), value: "b".into() }]);
        assert_eq!(request.series[0].samples[0], RawSample { raw_profile: vec![0xfb, 0xff], id: "x".into() });
        assert_eq!(request.series[0].samples[1].raw_profile, [0xfb, 0xff]);
    }

    #[test]
    fn what_is_no_request_is_refused_in_words() {
        let decode_json = |bytes: &[u8]| decode_json(bytes, &mut Allowed::plenty());
        assert!(decode_json(b"[1").unwrap_err().message().starts_with("the request is no PushRequest in JSON"));
        assert!(
            decode_json(br#"{"series":[{"samples":[{"rawProfile":"?"}]}]}"#)
                .unwrap_err()
                .message()
                .contains("rawProfile")
        );
        assert_eq!(decode_protobuf(b"hello", &mut Allowed::plenty()).unwrap_err().status(), 400);
    }

    #[test]
    fn what_profilers_say_is_taken_from_the_requests_memory_and_counts_once_for_each() {
        let store = Store::open(None, &StorageLimits::new(64 << 20)).unwrap();
        let profilers = Arc::<Profilers>::default();
        let keeper = Keeper::Known(Kept { store, profilers: Arc::clone(&profilers), _owner: None });
        let receiver = Receiver::new(keeper, Arc::default(), Duration::MAX, &Permits::new(16 << 20));
        // Each with many counts.
        let stats: Vec<String> = (0..60).map(|number| format!("\"count {number}\":1")).collect();
        let sample = |instance: usize| {
            let said =
                format!(r#"{{"instance":"{instance}","package":"p","last_error":"","stats":{{{}}}}}"#, stats.join(","));
            let strings = ["", "cpu", "nanoseconds", &format!("spanprof.stats {said}")].map(String::from);
            let profile = Profile {
                sample_type: vec![ValueType { r#type: 1, unit: 2 }],
                string_table: strings.into(),
                comment: vec![3],
                location: vec![Location { id: 1, address: 1, ..Location::default() }],
                sample: vec![Sample { location_id: vec![1], value: vec![1], label: vec![] }],
                ..Profile::default()
            };
            RawSample { raw_profile: profile.encode_to_vec(), id: String::new() }
        };
        let pair = |name: &str, value: &str| LabelPair { name: name.into(), value: value.into() };
        let labels = vec![pair("__name__", "process_cpu"), pair("service_name", "shop")];
        let take = |instances: &[usize]| {
            let samples = instances.iter().map(|instance| sample(*instance)).collect();
            let request = PushRequest { series: vec![RawProfileSeries { labels: labels.clone(), samples }] };
            super::store(&receiver, request, &mut Allowed::new(Budget::new(1 << 20, 1 << 20).hold()))
        };
        take(&[7; 400]).unwrap();
        assert_eq!(profilers.of("shop").len(), 1);
        let many: Vec<usize> = (0..400).collect();
        assert_eq!(take(&many).unwrap_err().status(), 413);
        assert_eq!(profilers.of("shop").len(), 1, "nothing is kept of a refused request");
        take(&many[..50]).unwrap();
        assert_eq!(profilers.of("shop").len(), 50);
    }
}
