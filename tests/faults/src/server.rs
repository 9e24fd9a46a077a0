//! A server that misbehaves as it is told, over HTTP or TLS, behind a proxy or not, and knows what it received.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use httpdate::fmt_http_date;
use prost::Message;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde::Serialize;

use crate::profile::{Profile, read, unzipped};

const PUSH: &str = "/push.v1.PusherService/Push";

/// How one request ends. "Kept" = the server stores the profile, whatever the client learns of it.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Kept and answered as Pyroscope does.
    Ok,
    /// Status, headers with their line ends, body; kept if the status is 200. `{in 2 s}` is a date in two seconds.
    Answer(u16, String, Vec<u8>),
    /// Kept, and answered a byte at a time with this long between two.
    Slow(Duration),
    /// Kept, and answered by HTTP/1.0 without a length.
    Http10,
    /// Kept, and the body of the answer never ends.
    Endless,
    /// Kept, and the connection closed without an answer.
    KeepAndClose,
    /// Kept, and the connection closed within the status line.
    KeepAndCut,
    /// Kept, and the connection closed within the answer's body.
    KeepAndCutBody,
    /// The request is read, and nothing ever comes back.
    Hang,
    /// Nothing is read, and nothing ever comes back.
    Deaf,
    /// Closed when the head of the request was read.
    CloseEarly,
    /// Closed as soon as it is open.
    CloseAtOnce,
    /// Something that is not HTTP.
    Gibberish,
    /// A proxy's 413 to the first profile that can be halved, one of two samples or more; all others are kept.
    TooLargeOnce,
}

/// A request for Push, one profile of it.
#[derive(Clone, Debug, Serialize)]
pub struct Push {
    /// Of the request.
    pub path: String,
    /// Of the request; names in lower case.
    pub headers: Vec<(String, String)>,
    /// Of the series.
    pub labels: BTreeMap<String, String>,
    /// The profile.
    pub profile: Profile,
}

/// What came, as the server sees it.
#[derive(Debug, Default)]
pub struct Seen {
    /// The newest that was kept, alone: a soak must not fill the memory.
    pub newest: Option<Push>,
    /// Weight of each profile that was kept, by its identifier.
    pub kept: HashMap<String, u64>,
    /// Profiles that were kept a second time.
    pub duplicates: u64,
    /// When each request for Push began to be answered.
    pub times: Vec<Instant>,
    /// Values of the headers by which a proxy or a server was asked for access.
    pub authorizations: Vec<String>,
    /// CONNECT requests.
    pub connects: u64,
    /// Whether a profile was found too large.
    pub too_large: bool,
}

/// How a server listens.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Speaks TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// Speaks as a proxy first; `Some("")` asks for no credentials.
    pub proxy_authorization: Option<String>,
    /// Listens on all addresses, not only on 127.0.0.1.
    pub everywhere: bool,
    /// Gets all that is kept, or why it cannot be read.
    pub received: Option<Sender<Result<Push, String>>>,
}

/// A server, in threads that end with the process.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where it listens.
    pub port: u16,
    seen: Arc<Mutex<Seen>>,
}

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

/// What all connections share.
struct Script {
    replies: Mutex<std::vec::IntoIter<Reply>>,
    last: Reply,
    options: Options,
}

impl Script {
    fn next(&self) -> Reply {
        self.replies.lock().unwrap().next().unwrap_or_else(|| self.last.clone())
    }

    fn received(&self, push: Result<Push, String>) {
        // Who asked for it may have ended.
        self.options.received.iter().for_each(|received| drop(received.send(push.clone())));
    }
}

impl Server {
    /// Listens on a free port. Gives the replies one after the other, then the last one for ever.
    pub fn start(replies: Vec<Reply>, last: Reply, options: Options) -> Self {
        let host = if options.everywhere { "0.0.0.0" } else { "127.0.0.1" };
        Self::start_on(TcpListener::bind((host, 0)).unwrap(), replies, last, options)
    }

