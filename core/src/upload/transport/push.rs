//! `PusherService/Push` of a Pyroscope server, over HTTP.
//!
//! Called on the upload thread only. A profile is one request with one series: of several, a server may store half and
//! refuse the rest, and one bad label would cost the others.

use std::io::{self, Read};
use std::time::{Duration, SystemTime};

use prost::Message;
use ureq::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::http::{HeaderMap, HeaderValue, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy, RequestBuilder, SendBody, Timeout};

use super::super::backoff;
use super::super::outcome::{self, Blame, Failure, Outcome, Verdict};
use super::super::queue::Item;
use super::secrets::Secrets;
use crate::config::{HttpTarget, Settings, without_credentials};
use crate::messages::{Cause, Messages};
use crate::profile::pprof::gzip;
use crate::wire::labels::NAME;
use crate::wire::push::{LabelPair, PushRequest, RawProfileSeries, RawSample};

const PATH: &str = "/push.v1.PusherService/Push";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What is read of an answer.
const ANSWER_BYTES: u64 = 16 * 1024;
/// What is shown of one, in characters.
const SHOWN: usize = 300;
/// What is said where credentials were left out.
const STRANGER: &str = " (after a redirect to another scheme or port, to which no credentials are sent)";

/// A server, ready to be sent to.
#[derive(Debug)]
pub(in crate::upload) struct Push {
    agent: Agent,
    base: String,
    headers: HeaderMap,
    secrets: Secrets,
    has_proxy: bool,
    /// Labels of the series but `__name__`.
    labels: Vec<LabelPair>,
}

impl Push {
    /// Reads the proxies' environment variables, so it is called on the thread that starts the profiler: other
    /// threads' reads could meet a host that changes its environment.
    pub(in crate::upload) fn new(target: &HttpTarget, settings: &Settings, messages: &Messages) -> Self {
        let proxy = proxy(&target.base, |name| std::env::var(name).ok()).unwrap_or_else(|variable| {
            messages.report(Cause::BadProxy, &[variable, &target.base]);
            None
        });
        Self::through(proxy, target, settings)
    }

