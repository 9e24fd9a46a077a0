//! The list: by name a server, and where a profile's weight ends.

use std::time::Duration;

use crate::{End, Fault, Flaw, Options, PASSWORD, Reply};

fn answer(status: u16, headers: &str, body: &str) -> Reply {
    Reply::Answer(status, headers.to_owned(), body.as_bytes().to_vec())
}

fn fault(name: &'static str, last: Reply, end: End, says: &'static str) -> Fault {
    Fault {
        name,
        replies: Vec::new(),
        last,
        options: Options::default(),
        flaw: None,
        address: "http://127.0.0.1:{}".to_owned(),
        environment: Vec::new(),
        end,
        says,
        retries_at_least: 0,
        waits_at_least: Duration::ZERO,
    }
}

/// The server misbehaves once, then not again.
fn once(name: &'static str, reply: Reply, says: &'static str) -> Fault {
    Fault { replies: vec![reply], retries_at_least: 1, ..fault(name, Reply::Ok, End::Uploaded, says) }
}

fn proxied(name: &'static str, proxy: &str, expected: &str, end: End, says: &'static str) -> Fault {
    Fault {
        options: Options { proxy_authorization: Some(expected.to_owned()), ..Options::default() },
        address: "http://profiles.test:4040".to_owned(),
        environment: vec![("HTTP_PROXY", proxy.to_owned())],
        ..fault(name, Reply::Ok, end, says)
    }
}

fn secured(name: &'static str, flaw: Flaw, end: End, says: &'static str) -> Fault {
    Fault { flaw: Some(flaw), address: "https://localhost:{}".to_owned(), ..fault(name, Reply::Ok, end, says) }
}

/// An address of this machine that is not 127.0.0.1, if it has one. Without, two faults are not in the list.
pub fn own_address() -> Option<String> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: connecting picks the address.
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip().to_string())
}

