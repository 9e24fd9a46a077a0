//! Connections: only so many at once, each closed when it is silent, or when its other end does not take what it asked
//! for. Where all are taken, the one that was silent for longest makes room; where all are at work, a newcomer is told.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use tower_service::Service as _;

use crate::budget::{Budget, Held, NoRoom};
use crate::queries;

/// The most connections of all doors; fewer where the process may open few files, or has little memory.
const MOST: usize = 1_000;
const LEAST: usize = 64;
/// What a connection may keep of what came in and was not read yet, and of what goes out.
const BUFFER: usize = 64 << 10;
const WINDOW: u32 = 64 << 10;
/// The head of a request arrives within this time.
const HEAD: Duration = Duration::from_secs(20);
/// A connection without a request is closed after this time.
const SILENT: Duration = Duration::from_secs(60);
/// And makes room for another after this one.
const YOUNG: Duration = Duration::from_millis(500);
/// So many bytes of an answer are taken in so much time, or nobody takes it.
const TAKEN: usize = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(20);
/// A connection on which nothing moves is closed after this time, also where HTTP/2 keeps a window closed. More than any
/// request takes until its answer begins.
const STILL: Duration = Duration::from_secs(120);
/// Where others wait for the bytes of answers, one is taken at this rate after this time, or ended.
const BYTES_A_MILLISECOND: usize = 32;
const START: Duration = Duration::from_secs(5);
/// Answers that are larger are sent in pieces of this many bytes, and count as memory until they are.
const PIECE: usize = 64 << 10;

/// All connections.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    places: Mutex<Places>,
    /// The bytes of answers that are being sent.
    sent: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    by_number: BTreeMap<u64, State>,
}

#[derive(Debug)]
struct State {
    /// Requests that are worked on or answered.
    requests: usize,
    silent_since: Instant,
    /// When a request came, an answer was done, or a piece of one was taken.
    moved: Instant,
    close: Arc<Notify>,
}

/// The place of one connection.
#[derive(Debug)]
struct Place {
    all: Arc<Connections>,
    number: u64,
    close: Arc<Notify>,
}

/// A request of a connection that is worked on or answered.
#[derive(Debug)]
struct Working(Arc<Place>);

impl Connections {
    /// `sent` are the bytes that answers may take while they are sent.
    pub(super) fn new(sent: usize) -> Arc<Self> {
        let by_memory = (sent / BUFFER).clamp(LEAST, MOST);
        let most = most_files().map_or(by_memory, |files| (files / 2).clamp(16, by_memory));
        Arc::new(Self { most, places: Mutex::default(), sent: Budget::new(sent, sent) })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None if all connections are at work.
    fn enter(self: &Arc<Self>) -> Option<Arc<Place>> {
        let mut places = self.places();
        if places.by_number.len() >= self.most {
            let silent = places.by_number.iter().filter(|(_, state)| state.is_silent(YOUNG));
            let (number, state) = silent.min_by_key(|(_, state)| state.silent_since)?;
            state.close.notify_one();
            let number = *number;
            places.by_number.remove(&number);
        }
        let (number, close) = (places.next, Arc::new(Notify::new()));
        places.next += 1;
        let now = Instant::now();
        let state = State { requests: 0, silent_since: now, moved: now, close: Arc::clone(&close) };
        places.by_number.insert(number, state);
        Some(Arc::new(Place { all: Arc::clone(self), number, close }))
    }
}

impl State {
    fn is_silent(&self, time: Duration) -> bool {
        self.requests == 0 && self.silent_since.elapsed() >= time
    }
}

impl Place {
    fn work(self: &Arc<Self>) -> Working {
        if let Some(state) = self.all.places().by_number.get_mut(&self.number) {
            state.requests += 1;
            state.moved = Instant::now();
        }
        Working(Arc::clone(self))
    }

    fn moves(&self) {
        if let Some(state) = self.all.places().by_number.get_mut(&self.number) {
            state.moved = Instant::now();
        }
    }

