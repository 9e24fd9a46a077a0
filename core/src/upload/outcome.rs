//! What an answer of the server means for a profile.

use std::time::Duration;

/// What becomes of a profile after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    /// Try again, not before the server said.
    Retry {
        after: Option<Duration>,
    },
    /// Try again twice: the server could not read the profile, or a proxy mangled it.
    RetryTwice,
    /// Send it in two halves.
    Halve,
    Refused,
}

/// What may have to be changed before a request succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// No setting: the server has its moment, or the profile is at fault.
    Nothing,
    Address,
    Credentials,
    Proxy,
    Certificates,
}

impl Blame {
    /// The settings and variables to look at, "" if none.
    pub(super) fn settings(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Address => "server_address",
            Self::Credentials => "basic_auth_username, basic_auth_password, tenant_id and http_headers",
            Self::Proxy => "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY",
            Self::Certificates => "server_address and SSL_CERT_FILE",
        }
    }
}

/// A verdict with its reason, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// Such as "HTTP 401: no org id"; "" when accepted.
    pub(super) reason: String,
    pub(super) blame: Blame,
    /// Of the answer, if one came.
    pub(super) status: Option<u16>,
    /// The request may have arrived, but no answer to it did.
    pub(super) unanswered: bool,
}

impl Outcome {
    /// Nothing was sent, as there is no memory to compress it.
    pub(super) fn without_memory() -> Self {
        let reason = "the program has used up its memory".to_owned();
        Self { verdict: Verdict::Retry { after: None }, reason, ..Self::accepted() }
    }

    /// The try ended in a panic, and nobody knows whether it had arrived by then.
    pub(super) fn panicked(panic: &str, unanswered: bool) -> Self {
        let reason = format!("the upload met an error of its own: {panic}");
        Self { verdict: Verdict::Retry { after: None }, reason, unanswered, ..Self::accepted() }
    }

    pub(super) fn accepted() -> Self {
        Self {
            verdict: Verdict::Accepted,
            reason: String::new(),
            blame: Blame::Nothing,
            status: None,
            unanswered: false,
        }
    }
}

/// Judges an answer: its status, the Connect code in its body ("" if there is none) and its `Retry-After`.
pub(super) fn judge(status: u16, code: &str, retry_after: Option<Duration>) -> (Verdict, Blame) {
    let retry = Verdict::Retry { after: retry_after };
    match status {
        200..=299 => (Verdict::Accepted, Blame::Nothing),
        300..=399 | 404 | 405 | 415 | 501 => (Verdict::Refused, Blame::Address),
        401 | 403 => (Verdict::Refused, Blame::Credentials),
        413 => (Verdict::Halve, Blame::Nothing),
        500 if code == "unknown" => (Verdict::RetryTwice, Blame::Nothing),
        408 | 429 | 500..=599 => (retry, Blame::Nothing),
        _ => (Verdict::Refused, Blame::Nothing),
    }
}

/// Why a request did not bring what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The HTTP status, `None` if no answer came.
    pub status: Option<u16>,
    /// Such as "HTTP 401: no org id"; never a credential.
    pub reason: String,
    /// The settings and environment variables to look at, "" if none.
    pub settings: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_mean_what_the_protocol_says() {
        let after = Some(Duration::from_secs(7));
        let retry = Verdict::Retry { after };
        for (status, code, verdict) in [
            (200, "", Verdict::Accepted),
            (302, "", Verdict::Refused),
            (400, "invalid_argument", Verdict::Refused),
            (401, "unauthenticated", Verdict::Refused),
            (403, "", Verdict::Refused),
            (404, "", Verdict::Refused),
            (405, "", Verdict::Refused),
            (408, "", retry),
            (410, "", Verdict::Refused),
            (413, "", Verdict::Halve),
            (415, "", Verdict::Refused),
            (429, "resource_exhausted", retry),
            (500, "unknown", Verdict::RetryTwice),
            (500, "internal", retry),
            (500, "", retry),
            (501, "unimplemented", Verdict::Refused),
            (502, "", retry),
            (503, "unavailable", retry),
        ] {
            assert_eq!(judge(status, code, after).0, verdict, "{status} {code}");
        }
        assert!(judge(401, "", None).1.settings().contains("basic_auth_password"));
        assert!(judge(403, "", None).1.settings().contains("tenant_id"));
        assert_eq!(judge(404, "", None).1.settings(), "server_address");
        assert_eq!(judge(307, "", None).1.settings(), "server_address");
    }
}