/// All of them.
pub fn faults() -> Vec<Fault> {
    use End::{DroppedQueue, Refused, Uploaded};
    let connect = |code: &str| format!(r#"{{"code":"{code}","message":"no, {PASSWORD}"}}"#);
    let mut faults = vec![
        fault("none", Reply::Ok, Uploaded, ""),
        Fault {
            address: "http://127.0.0.1:9".into(),
            ..fault("down: nothing listens", Reply::Ok, DroppedQueue, "refused")
        },
        Fault {
            address: "http://host.invalid".into(),
            ..fault("down: no such host", Reply::Ok, DroppedQueue, "host.invalid")
        },
        fault("accepts and reads nothing", Reply::Deaf, DroppedQueue, ""),
        fault("reads and never answers", Reply::Hang, DroppedQueue, ""),
        fault("a slow answer, in time", Reply::Slow(Duration::from_millis(10)), Uploaded, ""),
        fault("a slow answer, too late", Reply::Slow(Duration::from_millis(500)), DroppedQueue, ""),
        fault("closes at once", Reply::CloseAtOnce, DroppedQueue, "server_address"),
        once("closes within the request, once", Reply::CloseEarly, "tried again"),
        fault("closes within the request", Reply::CloseEarly, DroppedQueue, "tried again"),
        once("keeps it, closes unanswered, once", Reply::KeepAndClose, "tried again"),
        fault("keeps it, closes unanswered", Reply::KeepAndClose, DroppedQueue, "tried again"),
        once("closes within the answer, once", Reply::KeepAndCut, "tried again"),
        fault("closes within the answer", Reply::KeepAndCut, DroppedQueue, "tried again"),
        fault("closes within the answer's body", Reply::KeepAndCutBody, Uploaded, ""),
        fault("an answer without end", Reply::Endless, Uploaded, ""),
        fault("no HTTP", Reply::Gibberish, DroppedQueue, "server_address"),
        fault("HTTP/1.0", Reply::Http10, Uploaded, ""),
        fault(
            "200 with a web page",
            answer(200, "Content-Type: text/html\r\n", "<html>log in</html>"),
            Refused,
            "web page",
        ),
        fault("200 with garbage", answer(200, "Content-Type: application/proto\r\n", "\u{1}\u{2}???"), Uploaded, ""),
        fault("400 bad profile", answer(400, "", &connect("invalid_argument")), Refused, "HTTP 400"),
        fault("401 no credentials", answer(401, "", &connect("unauthenticated")), Refused, "basic_auth_password"),
        fault("403 wrong credentials", answer(403, "", &connect("permission_denied")), Refused, "tenant_id"),
        fault("404 wrong path", answer(404, "", "404 page not found"), Refused, "server_address"),
        fault("405 wrong method", answer(405, "", ""), Refused, "server_address"),
        once("408 once", answer(408, "", ""), "HTTP 408"),
        fault("413 once: in two halves", Reply::TooLargeOnce, Uploaded, ""),
        fault("413 for the halves too", answer(413, "", ""), Refused, "HTTP 413"),
        fault("415 wrong type", answer(415, "", ""), Refused, "server_address"),
        once("429 once", answer(429, "", &connect("resource_exhausted")), "HTTP 429"),
        Fault {
            waits_at_least: Duration::from_secs(1),
            ..once("429, Retry-After: 1", answer(429, "Retry-After: 1\r\n", ""), "HTTP 429")
        },
        Fault {
            // A date has no fractions of a second.
            waits_at_least: Duration::from_millis(500),
            ..once("503, Retry-After: a date", answer(503, "Retry-After: {in 2 s}\r\n", ""), "HTTP 503")
        },
        once("500 internal, once", answer(500, "", &connect("internal")), "HTTP 500"),
        Fault {
            retries_at_least: 2,
            ..fault("500 unknown: cannot read it", answer(500, "", &connect("unknown")), Refused, "HTTP 500")
        },
        fault("501 not implemented", answer(501, "", &connect("unimplemented")), Refused, "server_address"),
        once("502 once", answer(502, "", "<html>"), "HTTP 502"),
        fault("503 for ever", answer(503, "", ""), DroppedQueue, "HTTP 503"),
        once("504 once", answer(504, "", ""), "HTTP 504"),
        Fault {
            replies: vec![answer(308, "Location: /moved\r\n", "")],
            ..fault("redirect on the same host", Reply::Ok, Uploaded, "")
        },
        fault(
            "redirect to another host",
            answer(307, "Location: http://elsewhere.example/\r\n", ""),
            Refused,
            "elsewhere",
        ),
        secured("TLS", Flaw::None, Uploaded, ""),
        secured("TLS, expired", Flaw::Expired, DroppedQueue, "SSL_CERT_FILE"),
        secured("TLS, of another host", Flaw::OtherHost, DroppedQueue, "SSL_CERT_FILE"),
        secured("TLS, unknown root", Flaw::UnknownRoot, DroppedQueue, "SSL_CERT_FILE"),
        Fault {
            address: "https://localhost:{}".into(),
            ..fault("TLS to a server without", Reply::Ok, DroppedQueue, "server_address")
        },
        proxied("proxy", "http://127.0.0.1:{}", "", Uploaded, ""),
        proxied("proxy with credentials", "http://me:hunter2@127.0.0.1:{}", "Basic bWU6aHVudGVyMg==", Uploaded, ""),
        proxied(
            "proxy that wants credentials",
            "http://127.0.0.1:{}",
            "Basic bWU6aHVudGVyMg==",
            DroppedQueue,
            "HTTP_PROXY",
        ),
        Fault {
            environment: vec![("HTTP_PROXY", "http://127.0.0.1:9".to_owned())],
            ..fault("NO_PROXY: this machine", Reply::Ok, Uploaded, "")
        },
    ];
    if let Some(own) = own_address() {
        let address = format!("http://{own}:{{}}");
        let options = || Options { everywhere: true, ..Options::default() };
        let dead = ("HTTP_PROXY", "http://127.0.0.1:9".to_owned());
        let broken = ("HTTP_PROXY", format!("gopher://me:{PASSWORD}@proxy"));
        faults.push(Fault {
            address: address.clone(),
            options: options(),
            environment: vec![dead, ("NO_PROXY", own)],
            ..fault("NO_PROXY names the host", Reply::Ok, Uploaded, "")
        });
        faults.push(Fault {
            address,
            options: options(),
            environment: vec![broken],
            ..fault("a proxy that is none", Reply::Ok, Uploaded, "HTTP_PROXY")
        });
    }
    faults
}
