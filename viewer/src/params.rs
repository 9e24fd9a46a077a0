//! The query parameters of a request, taken one by one, so that what nobody took is an error that names it.

use std::collections::BTreeMap;
use std::fmt;

/// Parameters of one prefix, such as `attr.KEY`, in a query.
const MOST_OF_A_PREFIX: usize = 20;

/// A parameter that is not understood: a 400 that names it, its value and what is allowed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadParameter {
    name: String,
    value: String,
    allowed: String,
}

impl BadParameter {
    /// `value` of the parameter `name` is not one of `allowed`.
    pub(crate) fn new(name: &str, value: &str, allowed: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.chars().take(200).collect(), allowed: allowed.into() }
    }

    /// The same parameter, as it is called in one side of a diff if it was given there.
    pub(crate) fn of_side(self, prefix: &str, given: impl Fn(&str) -> bool) -> Self {
        let name = format!("{prefix}{}", self.name);
        if given(&name) { Self { name, ..self } } else { self }
    }
}

impl fmt::Display for BadParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parameter {:?} = {:?}: {}", self.name, self.value, self.allowed)
    }
}

/// What is left of a query string.
#[derive(Debug)]
pub(crate) struct Params {
    left: Vec<(String, String)>,
    asked: Vec<String>,
}

impl Params {
    /// Decodes a query string (`a=b&c&d>e`, with percent signs and plus signs).
    pub(crate) fn parse(query: &str) -> Self {
        let left = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| match pair.split_once('=') {
            Some((name, value)) => (decode(name), decode(value)),
            None => split_pair(&decode(pair)),
        });
        Self { left: left.collect(), asked: Vec::new() }
    }

    /// The parameters of one side of a diff: those that start with its prefix, and of those that start with neither
    /// side's the ones that it does not say otherwise.
    pub(crate) fn side(&self, prefix: &str, other: &str, same: impl Fn(&str, &str) -> bool) -> Self {
        let own: Vec<(String, String)> = self
            .left
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value.clone())))
            .collect();
        let common = self.left.iter().filter(|(name, _)| {
            !name.starts_with(prefix) && !name.starts_with(other) && !own.iter().any(|(said, _)| same(said, name))
        });
        let left = common.cloned().chain(own.iter().cloned()).collect();
        Self { left, asked: Vec::new() }
    }

    /// Whether the parameter is among those that are left.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.left.iter().any(|(known, _)| known == name)
    }

    /// Takes `attr.KEY=VALUE` of the name `attr`, and `attr=KEY=VALUE`, as forms send it, which counts before the other; each any number
    /// of times. An empty value is one too: it asks for what has no such key.
    pub(crate) fn take_pairs(&mut self, name: &'static str) -> Result<BTreeMap<String, String>, BadParameter> {
        self.asked.extend([format!("{name}.KEY"), name.to_owned()]);
        let key_of = |given: &str| Some(given.strip_prefix(name)?.strip_prefix('.')?.to_owned());
        let (mut found, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.left).into_iter().partition(|(given, _)| given == name || key_of(given).is_some());
        self.left = left;
        found.sort_by_key(|(given, _)| given == name);
        let mut pairs = BTreeMap::new();
        for (given, text) in found {
            let bad = |allowed: String| BadParameter::new(&given, &text, allowed);
            let of_form = given == name;
            let (key, value) = match key_of(&given) {
                Some(key) => (key, text.clone()),
                // A field that was left empty.
                None if text.is_empty() => continue,
                None => match text.split_once('=') {
                    Some((key, value)) => (key.trim().to_owned(), value.trim().to_owned()),
                    None => {
                        return Err(bad("allowed is KEY=VALUE, such as region=eu, or KEY= for what has none".into()));
                    }
                },
            };
            if key.is_empty() {
                return Err(bad(format!("needs a key, such as {name}.region")));
            }
            if pairs.len() == MOST_OF_A_PREFIX && !pairs.contains_key(&key) {
                return Err(bad(format!("is one more than {MOST_OF_A_PREFIX} of {name}.KEY")));
            }
            if pairs.insert(key, value).is_some() && !of_form {
                return Err(bad("is given twice; give it once".into()));
            }
        }
        Ok(pairs)
    }

    /// Takes the parameter out; given twice it is an error, given empty it counts as not given.
    pub(crate) fn take(&mut self, name: &'static str) -> Result<Option<String>, BadParameter> {
        Ok(self.take_flag_or_value(name)?.filter(|value| !value.is_empty()))
    }

    /// Takes a parameter that says yes or is left out: `inside`, `inside=` and `inside=1` say yes.
    pub(crate) fn take_flag(&mut self, name: &'static str) -> Result<bool, BadParameter> {
        match self.take_flag_or_value(name)?.as_deref() {
            None => Ok(false),
            Some("" | "1") => Ok(true),
            Some(other) => Err(BadParameter::new(name, other, "allowed is 1, or no value; leave it out for no")),
        }
    }

    fn take_flag_or_value(&mut self, name: &'static str) -> Result<Option<String>, BadParameter> {
        self.asked.push(name.into());
        let mut found = None;
        for index in (0..self.left.len()).rev() {
            if self.left[index].0 == name {
                let (_, value) = self.left.remove(index);
                if found.is_some() {
                    return Err(BadParameter::new(name, &value, "is given twice; give it once"));
                }
                found = Some(value);
            }
        }
        Ok(found)
    }

    /// Refuses what nobody took.
    pub(crate) fn finish(self) -> Result<(), BadParameter> {
        let Some((name, value)) = self.left.first() else { return Ok(()) };
        let allowed = match self.asked.join(", ") {
            none if none.is_empty() => "is not known here; no parameter is".into(),
            asked => format!("is not known here; allowed are {asked}"),
        };
        Err(BadParameter::new(name, value, allowed))
    }
}