    /// The same, where somebody else listens already.
    pub fn start_on(listener: TcpListener, replies: Vec<Reply>, last: Reply, options: Options) -> Self {
        let server = Self { port: listener.local_addr().unwrap().port(), seen: Arc::default() };
        let script = Arc::new(Script { replies: Mutex::new(replies.into_iter()), last, options });
        let seen = Arc::clone(&server.seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (script, seen) = (Arc::clone(&script), Arc::clone(&seen));
                // A client that goes away is part of the game.
                std::thread::spawn(move || drop(connection(stream, &script, &seen)));
            }
        });
        server
    }

    /// What came so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }
}

fn connection(stream: TcpStream, script: &Script, seen: &Mutex<Seen>) -> io::Result<()> {
    match script.last {
        Reply::Deaf => hang(),
        Reply::CloseAtOnce => return stream.shutdown(Shutdown::Both),
        _ => {}
    }
    let mut plain = BufReader::new(stream);
    if let Some(expected) = &script.options.proxy_authorization
        && !connect(&mut plain, expected, seen)?
    {
        return Ok(());
    }
    match &script.options.tls {
        Some(config) => {
            let session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
            requests(BufReader::new(Box::new(StreamOwned::new(session, plain.into_inner()))), script, seen)
        }
        None => requests(BufReader::new(Box::new(plain.into_inner())), script, seen),
    }
}

