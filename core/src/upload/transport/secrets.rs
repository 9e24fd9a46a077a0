//! Credentials, which are in no message: a server or proxy that repeats our own headers in an error must not bring them
//! into a log, in whatever form it has them.

use std::fmt;

use ureq::http::HeaderMap;

/// What stands in their place.
const MASK: &str = "(secret)";
/// Shorter ones are masked only where they stand alone, or half of the words of a sentence would be gone.
const SHORT: usize = 4;

/// Texts to be masked, the longest first.
pub(super) struct Secrets(Vec<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Secrets {
    /// Those of headers: values, tokens behind a scheme, user and password in a token, and all of them as they stand in
    /// addresses, JSON and HTML.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut all = Vec::new();
        for value in headers.values().filter(|value| value.is_sensitive()) {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            let token = value.split_once(' ').map_or("", |(_, token)| token.trim()).to_owned();
            for token in [&token, &value] {
                if let Some(both) = decoded(token) {
                    let (user, password) = both.split_once(':').unwrap_or(("", &both));
                    // A password out of a file ends with a line break, which servers trim before they repeat it.
                    all.extend([user, password, user.trim(), password.trim()].map(str::to_owned));
                    all.push(both.clone());
                }
                // The other alphabet, and no padding.
                all.push(token.replace('+', "-").replace('/', "_").trim_end_matches('=').to_owned());
                all.push(token.trim_end_matches('=').to_owned());
            }
            all.extend([token, value]);
        }
        let written: Vec<String> = all.iter().flat_map(|secret| forms(secret)).collect();
        all.extend(written);
        all.retain(|secret| !secret.is_empty());
        all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        all.dedup();
        Self(all)
    }

    /// The text without them. It must not be truncated before, or the rest of one would not be known any more.
    pub(super) fn mask(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            if secret.len() >= SHORT {
                text = text.replace(secret.as_str(), MASK);
                // The answer itself may have been truncated in the middle of it.
                let ends = (SHORT..secret.len()).rev().filter(|end| secret.is_char_boundary(*end));
                let half = ends.map(|end| &secret[..end]).find(|start| text.ends_with(start));
                if let Some(start) = half {
                    text.truncate(text.len() - start.len());
                    text.push_str(MASK);
                }
            } else {
                text = without_word(&text, secret);
            }
        }
        text
    }
}

/// The text without a word, where it is no part of another.
fn without_word(text: &str, word: &str) -> String {
    let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let last = before.chars().next_back().or_else(|| out.chars().next_back());
        out.push_str(before);
        out.push_str(if is_part(last) || is_part(after.chars().next()) { word } else { MASK });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// A secret as it stands in addresses, JSON and HTML.
fn forms(secret: &str) -> [String; 5] {
    let percent = |lower: bool| {
        secret.bytes().fold(String::new(), |mut text, byte| {
            match byte {
                b'-' | b'.' | b'_' | b'~' => text.push(char::from(byte)),
                _ if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
                _ if lower => text.push_str(&format!("%{byte:02x}")),
                _ => text.push_str(&format!("%{byte:02X}")),
            }
            text
        })
    };
    let json = serde_json::Value::from(secret).to_string();
    let html = secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let quotes = html.replace('"', "&quot;").replace('\'', "&#39;");
    [percent(false), percent(true), json[1..json.len() - 1].to_owned(), html, quotes]
}

/// Base64 of text, in either alphabet, with padding or without.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let (mut word, mut bits) = (0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        word = word << 6 | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits).to_le_bytes()[0]);
        }
    }
    // What is no text, or no pair, is a token that only looks like it.
    String::from_utf8(bytes).ok().filter(|text| text.contains(':'))
}

#[cfg(test)]
mod tests {
    use ureq::http::HeaderValue;
    use ureq::http::header::AUTHORIZATION;

    use super::*;

    fn secrets(value: &str) -> Secrets {
        let mut value = HeaderValue::from_str(value).expect("a header");
        value.set_sensitive(true);
        Secrets::of(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
    }

    #[test]
    fn user_and_password_are_masked_in_any_form() {
        // carol:hunter2 "p&ss"
        let secrets = secrets("Basic Y2Fyb2w6aHVudGVyMiAicCZzcyI=");
        for said in [
            "bad password for carol:hunter2 \"p&ss\"",
            "no user carol here",
            "the password is hunter2 \"p&ss\"",
            "Authorization: Basic Y2Fyb2w6aHVudGVyMiAicCZzcyI=",
            "token Y2Fyb2w6aHVudGVyMiAicCZzcyI",
            "at /login?password=hunter2%20%22p%26ss%22",
            "at /login?password=hunter2%20%22p%26ss%22&user=carol",
            r#"{"password": "hunter2 \"p&ss\""}"#,
            "<p>hunter2 &quot;p&amp;ss&quot;</p>",
            "cut off in Y2Fyb2w6aHVu",
            "cut off in hunter2",
        ] {
            let masked = secrets.mask(said);
            assert!(masked.contains(MASK), "{said}: {masked}");
            for part in ["carol", "hunter2", "Y2Fy"] {
                assert!(!masked.contains(part), "{said}: {masked}");
            }
        }
        assert_eq!(secrets.mask("no org id"), "no org id");
    }

    #[test]
    fn line_breaks_and_tabs_hide_nothing() {
        // carol:hun\tter2\n
        let secrets = secrets("Basic Y2Fyb2w6aHVuCXRlcjIK");
        for said in [
            "bad password hun\tter2\n",
            "bad password hun\tter2 of carol",
            "at /?p=hun%09ter2",
            "at /?p=hun%09ter2%0A",
            r#"{"p": "hun\tter2\n"}"#,
        ] {
            let masked = secrets.mask(said);
            assert!(masked.contains(MASK) && !masked.contains("ter2") && !masked.contains("carol"), "{said}: {masked}");
        }
    }

    #[test]
    fn a_short_one_is_masked_where_it_stands_alone() {
        // me:pw
        let secrets = secrets("Basic bWU6cHc=");
        assert_eq!(
            secrets.mask("me, some message: 'pw' is no password"),
            "(secret), some message: '(secret)' is no password"
        );
    }

    #[test]
    fn a_token_is_masked_with_its_scheme_and_without() {
        let secrets = secrets("Bearer glc_abc+def/ghi==");
        for said in
            ["Bearer glc_abc+def/ghi==", "glc_abc+def/ghi", "glc_abc-def_ghi", "glc_abc%2Bdef%2Fghi%3D%3D", "glc_ab"]
        {
            assert_eq!(secrets.mask(said).replace('=', ""), MASK, "{said}");
        }
    }
}
