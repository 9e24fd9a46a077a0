//! An HTTP server in the test's own process that answers as it is told and shows what it was sent. It stands beside that of
//! tests/faults as these tests look at one request at a time, whole, and hold its answer until they say so.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use flate2::read::GzDecoder;
use prost::Message;

use crate::wire::push::{PushRequest, RawProfileSeries};

/// Longer than any test takes, so that one that hangs fails.
const LONG: Duration = Duration::from_secs(30);

pub(super) enum Answer {
    /// Status, headers with line ends, body.
    Text(u16, String, String),
    /// The connection is closed without a word.
    Close,
    /// Answers 200 once the sender is dropped.
    Hang(Receiver<()>),
}

pub(super) fn answer(status: u16, body: &str) -> Answer {
    Answer::Text(status, String::new(), body.to_owned())
}

#[derive(Debug)]
pub(super) struct Request {
    /// Such as "POST /push.v1.PusherService/Push".
    pub(super) line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The one series in it.
    pub(super) fn series(&self) -> RawProfileSeries {
        let mut bytes = Vec::new();
        GzDecoder::new(self.body.as_slice()).read_to_end(&mut bytes).expect("gzip");
        let mut series = PushRequest::decode(bytes.as_slice()).expect("push request").series;
        assert_eq!(series.len(), 1);
        series.remove(0)
    }

    pub(super) fn profile(&self) -> Vec<u8> {
        self.series().samples.remove(0).raw_profile
    }
}

pub(super) struct Server {
    pub(super) address: String,
    requests: Receiver<Request>,
}

impl Server {
    /// Gives the answers one after the other, then 200 for ever.
    pub(super) fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port");
        let address = format!("http://{}", listener.local_addr().expect("address"));
        let answers: Vec<Answer> = answers.into_iter().collect();
        let answers = Arc::new(Mutex::new(answers.into_iter()));
        let (seen, requests) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, seen) = (Arc::clone(&answers), seen.clone());
                thread::spawn(move || {
                    let mut answers = || answers.lock().expect("answers").next().unwrap_or_else(|| answer(200, ""));
                    // A client that goes away is part of some tests.
                    drop(serve(&stream, &mut answers, &seen));
                });
            }
        });
        Self { address, requests }
    }

    /// Waits for the next request.
    pub(super) fn request(&self) -> Request {
        self.requests.recv_timeout(LONG).expect("a request")
    }

    /// The requests that have come.
    pub(super) fn so_far(&self) -> Vec<Request> {
        self.requests.try_iter().collect()
    }
}

fn serve(stream: &TcpStream, next: &mut dyn FnMut() -> Answer, seen: &Sender<Request>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader)? {
        let next = next();
        // A test that has ended no longer listens.
        drop(seen.send(request));
        let (status, headers, body) = match next {
            Answer::Text(status, headers, body) => (status, headers, body),
            Answer::Close => return Ok(()),
            Answer::Hang(until) => {
                // It ends by an error as its sender is dropped, or after the longest time.
                let _ = until.recv_timeout(LONG);
                (200, String::new(), String::new())
            }
        };
        let mut stream = stream;
        write!(stream, "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())?;
    }
    Ok(())
}

fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let line = lines.remove(0).trim_end_matches(" HTTP/1.1").to_owned();
    let header = |line: String| {
        let (name, value) = line.split_once(':').expect("header");
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    let headers: Vec<_> = lines.into_iter().map(header).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().expect("length"))];
    reader.read_exact(&mut body)?;
    Ok(Some(Request { line, headers, body }))
}