/// A proxy's part of a connection; the tunnel leads to this very server.
fn connect(stream: &mut BufReader<TcpStream>, expected: &str, seen: &Mutex<Seen>) -> io::Result<bool> {
    let Some((line, headers)) = head(stream)? else { return Ok(false) };
    assert!(line.starts_with("CONNECT "), "{line}");
    let given = header(&headers, "proxy-authorization").unwrap_or_default();
    let mut seen = seen.lock().unwrap();
    seen.connects += 1;
    seen.authorizations.push(given.clone());
    drop(seen);
    let allowed = given == expected;
    let answer = if allowed {
        "HTTP/1.1 200 Connection established\r\n\r\n"
    } else {
        "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    };
    stream.get_mut().write_all(answer.as_bytes())?;
    Ok(allowed)
}

fn requests(mut stream: BufReader<Box<dyn Duplex>>, script: &Script, seen: &Mutex<Seen>) -> io::Result<()> {
    while let Some((line, headers)) = head(&mut stream)? {
        let path = line.split(' ').nth(1).unwrap_or_default();
        if line.starts_with("GET ") || script.options.received.is_some() && !path.ends_with(PUSH) {
            read_body(&mut stream, &headers)?;
            stream.get_mut().write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        }
        let reply = script.next();
        if matches!(reply, Reply::CloseEarly) {
            return Ok(());
        }
        let body = read_body(&mut stream, &headers)?;
        let pushes = if is_kept(&reply) { pushes_in(path, &headers, &body) } else { Ok(Vec::new()) };
        let mut now = seen.lock().unwrap();
        let samples = || pushes.iter().flatten().map(|(_, push)| push.profile.samples.len()).sum::<usize>();
        let reply = match reply {
            Reply::TooLargeOnce if !now.too_large && samples() > 1 => {
                now.too_large = true;
                Reply::Answer(413, String::new(), Vec::new())
            }
            Reply::TooLargeOnce => Reply::Ok,
            reply => reply,
        };
        now.times.push(Instant::now());
        now.authorizations.extend(header(&headers, "authorization"));
        let reply = match pushes {
            Ok(pushes) if is_kept(&reply) => {
                pushes.into_iter().for_each(|(id, push)| now.keep(id, push, script));
                reply
            }
            Ok(_) => reply,
            Err(error) => {
                script.received(Err(error));
                Reply::Answer(400, String::new(), Vec::new())
            }
        };
        drop(now);
        if !answer(&mut stream, reply)? {
            return Ok(());
        }
    }
    Ok(())
}

fn read_body(stream: &mut impl BufRead, headers: &[(String, String)]) -> io::Result<Vec<u8>> {
    let length = header(headers, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn is_kept(reply: &Reply) -> bool {
    match reply {
        Reply::Answer(status, headers, _) => *status == 200 && !headers.contains("text/html"),
        Reply::Hang | Reply::Deaf | Reply::CloseEarly | Reply::CloseAtOnce | Reply::Gibberish => false,
        _ => true,
    }
}

/// Gives the answer. False: the connection is closed after it.
fn answer(stream: &mut BufReader<Box<dyn Duplex>>, reply: Reply) -> io::Result<bool> {
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 0\r\n\r\n";
    let stream = stream.get_mut();
    match reply {
        Reply::Ok => stream.write_all(OK.as_bytes())?,
        Reply::Answer(status, headers, body) => {
            let headers = headers.replace("{in 2 s}", &fmt_http_date(SystemTime::now() + Duration::from_secs(2)));
            write!(stream, "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n", body.len())?;
            stream.write_all(&body)?;
        }
        Reply::Slow(pause) => {
            for byte in OK.bytes() {
                std::thread::sleep(pause);
                stream.write_all(&[byte])?;
                stream.flush()?;
            }
        }
        Reply::Http10 => {
            stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: application/proto\r\n\r\n")?;
            return Ok(false);
        }
        Reply::Endless => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\n\r\n")?;
            loop {
                stream.write_all(&[0; 4096])?;
            }
        }
        Reply::KeepAndCut => {
            stream.write_all(b"HTTP/1.1 20")?;
            return Ok(false);
        }
        Reply::KeepAndCutBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789")?;
            return Ok(false);
        }
        Reply::Gibberish => {
            stream.write_all(b"\x16\x03\x01 what?\r\n\r\n")?;
            return Ok(false);
        }
        Reply::Hang | Reply::Deaf => hang(),
        Reply::TooLargeOnce => unreachable!("it is one or the other by now"),
        Reply::KeepAndClose | Reply::CloseEarly | Reply::CloseAtOnce => return Ok(false),
    }
    stream.flush()?;
    Ok(true)
}

/// Until the process ends.
fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

impl Seen {
    fn keep(&mut self, id: String, push: Push, script: &Script) {
        let weight = push.profile.samples.iter().map(|sample| sample.values[0].unsigned_abs()).sum();
        if self.kept.insert(id, weight).is_some() {
            self.duplicates += 1;
        }
        self.newest = Some(push.clone());
        script.received(Ok(push));
    }
}

// Push, in messages of its server's own: what was written with others must be in them.

#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<Series>,
}

#[derive(Clone, PartialEq, Message)]
struct Series {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawProfile>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawProfile {
    #[prost(bytes = "vec", tag = "1")]
    bytes: Vec<u8>,
    #[prost(string, tag = "2")]
    id: String,
}

/// All profiles of a request, each with its identifier.
fn pushes_in(path: &str, headers: &[(String, String)], body: &[u8]) -> Result<Vec<(String, Push)>, String> {
    let request = PushRequest::decode(unzipped(body)?.as_slice()).map_err(|error| error.to_string())?;
    let mut pushes = Vec::new();
    for series in request.series {
        let labels: BTreeMap<_, _> = series.labels.into_iter().map(|label| (label.name, label.value)).collect();
        for RawProfile { bytes, id } in series.samples {
            let (path, headers, labels) = (path.to_owned(), headers.to_vec(), labels.clone());
            pushes.push((id, Push { path, headers, labels, profile: read(&bytes)? }));
        }
    }
    Ok(pushes)
}

/// The first line of a request and its headers.
type Head = (String, Vec<(String, String)>);

fn head(stream: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let first = lines.remove(0);
    let headers = lines.iter().filter_map(|line| line.split_once(": "));
    Ok(Some((first, headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect())))
}

fn header(headers: &[(String, String)], name: &str) -> Option<String> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}
