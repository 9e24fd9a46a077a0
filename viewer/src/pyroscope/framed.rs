//! gRPC-web: a question and its answer in frames of five bytes and a message, the status in a last one behind it.

use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};

use super::error::QueryError;
use crate::http::body::Format;
use crate::params::encode;

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// What the first byte of a frame says.
const PACKED: u8 = 1;
const TRAILERS: u8 = 0x80;

/// How messages are written where a question comes by gRPC-web.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framed {
    pub(super) format: Format,
    kind: &'static str,
}

impl Framed {
    /// None if it comes otherwise.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        let kinds = [
            ("application/grpc-web", Format::Protobuf),
            ("application/grpc-web+proto", Format::Protobuf),
            ("application/grpc-web+json", Format::Json),
        ];
        kinds.into_iter().find(|(known, _)| *known == kind).map(|(kind, format)| Self { format, kind })
    }

    /// The one message of a question, and headers that say how it is packed.
    pub(super) fn open(bytes: &[u8], headers: &HeaderMap) -> Result<(Vec<u8>, HeaderMap), QueryError> {
        let broken = || QueryError::invalid("the request is not one gRPC message, or cut off");
        let (prefix, message) = bytes.split_at_checked(5).ok_or_else(broken)?;
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        if usize::try_from(length) != Ok(message.len()) || prefix[0] > PACKED {
            return Err(broken());
        }
        let encoding = headers.get(ENCODING).filter(|_| prefix[0] == PACKED);
        let headers = encoding.map(|encoding| (CONTENT_ENCODING, encoding.clone())).into_iter().collect();
        Ok((message.to_vec(), headers))
    }

    /// An answer, or why there is none.
    pub(super) fn answer(self, answered: Result<Vec<u8>, QueryError>) -> Response {
        let (mut body, status) = match answered {
            Ok(message) => (frame(0, &message), "grpc-status: 0\r\n".to_owned()),
            Err(error) => {
                let (code, message) = (error.grpc_code(), encode(&error.to_string()));
                (Vec::new(), format!("grpc-status: {code}\r\ngrpc-message: {message}\r\n"))
            }
        };
        body.append(&mut frame(TRAILERS, status.as_bytes()));
        ([(CONTENT_TYPE, HeaderValue::from_static(self.kind))], body).into_response()
    }
}

fn frame(flags: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[flags], length.as_slice(), message].concat()
}
