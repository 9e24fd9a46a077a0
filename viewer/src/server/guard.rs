//! What every request passes and every answer carries.
//!
//! The server listens on loopback without a password, so a web page in the same browser must not reach it by a name
//! of its own that resolves to loopback (DNS rebinding), nor post to it across origins.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{
    CONTENT_SECURITY_POLICY, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The host names that requests may be addressed to, besides IP addresses and localhost.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    names: Arc<[String]>,
}

impl Guard {
    /// Lets `names` pass too.
    pub(super) fn new(names: &[String]) -> Self {
        Self { names: names.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// Puts the guard before routes.
    pub(super) fn wrap(&self, routes: Router) -> Router {
        routes.layer(from_fn_with_state(self.clone(), check))
    }

    /// Why a request is not let through.
    fn refuse(&self, headers: &HeaderMap) -> Option<String> {
        let host = match headers.get(HOST) {
            // No browser leaves it out.
            None => {
                return headers.get(ORIGIN).map(|_| "a request with Origin needs Host".into());
            }
            Some(host) => host.to_str().unwrap_or("").to_ascii_lowercase(),
        };
        if !self.is_ours(&host) {
            let name = name_of(&host);
            return Some(format!(
                "this server answers to localhost and IP addresses, not to {name:?}; if the name is yours, start it with --allow-host {name}"
            ));
        }
        let origin = headers.get(ORIGIN)?.to_str().unwrap_or("").to_ascii_lowercase();
        let same = ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(&host));
        (!same).then(|| format!("a page of {origin:?} may not use this server"))
    }

    fn is_ours(&self, host: &str) -> bool {
        let name = name_of(host);
        // Rebinding needs a name; an address in Host is where the browser really went.
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        address.parse::<IpAddr>().is_ok() || name == "localhost" || self.names.iter().any(|known| known == name)
    }
}

/// The host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut response = match guard.refuse(request.headers()) {
        Some(sentence) => (StatusCode::FORBIDDEN, sentence).into_response(),
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        Guard::new(&["Profiles.Internal".into()]).refuse(&headers).is_some()
    }

    #[test]
    fn names_of_others_are_refused() {
        for ours in [
            "localhost",
            "localhost:4040",
            "127.0.0.1:4040",
            "[::1]:4040",
            "10.0.0.7",
            "LOCALHOST:1",
            "profiles.internal:4040",
        ] {
            assert!(!refused(ours, None), "{ours}");
        }
        for foreign in
            ["evil.example", "evil.example:4040", "localhost.evil.example", "127.0.0.1.evil.example:4040", ""]
        {
            assert!(refused(foreign, None), "{foreign}");
        }
    }

    #[test]
    fn other_origins_are_refused() {
        assert!(!refused("localhost:4040", Some("http://localhost:4040")));
        for foreign in ["http://evil.example", "http://localhost:3000", "null", "https://localhost"] {
            assert!(refused("localhost:4040", Some(foreign)), "{foreign}");
        }
    }
}