    fn through(proxy: Option<Proxy>, target: &HttpTarget, settings: &Settings) -> Self {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let has_proxy = proxy.is_some();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls)
            .proxy(proxy)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            // None is kept: a program that becomes a daemon closes all descriptors, and has a file of its own where ours was.
            .max_idle_connections(0)
            .build();
        let label = |(name, value): &(String, String)| LabelPair { name: name.clone(), value: value.clone() };
        Self {
            agent: Agent::new_with_config(config),
            base: target.base.clone(),
            headers: target.headers.clone(),
            secrets: Secrets::of(&target.headers),
            has_proxy,
            labels: settings.series_labels.iter().map(label).collect(),
        }
    }

    /// Sends a profile and says what became of it.
    pub(in crate::upload) fn send(&self, item: &Item, timeout: Duration) -> Outcome {
        let Some(body) = self.request_body(item) else {
            return Outcome::without_memory();
        };
        let url = format!("{}{PATH}", self.base);
        let mut outgoing = Outgoing(&body);
        let mut stranger = "";
        let answer = self.post(&url, &mut outgoing, timeout, true).and_then(|answer| match same_host(&url, &answer) {
            Some(elsewhere) => {
                outgoing = Outgoing(&body);
                if !elsewhere.is_same_origin && self.headers.values().any(HeaderValue::is_sensitive) {
                    stranger = STRANGER;
                }
                self.post(&elsewhere.url, &mut outgoing, timeout, elsewhere.is_same_origin)
            }
            None => Ok(answer),
        });
        match answer {
            Ok(answer) => self.outcome(answer, stranger),
            Err(error) => Outcome {
                verdict: Verdict::Retry { after: None },
                reason: self.reason(&error),
                blame: self.blame(&error, outgoing.0.len() < body.len()),
                status: None,
                unanswered: outgoing.0.is_empty(),
            },
        }
    }

    /// The body of `GET {base}{path}`, if the server answers at all and with 200.
    pub(in crate::upload) fn get(&self, path: &str, timeout: Duration) -> Option<String> {
        let (status, text) = self.ask(path, None, timeout).ok()?;
        (status == 200).then_some(text)
    }

    /// Status and body of what `{base}{path}` answers to GET, or to a POST of JSON.
    pub(in crate::upload) fn ask(
        &self,
        path: &str,
        sent: Option<(&str, &[u8])>,
        timeout: Duration,
    ) -> Result<(u16, String), Failure> {
        let url = format!("{}{path}", self.base);
        let answer = match sent {
            None => self.prepared(self.agent.get(url), timeout, true).call(),
            Some((content_type, body)) => {
                self.prepared(self.agent.post(url), timeout, true).header(CONTENT_TYPE, content_type).send(body)
            }
        };
        let answer = answer.map_err(|error| Failure {
            status: None,
            reason: self.reason(&error),
            settings: self.blame(&error, !is_of_connecting(&error)).settings(),
        })?;
        let status = answer.status();
        let text = text_of(answer);
        // What a server says is wrong may name them; an answer is data, of which nothing may be changed.
        Ok((status.as_u16(), if status.is_success() { text } else { self.secrets.mask(&text) }))
    }

    /// With the headers that are set, credentials only where they belong, and a time to be answered in.
    fn prepared<B>(&self, mut request: RequestBuilder<B>, timeout: Duration, is_ours: bool) -> RequestBuilder<B> {
        for (name, value) in self.headers.iter().filter(|(_, value)| is_ours || !value.is_sensitive()) {
            request = request.header(name, value);
        }
        request.config().timeout_global(Some(timeout)).build()
    }

    /// `None`: there is no memory.
    fn request_body(&self, item: &Item) -> Option<Vec<u8>> {
        let mut labels = self.labels.clone();
        labels.push(LabelPair { name: NAME.to_owned(), value: item.encoded.profile_type.name.to_owned() });
        labels.sort_unstable();
        let sample = RawSample { raw_profile: item.encoded.body.clone(), id: item.id.clone() };
        let series = RawProfileSeries { labels, samples: vec![sample] };
        gzip(&PushRequest { series: vec![series] }.encode_to_vec())
    }

    fn post(
        &self,
        url: &str,
        body: &mut Outgoing<'_>,
        timeout: Duration,
        is_ours: bool,
    ) -> Result<Response<Body>, ureq::Error> {
        let request = self
            .agent
            .post(url)
            .header(CONTENT_TYPE, "application/proto")
            .header(CONTENT_ENCODING, "gzip")
            .header(CONTENT_LENGTH, body.0.len().to_string());
        self.prepared(request, timeout, is_ours).send(SendBody::from_reader(body))
    }

    /// Why a request brought no answer.
    fn reason(&self, error: &ureq::Error) -> String {
        let reason = plain(&self.secrets.mask(&error.to_string()));
        // It answered in plain text, or speaks another protocol.
        let is_tls = !reason.contains("received corrupt message");
        if is_tls { reason } else { format!("{reason}: no TLS is spoken there, it may be http:// or another port") }
    }

    /// What to look at after a request that brought no answer. Who was not reached, where nothing was sent, is the proxy.
    fn blame(&self, error: &ureq::Error, was_sent: bool) -> Blame {
        use ureq::Error::{ConnectProxyFailed, ConnectionFailed, HostNotFound, Io, Timeout};
        match error {
            ConnectProxyFailed(_) => Blame::Proxy,
            error if is_certificate(error) => Blame::Certificates,
            Io(_) | HostNotFound | ConnectionFailed | Timeout(_) if self.has_proxy && !was_sent => Blame::Proxy,
            _ => Blame::Address,
        }
    }

    /// `hint` says more of a refusal.
    fn outcome(&self, answer: Response<Body>, hint: &str) -> Outcome {
        let status = answer.status().as_u16();
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let retry_after = header(RETRY_AFTER).and_then(|value| backoff::retry_after(value, SystemTime::now()));
        let location = header(LOCATION).map(|to| format!(" to {}", without_credentials(to))).unwrap_or_default();
        let is_page = header(CONTENT_TYPE).is_some_and(|kind| kind.trim_start().starts_with("text/html"));
        // Read to the end whatever it says, as the connection cannot be used again otherwise.
        let text = text_of(answer);
        let (code, message) = said(&text, |text| self.secrets.mask(text));
        let (verdict, blame) = outcome::judge(status, &code, retry_after);
        if verdict == Verdict::Accepted {
            // A login page or another web server says 200 to anything, and has stored nothing.
            if is_page || text.trim_start().starts_with('<') {
                let reason = format!("HTTP {status} with a web page, which is no answer of a Pyroscope server");
                return Outcome {
                    verdict: Verdict::Refused,
                    reason,
                    blame: Blame::Address,
                    status: Some(status),
                    unanswered: false,
                };
            }
            return Outcome::accepted();
        }
        let mut reason = format!("HTTP {status}");
        if (300..400).contains(&status) {
            reason.push_str(&location);
        }
        if !message.is_empty() {
            reason = format!("{reason}: {message}");
        }
        let reason = plain(&self.secrets.mask(&reason)) + hint;
        Outcome { verdict, reason, blame, status: Some(status), unanswered: false }
    }
}

