//! The body of a request: read up to a bound, its format told from its headers, unpacked up to a bound.

use std::future::poll_fn;
use std::io::Read as _;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use flate2::read::MultiGzDecoder;

use super::refusal::{Reason, Refusal};

/// The largest body that is taken, as it was sent.
pub(super) const MOST_SENT: usize = 16 << 20;
/// The largest body that is taken, unpacked.
pub(super) const MOST_UNPACKED: usize = 64 << 20;
/// What is read and thrown away of a body that is too large, so that its sender reads the answer.
const MOST_DRAINED: usize = 512 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// How a message is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Binary.
    Protobuf,
    /// Text.
    Json,
}

impl Format {
    /// Tells the format from the header, where `protobuf` is what the protocol calls it.
    pub(crate) fn of(headers: &HeaderMap, protobuf: &[&'static str]) -> Result<Self, Refusal> {
        let header = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let kind = header.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        match kind.as_str() {
            "application/json" => Ok(Self::Json),
            kind if protobuf.contains(&kind) => Ok(Self::Protobuf),
            other => Err(Refusal::new(
                Reason::ContentType,
                format!("content type {other:?} is not taken; send {} or application/json", protobuf.join(" or ")),
            )),
        }
    }
}

/// Reads the body as it was sent.
pub(crate) async fn read(body: Body) -> Result<Vec<u8>, Refusal> {
    match tokio::time::timeout(PATIENCE, read_bounded(body)).await {
        Ok(done) => done,
        Err(_) => {
            Err(Refusal::new(Reason::Incomplete, format!("the body did not arrive within {} s", PATIENCE.as_secs())))
        }
    }
}

async fn read_bounded(mut body: Body) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let mut seen = 0_usize;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|error| Refusal::new(Reason::Incomplete, format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        seen = seen.saturating_add(data.len());
        if seen <= MOST_SENT {
            bytes.extend_from_slice(&data);
        } else {
            bytes = Vec::new();
        }
        if seen > MOST_DRAINED {
            break;
        }
    }
    if seen > MOST_SENT {
        return Err(too_large("the body", MOST_SENT));
    }
    Ok(bytes)
}

/// Undoes Content-Encoding.
pub(crate) fn unpack(bytes: Vec<u8>, headers: &HeaderMap) -> Result<Vec<u8>, Refusal> {
    match headers
        .get(CONTENT_ENCODING)
        .map(|value| value.to_str().unwrap_or("?").trim().to_ascii_lowercase())
        .as_deref()
    {
        None | Some("" | "identity") => Ok(bytes),
        Some("gzip") => gunzip(&bytes, MOST_UNPACKED, "the body"),
        Some(other) => Err(Refusal::new(
            Reason::ContentEncoding,
            format!("content encoding {other:?} is not taken; send gzip or identity"),
        )),
    }
}

/// Unpacks at most `most` bytes; `what` is named in the refusal.
pub(super) fn gunzip(bytes: &[u8], most: usize, what: &str) -> Result<Vec<u8>, Refusal> {
    let mut unpacked = Vec::new();
    let bound = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    MultiGzDecoder::new(bytes)
        .take(bound)
        .read_to_end(&mut unpacked)
        .map_err(|error| Refusal::new(Reason::Invalid, format!("{what} is not gzip: {error}")))?;
    if unpacked.len() > most {
        return Err(too_large(&format!("{what}, unpacked,"), most));
    }
    Ok(unpacked)
}

/// Refuses what is larger than `most` bytes.
pub(super) fn too_large(what: &str, most: usize) -> Refusal {
    Refusal::new(Reason::TooLarge, format!("{what} is larger than {} MiB", most >> 20))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_zip_bomb_is_refused_before_it_is_unpacked() {
        let refused = gunzip(&gzip(&vec![0; 3 << 20]), 1 << 20, "the body").unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.message()), (413, "the body, unpacked, is larger than 1 MiB"));
        assert_eq!(gunzip(&gzip(b"fits"), 4, "the body").unwrap(), b"fits");
    }

    #[test]
    fn truncated_gzip_is_refused_in_words() {
        let mut bytes = gzip(b"some text that is long enough to be cut");
        bytes.truncate(20);
        assert!(gunzip(&bytes, 100, "the profile").unwrap_err().message().starts_with("the profile is not gzip"));
    }
}
