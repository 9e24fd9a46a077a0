//! What a page, an API answer or a download is about. Parsed here and nowhere else; its query string is its identity.

use std::time::Duration;

use crate::cli::parse_duration;
use crate::clock::{self, MILLISECOND};
use crate::ids::{SpanId, TraceId};
use crate::params::{BadParameter, Params, encode};

/// The profile type that is meant where none is said.
pub(crate) const CPU: &str = "process_cpu";
const DEFAULT_SINCE: Duration = Duration::from_secs(3600);

/// A set of samples, and of the spans they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Only this service.
    pub(crate) service: Option<String>,
    /// Only spans of this name.
    pub(crate) name: Option<String>,
    /// Only spans of this trace.
    pub(crate) trace: Option<TraceId>,
    /// Only this span.
    pub(crate) span: Option<SpanId>,
    /// Inside or outside of spans, or both.
    pub(crate) side: Side,
    /// Profile type: its name, or all five parts as Pyroscope writes them.
    pub(crate) kind: String,
    /// When.
    pub(crate) window: Window,
}

/// Where samples stand in relation to spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// In a span or not.
    Any,
    /// In a span.
    Inside,
    /// In no span.
    Outside,
}

/// A time range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// Everything that is stored: what a single span or trace is looked up in.
    Stored,
    /// The time up to now.
    Since(Duration),
    /// Unix milliseconds, both included.
    Between(i64, i64),
}

impl Window {
    /// Takes `since`, or `from` and `to`.
    pub(crate) fn take(params: &mut Params, default: Self) -> Result<Self, BadParameter> {
        let since = params.take("since")?;
        let from = params.take("from")?;
        let to = params.take("to")?;
        match (since, from, to) {
            (None, None, None) => Ok(default),
            (Some(since), None, None) => parse_duration(&since)
                .map(Self::Since)
                .map_err(|_| BadParameter::new("since", &since, "allowed is a time such as 90s, 15m, 1h or 2d")),
            (None, Some(from), Some(to)) => {
                let (from_ms, to_ms) = (milliseconds("from", &from)?, milliseconds("to", &to)?);
                if from_ms > to_ms {
                    return Err(BadParameter::new("from", &from, "is after to"));
                }
                Ok(Self::Between(from_ms, to_ms))
            }
            (Some(since), ..) => {
                Err(BadParameter::new("since", &since, "is given together with from and to; give one or the other"))
            }
            (None, Some(from), None) => Err(BadParameter::new("from", &from, "needs to beside it")),
            (None, None, Some(to)) => Err(BadParameter::new("to", &to, "needs from beside it")),
        }
    }

    /// First and last nanosecond.
    pub(crate) fn bounds(self) -> (i64, i64) {
        match self {
            Self::Stored => (i64::MIN, i64::MAX),
            Self::Since(since) => {
                (clock::now().saturating_sub(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)), i64::MAX)
            }
            Self::Between(from, to) => {
                (from.saturating_mul(MILLISECOND), to.saturating_mul(MILLISECOND).saturating_add(MILLISECOND - 1))
            }
        }
    }

    /// `last hour`, `last 15 min`, a range in UTC milliseconds; empty for everything stored.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Stored => String::new(),
            Self::Since(since) => format!("last {}", since_words(since)),
            Self::Between(from, to) => format!("from {from} to {to} (Unix ms)"),
        }
    }

    fn query(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Stored => Vec::new(),
            Self::Since(since) => vec![("since", since_text(since))],
            Self::Between(from, to) => vec![("from", from.to_string()), ("to", to.to_string())],
        }
    }
}

impl Selection {
    /// Everything in the last hour, of CPU.
    pub(crate) fn everything() -> Self {
        Self {
            service: None,
            name: None,
            trace: None,
            span: None,
            side: Side::Any,
            kind: CPU.into(),
            window: Window::Since(DEFAULT_SINCE),
        }
    }

