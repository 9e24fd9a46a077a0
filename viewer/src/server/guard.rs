//! What every request passes and every answer carries.
//!
//! The server listens on loopback without a password, so a web page in the same browser must not reach it by a name
//! of its own that resolves to loopback (DNS rebinding), nor post to it across origins.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CONTENT_SECURITY_POLICY, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, REFERER, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use super::flags::BasicAuth;
use crate::http::tenant::PREFIX;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; base-uri 'self'; frame-ancestors 'none'";

/// The host names that requests may be addressed to, besides IP addresses and localhost, and who may send them.
#[derive(Clone)]
pub(super) struct Guard {
    names: Arc<[String]>,
    /// User and password, as Authorization has them.
    authorization: Option<Arc<str>>,
}

impl Guard {
    /// Lets `names` pass too, and only who knows the password. The error is a sentence.
    pub(super) fn new(names: &[String], basic_auth: Option<&BasicAuth>) -> Result<Self, String> {
        let names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let authorization = basic_auth.map(BasicAuth::token).transpose()?.map(Arc::from);
        Ok(Self { names, authorization })
    }

    /// Puts the guard before routes.
    pub(super) fn wrap(&self, routes: Router) -> Router {
        routes.layer(from_fn_with_state(self.clone(), check))
    }

    /// Why a request is not let through.
    fn refuse(&self, method: &Method, headers: &HeaderMap, uri: &Uri) -> Option<String> {
        let host = match (headers.get(HOST), uri.authority()) {
            (Some(host), _) => host.to_str().unwrap_or("").to_ascii_lowercase(),
            // HTTP/2 has it in the address.
            (None, Some(authority)) => authority.as_str().to_ascii_lowercase(),
            // No browser leaves it out.
            (None, None) => {
                return headers.get(ORIGIN).map(|_| "a request with Origin needs Host".into());
            }
        };
        if !self.is_ours(&host) {
            let name = name_of(&host);
            return Some(format!(
                "this server answers to localhost and IP addresses, not to {name:?}; if the name is yours, start it with --allow-host {name}"
            ));
        }
        // A page of others may lead a person here, and fetch, embed and post nothing.
        let says = |name: &str| headers.get(name).map_or(&b""[..], HeaderValue::as_bytes);
        let leads =
            *method == Method::GET && says("sec-fetch-mode") == b"navigate" && says("sec-fetch-dest") == b"document";
        if says("sec-fetch-site") == b"cross-site" && !leads {
            return Some("a page of another site may not use this server".into());
        }
        // By HTTP to an address that is not loopback browsers do not say whose page asks, but most say which.
        let whose = headers.get(REFERER).map_or(&b""[..], HeaderValue::as_bytes).to_ascii_lowercase();
        if !headers.contains_key("sec-fetch-site") && is_data(uri.path()) && !whose.is_empty() && !is_of(&whose, &host)
        {
            return Some("a page of another site may not use this server".into());
        }
        let origin = headers.get(ORIGIN)?.to_str().unwrap_or("").to_ascii_lowercase();
        let same = ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(&host));
        (!same).then(|| format!("a page of {origin:?} may not use this server"))
    }

    fn knows_password(&self, request: &Request) -> bool {
        let Some(expected) = &self.authorization else {
            return true;
        };
        let given = request.headers().get(AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
        // The scheme may be written in any case, and be followed by any number of spaces.
        let (scheme, token) = given.split_at(given.iter().position(|byte| *byte == b' ').unwrap_or(given.len()));
        let token = if scheme.eq_ignore_ascii_case(b"basic") { token.trim_ascii() } else { b"" };
        // Whether something is running here is no secret.
        request.uri().path() == "/ready" || same(token, expected.as_bytes())
    }

    fn is_ours(&self, host: &str) -> bool {
        let name = name_of(host);
        // Rebinding needs a name; an address in Host is where the browser really went.
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        address.parse::<IpAddr>().is_ok() || name == "localhost" || self.names.iter().any(|known| known == name)
    }
}

