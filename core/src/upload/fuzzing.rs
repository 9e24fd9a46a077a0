//! What fuzzing looks at in a server's answer.

use super::transport::push;
use super::{backoff, outcome, server_version};

/// A server's words in an answer, after all of it was judged: what fuzzing looks at.
pub(crate) fn understood(status: u16, body: &str, now: std::time::SystemTime) -> String {
    let (code, message) = push::said(body, str::to_owned);
    let (verdict, _) = outcome::judge(status, &code, backoff::retry_after(body, now));
    assert_eq!(verdict == outcome::Verdict::Accepted, (200..300).contains(&status));
    drop(server_version::too_old(body));
    message
}