    fn is_silent(&self) -> bool {
        let places = self.all.places();
        let state = places.by_number.get(&self.number);
        state.is_none_or(|state| state.is_silent(SILENT) || state.moved.elapsed() >= STILL)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.places().by_number.remove(&self.number);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some(state) = self.0.all.places().by_number.get_mut(&self.0.number) {
            state.requests -= 1;
            state.silent_since = Instant::now();
            state.moved = state.silent_since;
        }
    }
}

/// How many files the process may have open.
fn most_files() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Serves until it is stopped, then until the last request is answered.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    all: Arc<Connections>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    let stop = stopped.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // An error means that the sender is gone, which is an end too.
            _ = stopped.wait_for(|stopped| *stopped) => break,
            Some(_) = open.join_next() => continue,
        };
        match accepted.map(|(stream, _)| (stream, all.enter())) {
            Ok((stream, Some(place))) => drop(open.spawn(connection(stream, routes.clone(), place, stop.clone()))),
            Ok((stream, None)) => drop(open.spawn(refuse(stream))),
            // Too many files are open, or the other end is gone already.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Says why, and closes.
async fn refuse(mut stream: TcpStream) {
    let sentence = "this server has as many connections as it takes; try again in a second\n";
    let length = sentence.len();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: text/plain\r\n\
         content-length: {length}\r\n\r\n{sentence}"
    );
    // Whoever does not take it is closed all the same.
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer.as_bytes())).await;
}

async fn connection(stream: TcpStream, routes: Router, place: Arc<Place>, mut stopped: watch::Receiver<bool>) {
    // Answers are written whole; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(32)
        .max_header_list_size(16 << 10)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .max_send_buf_size(BUFFER)
        .keep_alive_interval(Some(PATIENCE))
        .keep_alive_timeout(PATIENCE);
    let service = service_fn(|request: Request<Incoming>| answer(routes.clone(), place.work(), request));
    let mut served = pin!(builder.serve_connection(TokioIo::new(Patient::new(stream)), service));
    let mut is_ending = false;
    loop {
        tokio::select! {
            // What is wrong with a connection is between it and its other end.
            _ = served.as_mut() => return,
            () = place.close.notified() => return,
            _ = stopped.wait_for(|stopped| *stopped), if !is_ending => {
                is_ending = true;
                served.as_mut().graceful_shutdown();
            }
            () = tokio::time::sleep(SILENT / 6) => {
                if place.is_silent() {
                    return;
                }
            }
        }
    }
}

async fn answer(mut routes: Router, working: Working, request: Request<Incoming>) -> Result<Response, Infallible> {
    let answered = routes.call(request.map(Body::new));
    queries::keeping(answered, async |response: Result<Response, Infallible>| Ok(send(response?, working).await)).await
}

async fn send(response: Response, working: Working) -> Response {
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
    let mut held = working.0.all.sent.hold();
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
        this.working.0.moves();
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

/// A stream that does not wait for ever for its other end to take what is written.
struct Patient {
    stream: TcpStream,
    /// Since when it waits, and what was taken since then.
    waiting: Option<(Pin<Box<Sleep>>, usize)>,
}

impl Patient {
    fn new(stream: TcpStream) -> Self {
        Self { stream, waiting: None }
    }

    fn note(
        &mut self,
        context: &mut Context<'_>,
        all: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(length)) => {
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
        Pin::new(&mut self.stream).poll_read(context, buffer)
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

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    const LARGE: usize = 32 << 20;

    /// A connection that is served, its other end, and what tells of its end.
    async fn connected(all: &Arc<Connections>) -> (TcpStream, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let routes = Router::new().route("/large", get(|| async { vec![b'x'; LARGE] }));
        let mut served = JoinSet::new();
        let (stop, stopped) = watch::channel(false);
        let place = all.enter().unwrap();
        served.spawn(async move {
            connection(stream, routes, place, stopped).await;
            drop(stop);
        });
        (client, served)
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_of_an_answer_is_cut_off() {
        let all = Connections::new(2 * LARGE);
        let (mut client, mut served) = connected(&all).await;
        client.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        // The clock goes on whenever nothing else can.
        served.join_next().await.unwrap().unwrap();
        assert!(all.places().by_number.is_empty());
        assert!(all.sent.hold().grow_now(2 * LARGE), "what was not sent is given back");
        let mut taken = Vec::new();
        let _ = client.read_to_end(&mut taken).await;
        assert!(taken.len() < LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_is_not_waited_for() {
        let all = Connections::new(1 << 20);
        for half in [&b""[..], b"GET /large HTTP/1.1\r\nhost: localhost\r\n"] {
            let (mut client, mut served) = connected(&all).await;
            client.write_all(half).await.unwrap();
            let start = Instant::now();
            served.join_next().await.unwrap().unwrap();
            assert!(start.elapsed() <= SILENT + SILENT / 6);
            assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
        }
    }
}
