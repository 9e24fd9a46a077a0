//! Answers on their way: a large one counts as memory until it is sent, and who takes it too slowly while others wait for
//! these bytes is cut off.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

use super::places::Working;
use crate::budget::{Held, NoRoom};

/// Where others wait for the bytes of answers, one is taken at this rate after this time, or ended.
const BYTES_A_MILLISECOND: usize = 32;
const START: Duration = Duration::from_secs(5);
/// Answers that are larger are sent in pieces of this many bytes, and count as memory until they are.
const PIECE: usize = 64 << 10;

/// Answers within the bytes of all answers; `working` ends when the last of it is taken.
pub(super) async fn send(response: Response, working: Working) -> Response {
    let (mut head, body) = response.into_parts();
    if head.status == StatusCode::SERVICE_UNAVAILABLE {
        head.headers.entry(RETRY_AFTER).or_insert(HeaderValue::from_static("1"));
    }
    let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    if length <= PIECE {
        return Response::from_parts(
            head,
            Body::new(Paced { rest: Rest::Small(body), held: None, began: Instant::now(), taken: 0, working }),
        );
    }
    let mut held = working.sent().hold();
    match held.grow_later(length).await {
        Ok(()) => {}
        Err(no @ NoRoom::Busy) => {
            let sentence = format!("the answer of {length} bytes {no}\n");
            return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], sentence).into_response();
        }
        Err(no @ NoRoom::TooLarge(_)) => {
            let sentence =
                format!("the answer of {length} bytes {no}; choose less, or give the server more --memory\n");
            return (StatusCode::UNPROCESSABLE_ENTITY, sentence).into_response();
        }
    }
    // It is in memory already.
    let bytes = body.collect().await.map(|whole| whole.to_bytes()).unwrap_or_default();
    Response::from_parts(
        head,
        Body::new(Paced { rest: Rest::Large(bytes), held: Some(held), began: Instant::now(), taken: 0, working }),
    )
}

/// A body that knows when it has been sent.
#[derive(Debug)]
struct Paced {
    rest: Rest,
    /// What of a large one is not sent yet.
    held: Option<Held>,
    began: Instant,
    taken: usize,
    working: Working,
}

#[derive(Debug)]
enum Rest {
    Small(Body),
    Large(Bytes),
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        this.working.moves();
        match &mut this.rest {
            Rest::Small(body) => Pin::new(body).poll_frame(context),
            Rest::Large(bytes) if bytes.is_empty() => {
                this.held = None;
                Poll::Ready(None)
            }
            Rest::Large(bytes) => {
                let milliseconds = usize::try_from(this.began.elapsed().as_millis()).unwrap_or(usize::MAX);
                let is_slow = this.began.elapsed() >= START && this.taken / milliseconds.max(1) < BYTES_A_MILLISECOND;
                if is_slow && this.held.as_ref().is_some_and(Held::is_short) {
                    return Poll::Ready(Some(Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut)))));
                }
                this.taken += PIECE.min(bytes.len());
                let piece = bytes.split_to(PIECE.min(bytes.len()));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.rest {
            Rest::Small(body) => body.is_end_stream(),
            Rest::Large(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            Rest::Small(body) => body.size_hint(),
            Rest::Large(bytes) => SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
        }
    }
}
