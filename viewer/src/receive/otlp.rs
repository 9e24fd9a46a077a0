//! What all signals of OTLP share: HTTP in protobuf or JSON, and gRPC.
//!
//! A gRPC call here is one message in a frame of five bytes and an answer with its status behind it. It is read by the
//! same code as HTTP's, so that bounds hold before anything is decoded.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt as _, Full};
use prost::Message;

use super::bounds::{self, Message as Weight};
use super::otlp_field::Fields;
use super::otlp_json;
use super::receiver::Receiver;
use crate::budget::Held;
use crate::http::allowed::Allowed;
use crate::http::body::{self, Format};
use crate::http::refusal::{Reason, Refusal};
use crate::params::encode;

const PROTOBUF: &[&str] = &["application/x-protobuf", "application/protobuf"];
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The request of a signal.
pub(super) trait Export: Message + Default + Send + 'static {
    /// What refusals are counted under, `traces` or `profiles`.
    const SIGNAL: &'static str;
    /// The message's name.
    const NAME: &'static str;
    /// What JSON calls the number of what was rejected.
    const REJECTED: &'static str;
    /// What it takes in memory.
    const WEIGHT: &'static Weight;
    /// What of it is read in JSON.
    const FIELDS: &'static Fields;

    /// Stores what can be stored; `mark` tells the bytes of the request from others.
    fn store(self, receiver: &Receiver, mark: u64, allowed: &mut Allowed) -> Result<Rejected, Refusal>;
}

/// What of a request was left out.
#[derive(Debug, Default)]
pub(super) struct Rejected {
    /// How many spans or profiles.
    pub(super) count: i64,
    /// Why the first of them was; empty if there is none.
    pub(super) reason: String,
    /// The last of each kind in a row, and how many there were.
    kinds: Vec<(Refusal, u64)>,
}

impl Rejected {
    /// Counts one.
    pub(super) fn add(&mut self, refusal: Refusal) {
        self.count += 1;
        if self.reason.is_empty() {
            self.reason = refusal.message().to_owned();
        }
        match self.kinds.last_mut() {
            Some((last, count)) if last.is_like(&refusal) => {
                *last = refusal;
                *count += 1;
            }
            _ => self.kinds.push((refusal, 1)),
        }
    }

    /// Counts them where they are shown.
    pub(super) fn tell(&mut self, receiver: &Receiver, signal: &'static str) {
        for (refusal, count) in self.kinds.drain(..) {
            receiver.refusals.count_many(signal, &refusal, count);
        }
    }
}

/// The answer to any signal.
#[derive(Clone, PartialEq, Eq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    message: String,
}

/// `google.rpc.Status`, in which OTLP/HTTP writes its errors.
#[derive(Clone, PartialEq, Eq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Takes a request by HTTP.
pub(super) async fn http<E: Export>(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Body) -> Response {
    let format = Format::of(&headers, PROTOBUF);
    let asked = *format.as_ref().unwrap_or(&Format::Json);
    let taken = match receiver.read(body).await {
        Ok(read) => match format {
            Ok(format) => {
                let unpack = move |bytes, allowed: &mut Allowed| Ok((body::unpack(bytes, &headers, allowed)?, format));
                take::<E>(&receiver, read, unpack).await
            }
            Err(refusal) => Err(refusal),
        },
        Err(refusal) => Err(refusal),
    };
    let kind = |kind| [(CONTENT_TYPE, kind)];
    match (taken, asked) {
        (Ok(rejected), Format::Protobuf) => {
            (kind("application/x-protobuf"), response(rejected).encode_to_vec()).into_response()
        }
        (Ok(rejected), Format::Json) => (kind("application/json"), json_answer::<E>(&rejected)).into_response(),
        (Err(refusal), asked) => {
            receiver.refusals.count(E::SIGNAL, &refusal);
            let error = RpcStatus { code: refusal.code().1, message: refusal.message().into() };
            let (kind, bytes) = match asked {
                Format::Protobuf => (kind("application/x-protobuf"), error.encode_to_vec()),
                Format::Json => {
                    let error = serde_json::json!({ "code": error.code, "message": error.message });
                    (kind("application/json"), error.to_string().into_bytes())
                }
            };
            (refusal.status(), kind, bytes).into_response()
        }
    }
}

/// Takes a request by gRPC.
pub(super) async fn grpc<E: Export>(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Body) -> Response {
    let taken = match receiver.read(body).await {
        Ok(read) => {
            let unpack = move |bytes: Vec<u8>, allowed: &mut Allowed| {
                Ok((unframe(&bytes, &headers, allowed)?, Format::Protobuf))
            };
            take::<E>(&receiver, read, unpack).await
        }
        Err(refusal) => Err(refusal),
    };
    match taken {
        Ok(rejected) => {
            let message = response(rejected).encode_to_vec();
            let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
            let frame = [&[0], length.as_slice(), &message].concat();
            let trailers = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
            let body = Full::new(Bytes::from(frame)).with_trailers(std::future::ready(Some(Ok(trailers))));
            ([(CONTENT_TYPE, GRPC)], Body::new(body)).into_response()
        }
        Err(refusal) => {
            receiver.refusals.count(E::SIGNAL, &refusal);
            grpc_refusal(&refusal)
        }
    }
}