    /// Takes the selection's parameters out of a query.
    pub(crate) fn take(params: &mut Params) -> Result<Self, BadParameter> {
        let service = params.take("service")?;
        let name = params.take("name")?;
        let trace = match params.take("trace")? {
            None => None,
            Some(text) => Some(
                TraceId::parse(&text)
                    .ok_or_else(|| BadParameter::new("trace", &text, "allowed are 32 hex digits, not all zeros"))?,
            ),
        };
        let span = match params.take("span")? {
            None => None,
            Some(text) => Some(
                SpanId::parse(&text)
                    .ok_or_else(|| BadParameter::new("span", &text, "allowed are 16 hex digits, not all zeros"))?,
            ),
        };
        let side = match (params.take_flag("inside")?, params.take_flag("outside")?) {
            (false, false) => Side::Any,
            (true, false) => Side::Inside,
            (false, true) => Side::Outside,
            (true, true) => {
                return Err(BadParameter::new("outside", "", "contradicts inside; give one of them"));
            }
        };
        if side == Side::Outside && (name.is_some() || trace.is_some() || span.is_some()) {
            return Err(BadParameter::new(
                "outside",
                "",
                "contradicts name, trace and span: what is outside spans belongs to none",
            ));
        }
        let kind = params.take("type")?.unwrap_or_else(|| CPU.into());
        let parts = kind.split(':').count();
        if parts != 1 && parts != 5 {
            let allowed = "allowed is a name such as process_cpu, or name:sample type:unit:period type:period unit";
            return Err(BadParameter::new("type", &kind, allowed));
        }
        // A span's samples are stamped with their profile's window, so a span or trace is looked for at any time.
        let default = if trace.is_some() || span.is_some() { Window::Stored } else { Window::Since(DEFAULT_SINCE) };
        let window = Window::take(params, default)?;
        Ok(Self { service, name, trace, span, side, kind, window })
    }

    /// The samples of one span.
    pub(crate) fn of_span(span: SpanId) -> Self {
        Self { span: Some(span), window: Window::Stored, ..Self::everything() }
    }

    /// The samples of one trace.
    pub(crate) fn of_trace(trace: TraceId) -> Self {
        Self { trace: Some(trace), window: Window::Stored, ..Self::everything() }
    }

    /// This selection, of one service.
    pub(crate) fn service(self, service: &str) -> Self {
        Self { service: Some(service.into()), ..self }
    }

