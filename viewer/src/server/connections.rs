//! Connections: each closed when it is silent, or when its other end does not take what it asked for; where no place
//! becomes free soon, a newcomer is told.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower_service::Service as _;

use super::arriving::Arriving;
use super::paced::send;
use super::patient::{PATIENCE, Patient};
use super::places::{BUFFER, Connections, Place, SILENT, Working};
use crate::queries::{self, Client};

/// What a connection over HTTP/2 may keep of what came in and was not read yet.
const WINDOW: u32 = 64 << 10;
/// The head of a request arrives within this time.
const HEAD: Duration = Duration::from_secs(20);
/// Who comes when all places are taken waits for one for this time.
const WAIT: Duration = Duration::from_secs(2);

/// Serves until it is stopped, then until the last request is answered.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    all: Arc<Connections>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    let stop = stopped.clone();
    let serve = |stream, place| connection(stream, routes.clone(), place, stop.clone());
    // Who waits for a place, where it comes from, and until when.
    let mut waiting: VecDeque<(TcpStream, IpAddr, Instant)> = VecDeque::new();
    loop {
        let until = waiting.front().map(|(.., until)| *until);
        let from: Vec<IpAddr> = waiting.iter().map(|(_, from, _)| *from).collect();
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // An error means that the sender is gone, which is an end too.
            _ = stopped.wait_for(|stopped| *stopped) => break,
            Some(_) = open.join_next() => continue,
            (at, place) = all.enter_later(&from), if until.is_some() => {
                if let Some((stream, ..)) = waiting.remove(at) {
                    open.spawn(serve(stream, place));
                }
                continue;
            }
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                if let Some((stream, from, _)) = waiting.pop_front() {
                    open.spawn(refuse(stream, all.why(from)));
                }
                continue;
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                let network = queries::network(peer.ip());
                let of_one = from.iter().filter(|other| **other == network).count();
                // Who waits already comes first, but for those whose address has all that it may.
                let is_first = of_one == 0 && from.iter().all(|other| all.has_most(*other));
                match is_first.then(|| all.enter(network)).flatten() {
                    Some(place) => drop(open.spawn(serve(stream, place))),
                    None if all.may_wait(waiting.len(), of_one) => {
                        waiting.push_back((stream, network, Instant::now() + WAIT));
                    }
                    None => drop(open.spawn(refuse(stream, all.why(network)))),
                }
            }
            // Too many files are open, or the other end is gone already.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Says why, and closes.
async fn refuse(mut stream: TcpStream, sentence: String) {
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
    // Who is gone already asks nothing.
    let address = stream.peer_addr().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
    let client = Client::new(address, place.number);
    let service = service_fn(|request: Request<Incoming>| answer(routes.clone(), client, place.work(), request));
    let mut served = pin!(builder.serve_connection(TokioIo::new(Patient::new(stream, Arc::clone(&place))), service));
    let mut is_ending = false;
    loop {
        tokio::select! {
            // What is wrong with a connection is between it and its other end.
            _ = served.as_mut() => return,
            () = place.close.notified() => return,
            () = place.end.notified(), if !is_ending => {
                is_ending = true;
                served.as_mut().graceful_shutdown();
            }
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

async fn answer(
    mut routes: Router,
    client: Client,
    working: Working,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    // Until the answer is handed over; from then on its client is what it waits for.
    let _ours = working.ours();
    let answered = routes.call(request.map(|body| Body::new(Arriving::new(body, working.place()))));
    let sent = async |response: Result<Response, Infallible>| Ok(send(response?, working).await);
    queries::keeping(client, answered, sent).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed; // a number that orders nothing
    use std::sync::{Mutex, mpsc};

    use axum::http::StatusCode;
    use axum::routing::get;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpSocket;

    use super::*;
    use crate::queries::Queries;

    const LARGE: usize = 32 << 20;

    fn large() -> Router {
        Router::new().route("/large", get(|| async { vec![b'x'; LARGE] }))
    }

    /// A connection from an address that is served, its other end, and what tells of its end.
    async fn connected(all: &Arc<Connections>, routes: Router, from: &str) -> (TcpStream, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpSocket::new_v4().unwrap();
        client.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let client = client.connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut served = JoinSet::new();
        let (stop, stopped) = watch::channel(false);
        let place = all.enter(client.local_addr().unwrap().ip()).unwrap();
        served.spawn(async move {
            connection(stream, routes, place, stopped).await;
            drop(stop);
        });
        (client, served)
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_of_an_answer_is_cut_off() {
        let all = Connections::new(2 * LARGE);
        let (mut client, mut served) = connected(&all, large(), "127.0.0.1").await;
        client.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        // The clock goes on whenever nothing else can.
        served.join_next().await.unwrap().unwrap();
        assert!(all.is_empty());
        assert!(all.sent().hold().grow_now(2 * LARGE), "what was not sent is given back");
        let mut taken = Vec::new();
        let _ = client.read_to_end(&mut taken).await;
        assert!(taken.len() < LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_is_not_waited_for() {
        let all = Connections::new(1 << 20);
        for half in [&b""[..], b"GET /large HTTP/1.1\r\nhost: localhost\r\n"] {
            let (mut client, mut served) = connected(&all, large(), "127.0.0.1").await;
            client.write_all(half).await.unwrap();
            let start = Instant::now();
            served.join_next().await.unwrap().unwrap();
            assert!(start.elapsed() <= SILENT + SILENT / 6);
            assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
        }
    }

    /// So many questions over HTTP/2, all at once.
    fn questions(count: u32) -> Vec<u8> {
        let head = b"\x82\x86\x04\x04/ask\x01\x09localhost";
        let ask = |stream: u32| {
            [&[0, 0, u8::try_from(head.len()).unwrap(), 1, 5][..], &(2 * stream + 1).to_be_bytes(), head].concat()
        };
        let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        [begin, (0..count).flat_map(ask).collect()].concat()
    }

    #[tokio::test]
    async fn who_has_as_many_questions_in_flight_as_may_wait_keeps_no_other_out() {
        let (queries, came) = (Queries::new(1), Arc::new(AtomicUsize::new(0)));
        let (go_on, gate) = mpsc::channel();
        let (gate, of_handler) = (Arc::new(Mutex::new(gate)), Arc::clone(&came));
        let ask = async move || {
            of_handler.fetch_add(1, Relaxed);
            match queries.run(move || gate.lock().unwrap().recv()).await {
                Ok(_) => Ok("told"),
                Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
            }
        };
        let (all, routes) = (Connections::new(1 << 20), Router::new().route("/ask", get(ask)));
        let have_come = async |count: usize| {
            while came.load(Relaxed) < count {
                tokio::task::yield_now().await;
            }
        };
        let mut served = Vec::new();
        for attack in 1..=2 {
            let mut attacker = connected(&all, routes.clone(), "127.0.0.1").await;
            attacker.0.write_all(&questions(17)).await.unwrap();
            served.push(attacker);
            have_come(17 * attack).await;
        }
        // From the same address and from another one.
        for (number, from) in ["127.0.0.1", "127.0.0.2"].into_iter().enumerate() {
            let mut other = connected(&all, routes.clone(), from).await;
            let question = b"GET /ask HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            other.0.write_all(question).await.unwrap();
            served.push(other);
            have_come(35 + number).await;
        }
        // The one that is worked on, one of the attacker's other connection, and these.
        for _ in 0..4 {
            go_on.send(()).unwrap();
        }
        for other in &mut served[2..] {
            let mut answer = String::new();
            other.0.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("told"), "{answer}");
        }
        drop(go_on);
    }
}
