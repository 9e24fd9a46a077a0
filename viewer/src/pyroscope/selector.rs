//! Label selectors as Prometheus writes them: `{service_name="shop", region!="eu", pod=~"a-.*", zone!~"b|c"}`.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// The most bytes of a selector.
const LONGEST: usize = 64 << 10;
/// The most conditions of all selectors of a question, and the bytes of all their regular expressions, compiled.
const MOST_MATCHERS: usize = 20;
const COMPILED: usize = 1 << 20;
/// The most bytes of a regular expression, and of all of a question: each may be thousands when it is parsed, which is before it
/// is known what it takes, compiled.
const LONGEST_EXPRESSION: usize = 2 << 10;
const EXPRESSIONS: usize = 4 << 10;

/// Conditions that all hold for the label sets that are selected. A label that is missing has the empty value.
#[derive(Debug)]
pub(super) struct Selector(Vec<Matcher>);

#[derive(Debug)]
struct Matcher {
    name: String,
    test: Test,
}

#[derive(Debug)]
enum Test {
    Is(String),
    IsNot(String),
    Matches(Regex),
    MatchesNot(Regex),
}

impl Selector {
    /// Reads a selector; an empty text selects everything. The error is a sentence.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_within(text, MOST_MATCHERS, COMPILED / expressions(text).max(1), &mut { EXPRESSIONS })
    }

    /// Reads the selector of a question about a profile type. It may name the type, which is no label: the series' own `__name__` is
    /// the first part only.
    pub(super) fn parse_of(text: &str, profile_type: &str) -> Result<Self, String> {
        let mut selector = Self::parse(text)?;
        let is_type = |name: &str| name.strip_suffix(":delta").unwrap_or(name) == profile_type;
        selector.0.retain(|matcher| {
            !(matcher.name == "__name__" && matches!(&matcher.test, Test::Is(name) if is_type(name)))
        });
        Ok(selector)
    }

    /// Reads the selectors of one question, which together have the conditions and the bytes that one alone may have.
    pub(super) fn parse_all(texts: &[String]) -> Result<Vec<Self>, String> {
        let too_many = || format!("the matchers have more than {MOST_MATCHERS} conditions");
        // Each counts as one at least, and an expression of few bytes may be large when it is compiled.
        if texts.len() > MOST_MATCHERS {
            return Err(too_many());
        }
        let compiled = COMPILED / texts.iter().map(|text| expressions(text)).sum::<usize>().max(1);
        let (mut left, mut bytes) = (MOST_MATCHERS, EXPRESSIONS);
        let mut selectors = Vec::with_capacity(texts.len());
        for text in texts {
            let selector = Self::parse_within(text, left, compiled, &mut bytes)?;
            left = left.checked_sub(selector.0.len().max(1)).ok_or_else(too_many)?;
            selectors.push(selector);
        }
        Ok(selectors)
    }

    /// Reads one that has at most so many conditions, each expression of so many bytes, compiled; `bytes` are left to the texts of
    /// expressions.
    fn parse_within(text: &str, most: usize, compiled: usize, bytes: &mut usize) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("the label selector is longer than {LONGEST} bytes"));
        }
        let mut parser = Parser { rest: text.chars().peekable(), most, compiled, bytes };
        parser.selector().map_err(|reason| {
            let start: String = text.chars().take(200).collect();
            format!("the label selector {start:?}: {reason}")
        })
    }

    /// Whether a label set is selected.
    pub(super) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|matcher| {
            let value = labels.get(&matcher.name).map_or("", String::as_str);
            match &matcher.test {
                Test::Is(text) => value == text,
                Test::IsNot(text) => value != text,
                Test::Matches(regex) => regex.is_match(value),
                Test::MatchesNot(regex) => !regex.is_match(value),
            }
        })
    }

    /// Takes out what `__name__` must be, as the render paths write the profile type.
    pub(super) fn take_name(&mut self) -> Option<String> {
        let index =
            self.0.iter().position(|matcher| matcher.name == "__name__" && matches!(matcher.test, Test::Is(_)))?;
        match self.0.remove(index).test {
            Test::Is(text) => Some(text),
            _ => None,
        }
    }
}

/// How many regular expressions a text has at most: what looks like one within a value counts too.
fn expressions(text: &str) -> usize {
    text.matches("=~").count() + text.matches("!~").count()
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    /// Conditions that are left to it.
    most: usize,
    /// Bytes that each regular expression may take, compiled.
    compiled: usize,
    /// Bytes that are left to the texts of regular expressions.
    bytes: &'a mut usize,
}