/// Whether an error says by itself that nothing was sent yet: of a request without a body nothing else does.
fn is_of_connecting(error: &ureq::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error {
        ureq::Error::Io(error) => {
            !matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
        }
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => true,
        _ => false,
    }
}

/// Whether TLS ended a connection because of the server's certificate.
fn is_certificate(error: &ureq::Error) -> bool {
    error.to_string().contains("certificate")
}

/// The body of a request, which knows whether all of it was taken to be sent.
#[derive(Debug)]
struct Outgoing<'a>(&'a [u8]);

impl Read for Outgoing<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

fn text_of(answer: Response<Body>) -> String {
    let mut bytes = Vec::new();
    // What was read before a connection broke may still say why.
    drop(answer.into_body().into_reader().take(ANSWER_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Code and message of an answer: Connect sends JSON, proxies a line of text or a page that says nothing.
///
/// What is secret is masked before anything is truncated.
pub(in crate::upload) fn said(text: &str, mask: impl Fn(&str) -> String) -> (String, String) {
    let (code, message) = match serde_json::from_str::<serde_json::Value>(text) {
        Ok(json) => {
            let field = |name: &str| json.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
            (field("code"), field("message"))
        }
        Err(_) if text.trim_start().starts_with('<') => (String::new(), String::new()),
        Err(_) => (String::new(), text.to_owned()),
    };
    (code, plain(mask(&message).trim()).chars().take(SHOWN).collect())
}

/// Without characters that would move the cursor, end a line or turn the direction of a terminal or a log.
fn plain(text: &str) -> String {
    let moves = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{61c}' | '\u{feff}')
    };
    text.chars().map(|c| if moves(c) { ' ' } else { c }).collect()
}

/// Where a redirect leads to.
#[derive(Debug, PartialEq, Eq)]
struct Elsewhere {
    url: String,
    /// Scheme, host and port are those of the server that is set.
    is_same_origin: bool,
}

/// Where a redirect leads, if that is the same host and as safe. Profiles go nowhere else, and credentials to no other
/// scheme or port either: another program may listen there.
fn same_host<B>(from: &str, answer: &Response<B>) -> Option<Elsewhere> {
    if !matches!(answer.status().as_u16(), 301 | 302 | 307 | 308) {
        return None;
    }
    let from: Uri = from.parse().ok()?;
    let location = answer.headers().get(LOCATION)?.to_str().ok()?;
    if location.starts_with('/') && !location.starts_with("//") {
        let url = format!("{}://{}{location}", from.scheme_str()?, from.authority()?);
        return Some(Elsewhere { url, is_same_origin: true });
    }
    let to: Uri = location.parse().ok()?;
    let safe =
        to.scheme_str() == Some("https") || (to.scheme_str() == Some("http") && from.scheme_str() == Some("http"));
    let is_same_host = to.host()?.eq_ignore_ascii_case(from.host()?);
    let is_same_origin = is_same_host && to.scheme_str() == from.scheme_str() && port(&to) == port(&from);
    (safe && is_same_host).then(|| Elsewhere { url: location.to_owned(), is_same_origin })
}

/// The port that is meant.
fn port(uri: &Uri) -> Option<u16> {
    uri.port_u16().or(match uri.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    })
}

/// The proxy for a server: `HTTPS_PROXY` for https, `HTTP_PROXY` for http, `ALL_PROXY` for both, `NO_PROXY` for none.
///
/// As curl and Go do it. The HTTP library by itself takes the first of them that is set for any address. The error is
/// the name of a variable whose value cannot be used.
fn proxy(base: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Proxy>, &'static str> {
    let uri: Uri = base.parse().unwrap_or_default();
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_local = host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    if is_local || excluded(host, &variable("no_proxy").or_else(|| variable("NO_PROXY")).unwrap_or_default()) {
        return Ok(None);
    }
    let names = match uri.scheme_str() {
        Some("https") => ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        _ => ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"],
    };
    let set = names.into_iter().find_map(|name| Some(name).zip(variable(name).filter(|value| !value.is_empty())));
    set.map(|(name, url)| Proxy::new(&url).map_err(|_| name)).transpose()
}

/// Whether `NO_PROXY` names the host: itself, a domain above it, or `*`.
fn excluded(host: &str, no_proxy: &str) -> bool {
    let host = host.to_ascii_lowercase();
    no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase()).any(|entry| {
        let domain = entry.trim_start_matches("*.").trim_start_matches('.');
        entry == "*" || (!domain.is_empty() && (host == domain || host.ends_with(&format!(".{domain}"))))
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::thread;
    use std::time::Instant;

    use super::super::super::queue::Queue;
    use super::*;
    use crate::config::{Config, Target};
    use crate::profile::pprof::Encoded;
    use crate::profile_type::ProfileType;
    use crate::stats::Tally;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_secs(30);

    /// What a test's server is reached through where `ALL_PROXY` has this value.
    fn push(server: &str, all_proxy: &str) -> Push {
        let config =
            Config { application_name: "shop".to_owned(), server_address: server.to_owned(), ..Config::default() };
        let settings = config.validate().expect("settings");
        let Target::Http(target) = &settings.target else { panic!("{:?}", settings.target) };
        let variable = |name: &str| (name == "ALL_PROXY").then(|| all_proxy.to_owned());
        Push::through(proxy(&target.base, variable).expect("a proxy"), target, &settings)
    }

    /// What a SOCKS proxy does first. Returns what it was asked to connect to.
    fn connect_by_socks(stream: &TcpStream) -> io::Result<String> {
        let (mut from, mut to) = (stream, stream);
        let mut bytes = |count: usize| {
            let mut bytes = vec![0; count];
            from.read_exact(&mut bytes).map(|()| bytes)
        };
        let [version, methods] = bytes(2)?[..] else { return Err(io::ErrorKind::InvalidData.into()) };
        if version == 5 {
            bytes(methods.into())?;
            to.write_all(&[5, 0])?;
            let target = match bytes(4)?[3] {
                3 => {
                    let length = bytes(1)?[0];
                    String::from_utf8_lossy(&bytes(length.into())?).into_owned()
                }
                _ => format!("{:?}", bytes(4)?),
            };
            bytes(2)?;
            to.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
            return Ok(target);
        }
        // The port, the address, an empty user.
        bytes(2)?;
        let target = format!("{:?}", bytes(4)?);
        bytes(1)?;
        to.write_all(&[0, 90, 0, 0, 0, 0, 0, 0])?;
        Ok(target)
    }

    /// Reads the headers of a request.
    fn read_request(stream: &TcpStream) -> io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        Ok(())
    }

    /// The address of a proxy that does this with each connection.
    fn proxy_that(serve: impl Fn(&TcpStream) -> io::Result<()> + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port");
        let address = listener.local_addr().expect("address");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away fails its test itself.
                drop(serve(&stream));
            }
        });
        address
    }

    #[test]
    fn a_proxy_of_socks_is_connected_through() {
        let at = proxy_that(|mut stream| {
            let target = connect_by_socks(stream)?;
            read_request(stream)?;
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{target}", target.len())
        });
        for (proxy, server, asked_for) in [
            ("socks5", "http://192.0.2.1:4040", "[192, 0, 2, 1]"),
            ("socks5h", "http://pyroscope.invalid:4040", "pyroscope.invalid"),
            ("socks4", "http://192.0.2.1:4040", "[192, 0, 2, 1]"),
        ] {
            let answer = push(server, &format!("{proxy}://{at}")).get("/ready", LONG);
            assert_eq!(answer.as_deref(), Some(asked_for), "{proxy}");
        }
    }

    fn item() -> Item {
        let encoded = Encoded {
            profile_type: ProfileType::process_cpu(1),
            start_unix_nanos: 0,
            body: b"profile".to_vec(),
            tally: Tally::default(),
        };
        let mut queue = Queue::new(1 << 20);
        queue.add(encoded, Instant::now());
        queue.take(u64::MAX).expect("the profile")
    }

    #[test]
    fn a_proxy_that_cannot_be_reached_is_to_blame_and_not_the_server() {
        let port = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("port");
        for proxy in ["http", "socks5h"] {
            let push = push("http://pyroscope.invalid:4040", &format!("{proxy}://{}", port()));
            assert_eq!(push.send(&item(), LONG).blame, Blame::Proxy, "{proxy}");
            let failure = push.ask("/ready", None, LONG).expect_err("no answer");
            assert_eq!(failure.settings, Blame::Proxy.settings(), "{proxy}: {}", failure.reason);
            for error in [ureq::Error::HostNotFound, ureq::Error::Timeout(Timeout::Connect)] {
                assert_eq!(push.blame(&error, !is_of_connecting(&error)), Blame::Proxy, "{error}");
            }
        }
        let direct = push(&format!("http://{}", port()), "");
        assert_eq!(direct.send(&item(), LONG).blame, Blame::Address);
    }

    #[test]
    fn an_address_where_no_tls_is_spoken_is_told() {
        let at = proxy_that(|mut stream| write!(stream, "HTTP/1.1 400 Bad Request\r\n\r\n"));
        let outcome = push(&format!("https://{at}"), "").send(&item(), LONG);
        assert!(outcome.reason.ends_with("it may be http:// or another port"), "{}", outcome.reason);
        assert_eq!(outcome.blame, Blame::Address);
    }

    #[test]
    fn a_connection_that_ends_after_the_request_was_sent_is_no_fault_of_the_proxy_s() {
        let at = proxy_that(|stream| connect_by_socks(stream).and_then(|_| read_request(stream)));
        let push = push("http://pyroscope.invalid:4040", &format!("socks5h://{at}"));
        let outcome = push.send(&item(), LONG);
        assert_eq!((outcome.blame, outcome.unanswered), (Blame::Address, true), "{}", outcome.reason);
        let failure = push.ask("/ready", None, LONG).expect_err("no answer");
        assert_eq!(failure.settings, Blame::Address.settings(), "{}", failure.reason);
    }

    #[test]
    fn the_server_s_own_words_are_found() {
        let words = |text: &str| {
            let (code, message) = said(text, str::to_owned);
            format!("{code}|{message}")
        };
        assert_eq!(words(r#"{"code":"invalid_argument","message":"too old"}"#), "invalid_argument|too old");
        assert_eq!(words("no org id\n"), "|no org id");
        assert_eq!(words("<html><body>502 Bad Gateway</body></html>"), "|");
        assert_eq!(words("[1]"), "|");
        assert_eq!(words("no \u{202e}gro\u{2028}\u{1b}[2Jid"), "|no  gro  [2Jid");
        assert_eq!(words(&"x".repeat(5000)).len(), 1 + SHOWN);
    }

    #[test]
    fn redirects_stay_on_the_host_and_never_become_less_safe() {
        let follow = |from: &str, status: u16, to: &str| {
            let answer = Response::builder().status(status).header(LOCATION, to).body(()).expect("answer");
            same_host(from, &answer)
        };
        let to = |url: &str, is_same_origin| Some(Elsewhere { url: url.to_owned(), is_same_origin });
        let http = "http://host/push";
        assert_eq!(follow(http, 308, "https://HOST/push"), to("https://HOST/push", false));
        assert_eq!(follow(http, 301, "/other"), to("http://host/other", true));
        assert_eq!(follow(http, 301, "http://host:80/other"), to("http://host:80/other", true));
        assert_eq!(follow(http, 307, "http://host:81/push"), to("http://host:81/push", false));
        for (from, status, to) in [
            (http, 308, "https://other/push"),
            (http, 308, "//other/push"),
            (http, 308, "file:///push"),
            (http, 304, "/other"),
            ("https://host/push", 308, "http://host/push"),
        ] {
            assert_eq!(follow(from, status, to), None, "{from} {to}");
        }
    }

    #[test]
    fn a_proxy_is_taken_for_its_own_scheme_and_never_for_this_machine() {
        let found = |base: &str, variables: &[(&str, &str)]| {
            let variable =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
            proxy(base, variable).expect("a proxy").map(|proxy| proxy.uri().to_string())
        };
        let both = [("HTTPS_PROXY", "http://secure:1"), ("HTTP_PROXY", "http://plain:2")];
        assert_eq!(found("https://host", &both).as_deref(), Some("http://secure:1/"));
        assert_eq!(found("http://host", &both).as_deref(), Some("http://plain:2/"));
        assert_eq!(found("http://host", &both[..1]), None);
        assert_eq!(found("http://host", &[("ALL_PROXY", "http://all:3")]).as_deref(), Some("http://all:3/"));
        assert_eq!(found("http://host", &[]), None);
        let broken = |name: &str| (name == "HTTP_PROXY").then(|| "socks9://user:hunter2@proxy".to_owned());
        assert_eq!(proxy("http://host", broken).err(), Some("HTTP_PROXY"), "it is told, not ignored");
        for local in ["http://localhost:4040", "http://127.0.0.1:4040", "http://[::1]:4040"] {
            assert_eq!(found(local, &both), None, "{local}");
        }
        for (entry, direct) in [
            ("a.example", true),
            ("example", true),
            (".example", true),
            ("*.example", true),
            ("*", true),
            ("mple", false),
        ] {
            let variables = [both[1], ("NO_PROXY", entry)];
            assert_eq!(found("http://a.example", &variables).is_none(), direct, "{entry}");
        }
    }
}
