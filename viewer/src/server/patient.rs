//! A socket whose other end must take what is written, and soon; its place is told what moves.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::places::Place;
use super::tls;

/// So many bytes of an answer are taken in so much time, or nobody takes it.
const TAKEN: usize = 16 << 10;
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A stream that does not wait for ever for its other end to take what is written.
pub(super) struct Patient {
    stream: TcpStream,
    place: Arc<Place>,
    /// Whether its first bytes came.
    has_begun: bool,
    /// Since when it waits, and what was taken since then.
    waiting: Option<(Pin<Box<Sleep>>, usize)>,
}

impl Patient {
    /// Reads and writes this one.
    pub(super) fn new(stream: TcpStream, place: Arc<Place>) -> Self {
        Self { stream, place, has_begun: false, waiting: None }
    }

    fn note(
        &mut self,
        context: &mut Context<'_>,
        all: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(length)) => {
                self.place.touch(length);
                let taken = self.waiting.as_ref().map_or(0, |(_, taken)| *taken) + length;
                if length == all || taken >= TAKEN {
                    self.waiting = None;
                } else if let Some((_, sum)) = &mut self.waiting {
                    *sum = taken;
                }
                Poll::Ready(Ok(length))
            }
            Poll::Pending => {
                let (sleep, _) = self.waiting.get_or_insert_with(|| (Box::pin(tokio::time::sleep(PATIENCE)), 0));
                match sleep.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                    Poll::Pending => Poll::Pending,
                }
            }
            failed => failed,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = &buffer.filled()[before..];
        self.place.touch(bytes.len());
        if !bytes.is_empty() && !std::mem::replace(&mut self.has_begun, true) && tls::begins_with(bytes) {
            tls::refuse(&self.stream);
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        read
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(context, bytes.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.note(context, bytes.iter().map(|bytes| bytes.len()).sum(), written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