    /// This selection, of one span name.
    pub(crate) fn name(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// This selection, inside or outside of spans.
    pub(crate) fn side(self, side: Side) -> Self {
        Self { side, ..self }
    }

    /// This selection, in another time range.
    pub(crate) fn window(self, window: Window) -> Self {
        Self { window, ..self }
    }

    /// The query string that parses to this selection.
    pub(crate) fn query(&self) -> String {
        let mut pairs: Vec<(&str, String)> = Vec::new();
        pairs.extend(self.service.as_ref().map(|service| ("service", encode(service))));
        pairs.extend(self.name.as_ref().map(|name| ("name", encode(name))));
        pairs.extend(self.trace.map(|trace| ("trace", trace.to_string())));
        pairs.extend(self.span.map(|span| ("span", span.to_string())));
        match self.side {
            Side::Any => {}
            Side::Inside => pairs.push(("inside", "1".into())),
            Side::Outside => pairs.push(("outside", "1".into())),
        }
        if self.kind != CPU {
            pairs.push(("type", encode(&self.kind)));
        }
        if self.window != Window::Since(DEFAULT_SINCE) {
            pairs.extend(self.window.query());
        }
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    }

    /// A link to `path` with this selection.
    pub(crate) fn link(&self, path: &str) -> String {
        let query = self.query();
        if query.is_empty() { path.into() } else { format!("{path}?{query}") }
    }

    /// The selection as people say it: `GET /cart of checkout, last hour`.
    pub(crate) fn sentence(&self) -> String {
        let what = match (&self.name, self.span, self.trace) {
            (Some(name), Some(span), _) => format!("{name}, span {span}"),
            (None, Some(span), _) => format!("span {span}"),
            (Some(name), None, Some(trace)) => format!("{name} in trace {trace}"),
            (None, None, Some(trace)) => format!("trace {trace}"),
            (Some(name), None, None) => name.clone(),
            (None, None, None) => match self.side {
                Side::Any => "everything".into(),
                Side::Inside => "everything inside spans".into(),
                Side::Outside => "everything outside spans".into(),
            },
        };
        let of = self.service.as_ref().map(|service| format!(" of {service}")).unwrap_or_default();
        let kind = if self.kind == CPU { String::new() } else { format!(", {}", self.kind) };
        let when = Some(self.window.words()).filter(|words| !words.is_empty()).map(|words| format!(", {words}"));
        format!("{what}{of}{kind}{}", when.unwrap_or_default())
    }
}

/// The shortest text that [`parse_duration`] reads as this time.
pub(crate) fn since_text(since: Duration) -> String {
    let seconds = since.as_secs();
    match seconds {
        s if s % 86_400 == 0 => format!("{}d", s / 86_400),
        s if s % 3_600 == 0 => format!("{}h", s / 3_600),
        s if s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

fn since_words(since: Duration) -> String {
    match since.as_secs() {
        3_600 => "hour".into(),
        86_400 => "day".into(),
        s if s % 86_400 == 0 => format!("{} days", s / 86_400),
        s if s % 3_600 == 0 => format!("{} hours", s / 3_600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

fn milliseconds(name: &'static str, text: &str) -> Result<i64, BadParameter> {
    text.parse()
        .ok()
        .filter(|ms| *ms >= 0)
        .ok_or_else(|| BadParameter::new(name, text, "allowed are Unix milliseconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Selection, BadParameter> {
        let mut params = Params::parse(query);
        let selection = Selection::take(&mut params)?;
        params.finish()?;
        Ok(selection)
    }

    #[test]
    fn a_query_string_survives() {
        for query in [
            "",
            "service=checkout&name=GET%20/cart",
            "trace=4bf92f3577b34da6a3ce929d0e0e4736",
            "span=00f067aa0ba902b7",
            "service=a%26b&outside=1&since=15m",
            "type=memory&from=1000&to=2000",
        ] {
            assert_eq!(parse(query).unwrap().query(), query);
        }
    }

    #[test]
    fn a_bad_parameter_is_named_with_its_value() {
        for (query, says) in [
            ("span=xyz", "\"span\" = \"xyz\": allowed are 16 hex"),
            ("span=0000000000000000", "not all zeros"),
            ("trace=4bf92f3577b34da6", "32 hex"),
            ("since=yesterday", "\"since\" = \"yesterday\""),
            ("since=1h&from=1&to=2", "together"),
            ("from=5", "needs to"),
            ("from=5&to=x", "Unix milliseconds"),
            ("from=5&to=4", "after"),
            ("inside=1&outside=1", "contradicts"),
            ("outside=1&name=a", "contradicts"),
            ("inside=yes", "takes no value"),
            ("type=a:b", "\"type\""),
            ("attr.http.route=/cart", "not known here; allowed are service, name"),
        ] {
            let refused = parse(query).expect_err(query).to_string();
            assert!(refused.contains(says), "{query}: {refused}");
        }
    }

    #[test]
    fn sentences_read_well() {
        assert_eq!(parse("service=checkout&name=GET /cart").unwrap().sentence(), "GET /cart of checkout, last hour");
        assert_eq!(
            parse("service=checkout&outside").unwrap().sentence(),
            "everything outside spans of checkout, last hour"
        );
        assert_eq!(parse("span=00f067aa0ba902b7").unwrap().sentence(), "span 00f067aa0ba902b7");
    }
}