/// A refusal as gRPC writes it.
pub(crate) fn grpc_refusal(refusal: &Refusal) -> Response {
    // Percent encoding leaves nothing that a header cannot hold.
    let message = HeaderValue::from_str(&encode(refusal.message())).unwrap_or(HeaderValue::from_static(""));
    let status = HeaderValue::from(refusal.code().1);
    ([(CONTENT_TYPE, GRPC), (GRPC_STATUS, status), (GRPC_MESSAGE, message)], Body::empty()).into_response()
}

async fn take<E: Export>(
    receiver: &Arc<Receiver>,
    read: (Vec<u8>, Held),
    unpack: impl Fn(Vec<u8>, &mut Allowed) -> Result<(Vec<u8>, Format), Refusal> + Send + Sync + 'static,
) -> Result<Rejected, Refusal> {
    receiver
        .on_pool(read, move |receiver, bytes, allowed| {
            let (bytes, format) = unpack(bytes, allowed)?;
            let request: E = decode(&bytes, format, allowed)?;
            let mut hasher = DefaultHasher::new();
            hasher.write(&bytes);
            let unpacked = bytes.len();
            drop(bytes);
            allowed.give_back(unpacked);
            request.store(receiver, hasher.finish(), allowed)
        })
        .await
}

fn decode<E: Export>(bytes: &[u8], format: Format, allowed: &mut Allowed) -> Result<E, Refusal> {
    let rewritten = match format {
        Format::Protobuf => Cow::Borrowed(bytes),
        Format::Json => Cow::Owned(otlp_json::to_protobuf(bytes, E::FIELDS, E::NAME, allowed)?),
    };
    allowed.take(bounds::weigh_protobuf(&rewritten, E::WEIGHT, "the request", allowed.most())?, "the request")?;
    let decoded = E::decode(&*rewritten)
        .map_err(|error| Refusal::new(Reason::Invalid, format!("the request is no {}: {error}", E::NAME)));
    if let Cow::Owned(rewritten) = rewritten {
        allowed.give_back(rewritten.capacity());
    }
    decoded
}

/// Reads a request and stores what can be stored of it.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn take_any<E: Export>(bytes: &[u8], format: Format, receiver: &Receiver) -> Result<(), Refusal> {
    let allowed = &mut Allowed::plenty();
    decode::<E>(bytes, format, allowed)?.store(receiver, 0, allowed).map(drop)
}

/// The one message of a gRPC request: whether it is packed, its length, its bytes.
fn unframe(bytes: &[u8], headers: &HeaderMap, allowed: &mut Allowed) -> Result<Vec<u8>, Refusal> {
    let broken = || Refusal::new(Reason::Invalid, "the request is not one gRPC message, or cut off");
    let (prefix, message) = bytes.split_at_checked(5).ok_or_else(broken)?;
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if usize::try_from(length) != Ok(message.len()) {
        return Err(broken());
    }
    if prefix[0] == 0 {
        allowed.take(message.len(), "the message")?;
        return Ok(message.to_vec());
    }
    match headers.get(GRPC_ENCODING).map(|encoding| encoding.as_bytes()) {
        Some(b"gzip") => body::gunzip(message, body::MOST_UNPACKED, "the message", allowed),
        _ => Err(Refusal::new(Reason::ContentEncoding, "this grpc-encoding is not taken; send gzip or identity")),
    }
}

/// OTLP wants nothing where nothing was rejected.
fn response(rejected: Rejected) -> ExportResponse {
    let partial = PartialSuccess { rejected: rejected.count, message: rejected.reason };
    ExportResponse { partial_success: Some(partial).filter(|partial| partial.rejected > 0) }
}

/// 64-bit numbers are strings in protobuf's JSON.
fn json_answer<E: Export>(rejected: &Rejected) -> String {
    if rejected.count == 0 {
        return "{}".into();
    }
    let partial = serde_json::json!({ E::REJECTED: rejected.count.to_string(), "errorMessage": rejected.reason });
    serde_json::json!({ "partialSuccess": partial }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_whole_message() {
        let headers = HeaderMap::new();
        let unframe = |bytes: &[u8], headers| unframe(bytes, headers, &mut Allowed::plenty());
        assert_eq!(unframe(&[0, 0, 0, 0, 2, 7, 8], &headers).unwrap(), [7, 8]);
        for bad in [&[][..], &[0, 0, 0, 0], &[0, 0, 0, 0, 2, 7], &[0, 0, 0, 0, 1, 7, 8], &[0, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(unframe(bad, &headers).unwrap_err().code(), ("invalid_argument", 3), "{bad:?}");
        }
        assert_eq!(unframe(&[1, 0, 0, 0, 1, 7], &headers).unwrap_err().code(), ("unimplemented", 12));
    }
}