/// Whether a path answers programs, and is no page that others may link to.
fn is_data(path: &str) -> bool {
    let of_tenant = path.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/'));
    let path = of_tenant.map_or(path.trim_start_matches('/'), |(_, path)| path);
    let first = path.split('/').next().unwrap_or("");
    ["api", "pyroscope", "folded", "profile.pb.gz", "speedscope.json", "flame.svg", "metrics"].contains(&first)
}

/// Whether an address is one of this host.
fn is_of(address: &[u8], host: &str) -> bool {
    let rest = [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| address.strip_prefix(scheme));
    rest.and_then(|rest| rest.strip_prefix(host.as_bytes()))
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// Compares in a time that does not tell how much is right.
fn same(given: &[u8], expected: &[u8]) -> bool {
    given.len() == expected.len() && given.iter().zip(expected).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// The host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut response = match guard.refuse(request.method(), request.headers(), request.uri()) {
        Some(sentence) => (StatusCode::FORBIDDEN, sentence).into_response(),
        None if !guard.knows_password(&request) => {
            let asked = [(WWW_AUTHENTICATE, "Basic realm=\"spanprof\", charset=\"UTF-8\"")];
            (StatusCode::UNAUTHORIZED, asked, "this server asks for a user name and a password\n").into_response()
        }
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
        let guard = Guard::new(&["Profiles.Internal".into()], None).unwrap();
        guard.refuse(&Method::GET, &headers, &Uri::from_static("/")).is_some()
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
    fn pages_of_other_sites_may_lead_here_and_no_more() {
        let refused = |method: Method, fetch: [&str; 3]| {
            let names = ["sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"].map(HeaderName::from_static);
            let mut headers: HeaderMap = names.into_iter().zip(fetch.map(|value| value.parse().unwrap())).collect();
            headers.insert(HOST, HeaderValue::from_static("localhost:4040"));
            Guard::new(&[], None).unwrap().refuse(&method, &headers, &Uri::from_static("/")).is_some()
        };
        assert!(!refused(Method::GET, ["cross-site", "navigate", "document"]));
        assert!(!refused(Method::GET, ["same-origin", "cors", "empty"]));
        assert!(!refused(Method::GET, ["none", "navigate", "document"]));
        assert!(refused(Method::GET, ["cross-site", "no-cors", "image"]));
        assert!(refused(Method::GET, ["cross-site", "navigate", "iframe"]));
        assert!(refused(Method::POST, ["cross-site", "navigate", "document"]));
    }

    #[test]
    fn where_a_browser_does_not_say_whose_page_asks_its_referer_does() {
        let refused = |path: &'static str, referer: &str, site: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("10.0.0.7:4040"));
            headers.insert(REFERER, referer.parse().unwrap());
            headers.extend(site.map(|site| (HeaderName::from_static("sec-fetch-site"), site.parse().unwrap())));
            Guard::new(&[], None).unwrap().refuse(&Method::GET, &headers, &Uri::from_static(path)).is_some()
        };
        let data =
            ["/api/flame?service=a", "/tenant/blue/api/top", "/pyroscope/render", "/flame.svg", "/profile.pb.gz"];
        for path in data {
            for foreign in ["http://evil.example/", "http://10.0.0.7:40400/", "http://10.0.0.7:4040.evil.example/", "x"]
            {
                assert!(refused(path, foreign, None), "{path} {foreign}");
            }
            assert!(!refused(path, "http://10.0.0.7:4040/spans", None) && !refused(path, "HTTP://10.0.0.7:4040", None));
            assert!(!refused(path, "http://other.example/", Some("same-origin")), "what a browser says holds");
        }
        for page in ["/", "/flame?service=a", "/tenant/blue/spans"] {
            assert!(!refused(page, "http://evil.example/", None), "a page may be linked to");
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
