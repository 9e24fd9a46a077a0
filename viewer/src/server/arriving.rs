//! Bodies of requests on their way: whether the server waits for more of one, or its client for the server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};

use super::places::{Ours, Place};

/// A body that tells the place of its connection when more of it is waited for.
#[derive(Debug)]
pub(super) struct Arriving {
    body: Incoming,
    place: Arc<Place>,
    waits: Option<Ours>,
}

impl Arriving {
    /// Reads this one.
    pub(super) fn new(body: Incoming, place: Arc<Place>) -> Self {
        Self { body, place, waits: None }
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.body).poll_frame(context);
        if polled.is_ready() {
            this.waits = None;
            this.place.moves();
        } else if this.waits.is_none() {
            this.waits = Some(Ours::less(&this.place));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
