//! Who speaks TLS to a port of plain HTTP: told so in the answer, as some clients show it, and once in the log, as most do
//! not.

use std::io::Write as _;
use std::sync::Once;

use tokio::net::TcpStream;

/// The first byte of TLS, with which no request of HTTP begins.
const HANDSHAKE: u8 = 0x16;
/// What came after it is read and thrown away up to so many pieces, as closing would else take the answer back.
const PIECES: usize = 8;

/// Whether a connection that begins with these bytes is meant for a port with TLS.
pub(super) fn begins_with(bytes: &[u8]) -> bool {
    bytes.first() == Some(&HANDSHAKE)
}

/// Answers, and says it.
pub(super) fn refuse(stream: &TcpStream) {
    static SAID: Once = Once::new();
    let sentence = "this port takes plain HTTP and no TLS: write http:// instead of https:// in the address, or send to \
                    a proxy before it that has a certificate\n";
    let length = sentence.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{sentence}"
    );
    let mut rest = [0; 4 << 10];
    for _ in 0..PIECES {
        if !matches!(stream.try_read(&mut rest), Ok(length) if length > 0) {
            break;
        }
    }
    // Whoever does not take it is closed all the same.
    let _ = stream.try_write(answer.as_bytes());
    SAID.call_once(|| {
        let from = stream.peer_addr().map_or_else(|_| "a client".into(), |address| address.to_string());
        let _ = write!(std::io::stderr(), "spanprof: {from} speaks TLS (https), and {sentence}");
    });
}
