//! The query parameters of a request, taken one by one, so that what nobody took is an error that names it.

use std::fmt;

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
    asked: Vec<&'static str>,
}

impl Params {
    /// Decodes a query string (`a=b&c`, with percent signs and plus signs).
    pub(crate) fn parse(query: &str) -> Self {
        let left = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self { left: left.collect(), asked: Vec::new() }
    }

    /// Takes the parameter out; given twice it is an error, given empty it counts as not given.
    pub(crate) fn take(&mut self, name: &'static str) -> Result<Option<String>, BadParameter> {
        Ok(self.take_flag_or_value(name)?.filter(|value| !value.is_empty()))
    }

    /// Takes a parameter that has no value: `inside`, `inside=` and `inside=1` say yes.
    pub(crate) fn take_flag(&mut self, name: &'static str) -> Result<bool, BadParameter> {
        match self.take_flag_or_value(name)?.as_deref() {
            None => Ok(false),
            Some("" | "1") => Ok(true),
            Some(other) => Err(BadParameter::new(name, other, "takes no value; leave it out for no")),
        }
    }

    fn take_flag_or_value(&mut self, name: &'static str) -> Result<Option<String>, BadParameter> {
        self.asked.push(name);
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
        match self.left.first() {
            None => Ok(()),
            Some((name, value)) => {
                Err(BadParameter::new(name, value, format!("is not known here; allowed are {}", self.asked.join(", "))))
            }
        }
    }
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