/// Splits `name=value` and `dur>p95`, which is `dur>=p95`: what stands before the equals sign is the name of both.
pub(crate) fn split_pair(text: &str) -> (String, String) {
    let (name, value) =
        text.split_once('=').unwrap_or_else(|| text.split_at(text.find(['<', '>']).map_or(text.len(), |at| at + 1)));
    (name.into(), value.into())
}

/// Undoes percent encoding; what is no valid UTF-8 then becomes a replacement character.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3).filter(|hex| byte == b'%' && hex.iter().all(u8::is_ascii_hexdigit));
        if let Some(value) =
            hex.and_then(|hex| std::str::from_utf8(hex).ok()).and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            out.push(value);
            at += 3;
        } else {
            out.push(if byte == b'+' { b' ' } else { byte });
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Percent encodes a parameter's value.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_nobody_takes_is_named_with_those_that_are_known() {
        let mut params = Params::parse("service=a&sevice=b");
        assert_eq!(params.take("service").unwrap().as_deref(), Some("a"));
        assert_eq!(params.take("name").unwrap(), None);
        let refused = params.finish().unwrap_err().to_string();
        assert!(refused.contains("\"sevice\" = \"b\"") && refused.contains("service, name"), "{refused}");
        // Where nobody takes any, there is no list of them.
        let refused = Params::parse("service=a").finish().unwrap_err().to_string();
        assert_eq!(refused, "parameter \"service\" = \"a\": is not known here; no parameter is");
    }

    #[test]
    fn a_comparison_needs_no_equals_sign() {
        for query in ["dur>200ms", "dur%3E200ms", "dur%3E=200ms", "dur>=200ms"] {
            assert_eq!(Params::parse(query).take("dur>").unwrap().as_deref(), Some("200ms"), "{query}");
        }
    }

    #[test]
    fn keys_follow_a_name() {
        let take = |query: &str| Params::parse(query).take_pairs("attr");
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let mut params = Params::parse("attr.http.route=/cart&attr.user=&name=a&attribute=b");
        assert_eq!(params.take_pairs("attr").unwrap(), pairs(&[("http.route", "/cart"), ("user", "")]));
        assert!(params.has("name") && params.has("attribute") && !params.has("attr.user"));
        // A form has a field for each, and one that is empty.
        let of_form = take("attr=user%3D7&attr=plan%3D&attr= q = a%3Db&attr=").unwrap();
        assert_eq!(of_form, pairs(&[("user", "7"), ("plan", ""), ("q", "a=b")]));
        assert_eq!(take("attr=user%3D8&attr.user=7").unwrap(), pairs(&[("user", "8")]));
        let refused = |query: &str| take(query).unwrap_err().to_string();
        for query in ["attr.=a", "attr=%3Da"] {
            assert!(refused(query).contains("needs a key, such as attr.region"), "{}", refused(query));
        }
        for form in ["attr.{}=1", "attr={}%3D1"] {
            let many: Vec<String> = (0..1_200).map(|key| form.replace("{}", &key.to_string())).collect();
            assert!(refused(&many.join("&")).contains("one more than 20 of attr.KEY"), "{form}");
        }
        assert!(refused("attr.a=1&attr.a=2").contains("\"attr.a\" = \"2\": is given twice"));
    }

    #[test]
    fn a_side_of_a_diff_takes_what_is_common_unless_it_says_otherwise() {
        let params = Params::parse("service=shop&since=1h&a.since=5m&b.name=x");
        let same = |own: &str, common: &str| own == common;
        let mut a = params.side("a.", "b.", same);
        assert_eq!((a.take("service").unwrap(), a.take("since").unwrap()), (Some("shop".into()), Some("5m".into())));
        a.finish().unwrap();
        let mut b = params.side("b.", "a.", same);
        assert_eq!((b.take("since").unwrap(), b.take("name").unwrap()), (Some("1h".into()), Some("x".into())));
    }

    #[test]
    fn given_twice_is_refused() {
        assert!(Params::parse("a=1&a=2").take("a").unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn values_survive_encoding() {
        for value in ["GET /cart", "a&b=c%d+e", "naïve 漢字", "<script>", "100%", "%zz", ""] {
            let mut params = Params::parse(&format!("a={}", encode(value)));
            assert_eq!(params.take("a").unwrap().unwrap_or_default(), value);
        }
        assert_eq!(decode("50%"), "50%");
        assert_eq!(decode("a+b%20c"), "a b c");
    }
}
