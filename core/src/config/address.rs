//! `server_address`: where profiles go.
//!
//! People write `localhost:4040` and mean http; a URL parser takes `localhost` for a scheme. So the scheme and the
//! credentials are cut off here, and only the rest is left to the parser of [`Uri`].

use std::path::PathBuf;

use ureq::http::Uri;

use super::secret::Secret;
use crate::error::Error;

const FIELD: &str = "server_address";
const ALLOWED: &str = "http://host[:port][/path], https://…, host:port, file:///absolute/folder, none";

/// A parsed address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address {
    Http {
        /// Scheme, host, port and base path, without a slash at the end.
        base: String,
        credentials: Option<(String, Secret)>,
    },
    File(PathBuf),
    None,
}

/// Parses an address; a message never repeats the credentials in it.
pub(super) fn parse(address: &str) -> Result<Address, Error> {
    let address = address.trim();
    let invalid = || Error::invalid(FIELD, shown(address), ALLOWED);
    if address.eq_ignore_ascii_case("none") {
        return Ok(Address::None);
    }
    let (scheme, rest) = address.split_once("://").unwrap_or(("http", address));
    match scheme.to_ascii_lowercase().as_str() {
        "http" => parse_http("http", rest).ok_or_else(invalid),
        "https" => parse_http("https", rest).ok_or_else(invalid),
        "file" => match percent_decode(rest) {
            Some(path) if path.starts_with('/') && !path.contains('\0') => Ok(Address::File(PathBuf::from(path))),
            _ => Err(invalid()),
        },
        _ => Err(invalid()),
    }
}

fn parse_http(scheme: &str, rest: &str) -> Option<Address> {
    if rest.contains(['?', '#']) {
        return None;
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // More likely the end of a password with a slash in it; a path can have %40.
    if path.contains('@') {
        return None;
    }
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((credentials, host)) => (Some(credentials), host),
        None => (None, authority),
    };
    let credentials = match credentials {
        Some(credentials) => {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            Some((percent_decode(user)?, Secret(percent_decode(password)?)))
        }
        None => None,
    };
    // A colon is missing: `https//host`.
    if path.starts_with("//") && ["http", "https"].iter().any(|scheme| host.eq_ignore_ascii_case(scheme)) {
        return None;
    }
    let base = format!("{scheme}://{host}{}", path.trim_end_matches('/'));
    let uri: Uri = base.parse().ok()?;
    let authority = uri.authority()?;
    // `Uri` takes any text for a port and then says that there is none.
    let has_port = !host.ends_with(']') && host.contains(':');
    if authority.host().is_empty() || (has_port && authority.port_u16().is_none_or(|port| port == 0)) {
        return None;
    }
    Some(Address::Http { base, credentials })
}

/// The address for a message about it.
fn shown(address: &str) -> String {
    if address.is_empty() { "\"\"".to_owned() } else { without_credentials(address) }
}

/// The address with everything before its last `@` and what follows `?` or `#` replaced.
pub(crate) fn without_credentials(address: &str) -> String {
    // Behind anything else it is part of a password or a token.
    let is_scheme = |at: &usize| address[..*at].chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let (scheme, rest) = address.split_at(address.find("://").filter(is_scheme).map_or(0, |at| at + 3));
    let (place, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    // A token in the query, or a password with such a character in it.
    if query.contains('@') {
        return format!("{scheme}(secret)");
    }
    let query = query.chars().next().map(|mark| format!("{mark}(secret)")).unwrap_or_default();
    // A password with a slash or an `@` in it is a mistake, but not one to print: all up to the last `@` goes.
    match place.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}(secret)@{host}{query}"),
        None => format!("{scheme}{place}{query}"),
    }
}

/// Resolves `%41`; `None` if a `%` is not followed by two hex digits or the bytes are not UTF-8.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(address: &str) -> String {
        match parse(address) {
            Ok(Address::Http { base, .. }) => base,
            other => panic!("{address}: {other:?}"),
        }
    }

    #[test]
    fn a_host_and_port_alone_mean_http() {
        assert_eq!(base("localhost:4040"), "http://localhost:4040");
        assert_eq!(base("pyroscope"), "http://pyroscope");
        assert_eq!(base("[::1]:4040/a"), "http://[::1]:4040/a");
        assert_eq!(base("http://[::1]"), "http://[::1]");
    }

    #[test]
    fn a_base_path_is_kept_and_slashes_at_the_end_do_not_double() {
        assert_eq!(base("http://host/a/b"), "http://host/a/b");
        assert_eq!(base("HTTPS://host:443/a/b/"), "https://host:443/a/b");
        assert_eq!(base(" http://host:4040/ "), "http://host:4040");
    }

    #[test]
    fn credentials_leave_the_address() {
        let parsed = parse("https://us%40er:p%3aw%40rd@host/base").unwrap();
        let credentials = Some(("us@er".to_owned(), Secret("p:w@rd".to_owned())));
        assert_eq!(parsed, Address::Http { base: "https://host/base".to_owned(), credentials });
    }

    #[test]
    fn folders_and_none() {
        assert_eq!(parse("file:///var/my%20profiles").unwrap(), Address::File(PathBuf::from("/var/my profiles")));
        assert_eq!(parse("None").unwrap(), Address::None);
    }

    #[test]
    fn what_is_not_an_address_is_refused_with_its_value_and_what_is_allowed() {
        for bad in [
            "ftp://x",
            "localhost:99999",
            "localhost:0",
            "localhost:port",
            "http://",
            "http:///path",
            "http://a b",
            "https//profiles.example",
            "http://HTTP//profiles.example",
            "file://relative",
            "file:///bad%zz",
            "",
        ] {
            let message = parse(bad).expect_err(bad).to_string();
            assert!(message.starts_with("server_address: "), "{message}");
            assert!(message.contains(if bad.is_empty() { "\"\"" } else { bad }), "{message}");
            assert!(message.contains("file:///absolute/folder"), "{message}");
        }
    }

    #[test]
    fn a_refused_address_is_shown_without_its_credentials() {
        for bad in [
            "ftp://user:hunter2@host",
            "http://user:@/hunter2@host",
            "http://user:80/hunter2@host",
            "http://user:hun/ter2@host:x",
            "user:hunter2@host:99999",
            "http://host:4040/base?token=hunter2",
            "host?user=me&password=hunter2",
            "https://me:hunter2@host?token=hunter2",
            "http://host/#hunter2",
            "host?hunter2://",
            "user:hunter2://x@host:99999",
        ] {
            let message = parse(bad).expect_err(bad).to_string();
            assert!(!message.contains("ter2"), "{message}");
            assert!(message.contains("host") && message.contains("(secret)"), "{message}");
        }
        for bad in ["http://host?token=hun@ter2", "http://me:hun?ter2@host", "http://me:hun#t@er2@host"] {
            let message = parse(bad).expect_err(bad).to_string();
            assert!(message.starts_with("server_address: http://(secret) is not allowed"), "{message}");
        }
    }
}