impl Parser<'_> {
    fn selector(&mut self) -> Result<Selector, String> {
        let mut matchers = Vec::new();
        // `process_cpu:cpu{…}` is short for `{__name__="process_cpu:cpu", …}`.
        let name = self.name();
        if !name.is_empty() {
            matchers.push(Matcher { name: "__name__".into(), test: Test::Is(name) });
        }
        self.space();
        match self.rest.next() {
            None => return Ok(Selector(matchers)),
            Some('{') => {}
            Some(other) => return Err(format!("'{{' was expected, and there is {other:?}")),
        }
        loop {
            self.space();
            match self.rest.peek() {
                Some('}') => {
                    self.rest.next();
                    break;
                }
                Some(_) => {}
                None => return Err("the closing '}' is missing".into()),
            }
            if matchers.len() >= self.most {
                return Err(format!("there are more than {MOST_MATCHERS} conditions"));
            }
            matchers.push(self.matcher()?);
            self.space();
            match self.rest.next() {
                Some(',') => {}
                Some('}') => break,
                Some(other) => return Err(format!("',' or '}}' was expected, and there is {other:?}")),
                None => return Err("the closing '}' is missing".into()),
            }
        }
        self.space();
        match self.rest.next() {
            None => Ok(Selector(matchers)),
            Some(other) => Err(format!("there is {other:?} after the closing '}}'")),
        }
    }

    fn matcher(&mut self) -> Result<Matcher, String> {
        let name = match self.rest.peek() {
            Some('"' | '\'' | '`') => self.quoted()?,
            _ => self.name(),
        };
        if name.is_empty() {
            return Err("a label's name was expected".into());
        }
        self.space();
        let operator = match (self.rest.next(), self.rest.next_if(|next| matches!(next, '=' | '~'))) {
            (Some('='), None) => "=",
            (Some('='), Some('~')) => "=~",
            (Some('!'), Some('=')) => "!=",
            (Some('!'), Some('~')) => "!~",
            _ => return Err(format!("after {name:?} one of = != =~ !~ was expected")),
        };
        self.space();
        let value = self.quoted()?;
        let compiled = self.compiled;
        if operator.contains('~') {
            if value.len() > LONGEST_EXPRESSION {
                return Err(format!("a regular expression has more than {LONGEST_EXPRESSION} bytes"));
            }
            *self.bytes = self.bytes.checked_sub(value.len()).ok_or_else(|| {
                format!("the regular expressions of the question have more than {EXPRESSIONS} bytes together")
            })?;
        }
        let regex = || {
            let mut regex = RegexBuilder::new(&format!("^(?s:{value})$"));
            regex.size_limit(compiled).dfa_size_limit(compiled).nest_limit(50);
            let value: String = value.chars().take(200).collect();
            regex.build().map_err(|error| match error {
                regex::Error::CompiledTooBig(most) => {
                    format!("the regular expression {value:?} would take more than {most} bytes")
                }
                _ => format!("{value:?} is not a regular expression that is understood"),
            })
        };
        let test = match operator {
            "=" => Test::Is(value),
            "!=" => Test::IsNot(value),
            "=~" => Test::Matches(regex()?),
            _ => Test::MatchesNot(regex()?),
        };
        Ok(Matcher { name, test })
    }

    fn space(&mut self) {
        while self.rest.next_if(|next| next.is_whitespace()).is_some() {}
    }

    fn name(&mut self) -> String {
        self.space();
        let mut name = String::new();
        while let Some(next) = self.rest.next_if(|next| next.is_alphanumeric() || "_.:-/".contains(*next)) {
            name.push(next);
        }
        name
    }

    fn quoted(&mut self) -> Result<String, String> {
        let Some(quote) = self.rest.next_if(|next| matches!(next, '"' | '\'' | '`')) else {
            return Err("a value in quotes was expected".into());
        };
        let mut value = String::new();
        loop {
            match self.rest.next() {
                None => return Err("a closing quote is missing".into()),
                Some(next) if next == quote => return Ok(value),
                Some('\\') if quote != '`' => value.push(self.escaped()?),
                Some(next) => value.push(next),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let next = self.rest.next().ok_or("a closing quote is missing")?;
        let digits = match next {
            'n' => return Ok('\n'),
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            '\\' | '"' | '\'' => return Ok(next),
            'x' => 2,
            'u' => 4,
            _ => return Err(format!("\\{next} is not understood in quotes")),
        };
        let hex: String = self.rest.by_ref().take(digits).collect();
        let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits).and_then(char::from_u32);
        code.ok_or_else(|| format!("\\{next}{hex} is not understood in quotes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str) -> bool {
        let labels = [("service_name", "shop"), ("region", "eu"), ("http.route", "/a\"b"), ("__name__", "process_cpu")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Selector::parse(selector).unwrap().selects(&labels.into())
    }

    #[test]
    fn matchers_mean_what_prometheus_means() {
        for yes in [
            "",
            "{}",
            " { } ",
            "{service_name=\"shop\"}",
            "{service_name='shop',}",
            "{service_name=`shop`, region=\"eu\"}",
            "{region!=\"us\"}",
            "{missing=\"\"}",
            "{missing!=\"x\"}",
            "{service_name=~\"sh.*\"}",
            "{service_name=~\"shop|cart\"}",
            "{missing=~\".*\"}",
            "{region!~\"u.\"}",
            "{http.route=\"/a\\\"b\"}",
            "{\"http.route\"=\"/a\\x22b\"}",
            "process_cpu{region=\"eu\"}",
        ] {
            assert!(selects(yes), "{yes}");
        }
        for no in [
            "{service_name=\"sho\"}",
            "{service_name=~\"sho\"}",
            "{service_name=~\"sho|x\"}",
            "{region!~\"e.\"}",
            "{missing=~\".+\"}",
            "{region=\"eu\",service_name=\"cart\"}",
            "memory{}",
        ] {
            assert!(!selects(no), "{no}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (bad, says) in [
            ("{", "'}' is missing"),
            ("{a}", "one of = != =~ !~"),
            ("{a=b}", "in quotes"),
            ("{a=\"b}", "closing quote"),
            ("{a=~\"(\"}", "not a regular expression"),
            ("{a=\"b\"} x", "after the closing"),
            ("{a=\"b\" c=\"d\"}", "',' or '}'"),
            ("{=\"b\"}", "name was expected"),
            ("{a=\"\\q\"}", "\\q is not understood"),
        ] {
            assert!(Selector::parse(bad).unwrap_err().contains(says), "{bad}");
        }
        assert!(Selector::parse(&"a".repeat(LONGEST + 1)).is_err());
    }

    #[test]
    fn an_expression_is_bounded_before_it_is_parsed() {
        // As a tree, each of its letters takes some six kilobytes.
        let of = |bytes: usize| format!("{{a=~`{}`}}", r"\w".repeat(bytes / 2));
        let refused = Selector::parse(&of(LONGEST_EXPRESSION + 2)).unwrap_err();
        assert!(refused.ends_with("a regular expression has more than 2048 bytes"), "{refused}");
        assert!(Selector::parse(&of(LONGEST_EXPRESSION)).unwrap_err().contains("would take more than"));
        // No values are bounded so.
        assert!(Selector::parse(&format!("{{a=`{}`}}", "x".repeat(60_000))).is_ok());
        let [half, rest] = [2_000, 97].map(|length| format!("{{a!~`{}`}}", "x".repeat(length)));
        let together = "the regular expressions of the question have more than 4096 bytes together";
        let all = |texts: &[&String]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).clone()).collect();
            Selector::parse_all(&texts).map(|all| all.len())
        };
        assert_eq!(all(&[&half, &half]), Ok(2));
        assert!(all(&[&half, &half, &rest]).unwrap_err().ends_with(together));
        let one = format!("{{a=~`{0}`,b=~`{0}`,c=~`{1}`}}", "x".repeat(2_000), "x".repeat(97));
        assert!(Selector::parse(&one).unwrap_err().ends_with(together));
    }

    #[test]
    fn selectors_of_a_question_are_counted_before_they_are_compiled_and_share_what_they_may_take() {
        let all = |text: &str, number: usize| {
            Selector::parse_all(&vec![text.to_owned(); number]).map(|all| all.len()).unwrap_err()
        };
        // Too large each, which nobody looks at.
        let large = "{a=~\".{9999}\"}";
        assert!(all(large, 1).contains("would take more than 1048576 bytes"), "{}", all(large, 1));
        assert_eq!(all(large, 21), "the matchers have more than 20 conditions");
        // Nor at what comes after the twentieth condition.
        let nineteen = format!("{{{}}}", "b=\"c\",".repeat(19));
        let texts = [&nineteen, "{d=\"e\"}", large].map(str::to_owned);
        let refused = Selector::parse_all(&texts).unwrap_err();
        assert!(refused.contains("there are more than 20 conditions"), "{refused}");
        let named = [&nineteen, "{d=\"e\"}", "name"].map(str::to_owned);
        assert_eq!(Selector::parse_all(&named).unwrap_err(), "the matchers have more than 20 conditions");
        // One alone has room, and twenty have no more together.
        let one = "{a=~\".{900}\"}".to_owned();
        assert_eq!(Selector::parse_all(std::slice::from_ref(&one)).unwrap().len(), 1);
        assert!(all(&one, 20).contains("would take more than 52428 bytes"), "{}", all(&one, 20));
        assert_eq!(Selector::parse_all(&vec!["{a=~\"b.*|c\"}".to_owned(); 20]).unwrap().len(), 20);
    }
}
