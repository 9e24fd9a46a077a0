//! What a page, an API answer or a download is about. Parsed here and nowhere else; its query string is its identity.

mod bound;
mod display;
mod pair;
mod state_choice;
mod time_range;

use std::collections::BTreeMap;

use crate::ids::{SpanId, TraceId};
use crate::params::{BadParameter, Params, encode};
use crate::profile_types;
use crate::span_status::Status;

pub(crate) use crate::profile_types::{CPU, WALL};
pub(crate) use bound::Bound;
pub(crate) use display::StackDisplay;
pub(crate) use pair::Pair;
pub(crate) use state_choice::StateChoice;
pub(crate) use time_range::{LAST_HOUR, TimeRange, parse_duration, since_text};

/// The most bytes of a selection's parameters, which stand in each link of a page, percent-encoded: of a service, a span name and a
/// profile type as long as they may be, and some more.
const MOST_BYTES: usize = 8 << 10;

/// The service of what `spanprof doctor` sends, which tells of a server and of no program: only who names it is shown it, and it is last.
pub(crate) const DOCTOR: &str = "spanprof.doctor";

/// A set of samples, and of the spans they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Only this service.
    pub(crate) service: Option<String>,
    /// Only spans of this name.
    pub(crate) name: Option<String>,
    /// Only spans whose name holds this, in capitals or not.
    pub(crate) name_part: Option<String>,
    /// Only spans with these attributes; without those whose value is empty.
    pub(crate) attributes: BTreeMap<String, String>,
    /// Only spans that took at least this long.
    pub(crate) least: Option<Bound>,
    /// Only spans that took at most this long.
    pub(crate) most: Option<Bound>,
    /// Only spans that ended like this.
    pub(crate) status: Option<Status>,
    /// Only profiles with these labels, likewise.
    pub(crate) labels: BTreeMap<String, String>,
    /// Only spans of this trace.
    pub(crate) trace: Option<TraceId>,
    /// Only this span.
    pub(crate) span: Option<SpanId>,
    /// With that span, all spans below it.
    pub(crate) below: bool,
    /// Inside or outside of spans, or both.
    pub(crate) side: Side,
    /// Profile type: its name, or all five parts as Pyroscope writes them.
    pub(crate) profile_type: String,
    /// Only samples in these states; of [`WALL`] alone.
    pub(crate) state: StateChoice,
    /// When.
    pub(crate) time_range: TimeRange,
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

impl Selection {
    /// Everything in the usual time range, of CPU.
    pub(crate) fn everything() -> Self {
        Self {
            service: None,
            name: None,
            name_part: None,
            attributes: BTreeMap::new(),
            least: None,
            most: None,
            status: None,
            labels: BTreeMap::new(),
            trace: None,
            span: None,
            below: false,
            side: Side::Any,
            profile_type: CPU.into(),
            state: StateChoice::All,
            time_range: TimeRange::usual(),
        }
    }

    /// Takes the selection's parameters out of a query.
    pub(crate) fn take(params: &mut Params) -> Result<Self, BadParameter> {
        let service = params.take("service")?;
        let name = params.take("name")?;
        let name_part = params.take("name~")?;
        let attributes = params.take_pairs("attr")?;
        let mut bound = |name| params.take(name)?.map(|text| Bound::parse(name, &text)).transpose();
        let (least, most) = (bound("dur>")?, bound("dur<")?);
        let status = take_status(params)?;
        let labels = params.take_pairs("label")?;
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
        let below = params.take_flag("below")?;
        let side = match (params.take_flag("inside")?, params.take_flag("outside")?) {
            (false, false) => Side::Any,
            (true, false) => Side::Inside,
            (false, true) => Side::Outside,
            (true, true) => {
                return Err(BadParameter::new("outside", "", "contradicts inside; give one of them"));
            }
        };
        let profile_type = params.take("type")?.unwrap_or_else(|| CPU.into());
        let state = params.take("state")?.map(|text| StateChoice::parse(&text)).transpose()?.unwrap_or_default();
        // A span's samples are stamped with their profile's window, so a span or trace is looked for at any time.
        let default = if trace.is_some() || span.is_some() { TimeRange::Stored } else { TimeRange::usual() };
        let time_range = TimeRange::take(params, default)?;
        let selection = Self {
            service,
            name,
            name_part,
            attributes,
            least,
            most,
            status,
            labels,
            trace,
            span,
            below,
            side,
            profile_type,
            state,
            time_range,
        };
        selection.check()?;
        Ok(selection)
    }

    /// Refuses what contradicts itself, which would otherwise look like nothing found.
    fn check(&self) -> Result<(), BadParameter> {
        let of_spans = self.name.is_some()
            || self.name_part.is_some()
            || self.trace.is_some()
            || self.span.is_some()
            || self.reads_spans();
        if self.side == Side::Outside && of_spans {
            let contradicts =
                "contradicts name, attr, dur, status, trace and span: what is outside spans belongs to none";
            return Err(BadParameter::new("outside", "", contradicts));
        }
        if self.below && self.span.is_none() {
            return Err(BadParameter::new("below", "", "needs span beside it"));
        }
        let reversed = match (self.least, self.most) {
            (Some(Bound::Time(least)), Some(Bound::Time(most))) => least > most,
            (Some(Bound::Percentile(least)), Some(Bound::Percentile(most))) => least > most,
            _ => false,
        };
        if reversed && let Some(least) = self.least {
            return Err(BadParameter::new("dur>", &least.text(), "is more than dur<"));
        }
        let parts = self.profile_type.split(':').count();
        if parts != 1 && parts != 5 {
            let allowed = "allowed is a name such as process_cpu, or name:sample type:unit:period type:period unit";
            return Err(BadParameter::new("type", &self.profile_type, allowed));
        }
        if self.state != StateChoice::All && !self.is_wall() {
            return Err(BadParameter::new(
                "state",
                self.state.text(),
                "needs type=wall, whose samples say their state",
            ));
        }
        let pairs = self.pairs();
        let bytes: usize = pairs.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        if bytes > MOST_BYTES
            && let Some((name, value)) = pairs.iter().max_by_key(|(_, value)| value.len())
        {
            let allowed =
                format!("is one of a selection of {bytes} bytes; allowed are {MOST_BYTES} for all its parameters");
            return Err(BadParameter::new(name, value, allowed));
        }
        Ok(())
    }

    /// Whether it depends on what only traces say of spans, and not their samples.
    pub(crate) fn reads_spans(&self) -> bool {
        !self.attributes.is_empty() || self.least.is_some() || self.most.is_some() || self.status.is_some()
    }

    /// Whether it is of a profile type whose samples may say their state.
    pub(crate) fn is_wall(&self) -> bool {
        self.profile_type.split(':').next() == Some(WALL)
    }

    /// The parameter by which it chooses less than whole spans of a name, and what that chooses among.
    pub(crate) fn chooses_within(&self) -> Option<(&'static str, &'static str)> {
        let parameters = [
            (self.state != StateChoice::All, "state=", "samples"),
            (!self.labels.is_empty(), "label.KEY=", "samples"),
            (self.side == Side::Inside, "inside=", "samples"),
            (self.side == Side::Outside, "outside=", "samples"),
            (self.trace.is_some(), "trace=", "the spans of a name"),
            (self.span.is_some(), "span=", "the spans of a name"),
        ];
        parameters.into_iter().find_map(|(is_said, parameter, among)| is_said.then_some((parameter, among)))
    }

    /// Whether a bound must still be looked up.
    pub(crate) fn has_percentile(&self) -> bool {
        [self.least, self.most].iter().any(|bound| matches!(bound, Some(Bound::Percentile(_))))
    }

    /// The samples of one span.
    pub(crate) fn of_span(span: SpanId) -> Self {
        Self { span: Some(span), time_range: TimeRange::Stored, ..Self::everything() }
    }

    /// The samples of one trace.
    pub(crate) fn of_trace(trace: TraceId) -> Self {
        Self { trace: Some(trace), time_range: TimeRange::Stored, ..Self::everything() }
    }

    /// This selection, of one service.
    pub(crate) fn service(self, service: &str) -> Self {
        Self { service: Some(service.into()), ..self }
    }

    /// This selection, of one span name.
    pub(crate) fn name(self, name: &str) -> Self {
        Self { name: Some(name.into()), name_part: None, ..self }
    }

    /// This selection, inside or outside of spans.
    pub(crate) fn side(self, side: Side) -> Self {
        Self { side, ..self }
    }

    /// This selection, of another profile type, and of all states of that.
    pub(crate) fn profile_type(self, profile_type: &str) -> Self {
        Self { profile_type: profile_type.into(), state: StateChoice::All, ..self }
    }

    /// This selection, of other states.
    pub(crate) fn state(self, state: StateChoice) -> Self {
        Self { state, ..self }
    }

    /// This selection, in another time range.
    pub(crate) fn time_range(self, time_range: TimeRange) -> Self {
        Self { time_range, ..self }
    }

    /// This selection, without what it says of single spans, services and profiles.
    pub(crate) fn without_filter(self) -> Self {
        Self {
            service: self.service,
            name: self.name,
            profile_type: self.profile_type,
            time_range: self.time_range,
            ..Self::everything()
        }
    }

    /// Whether [`Self::without_filter`] would be another selection.
    pub(crate) fn has_filter(&self) -> bool {
        self.name_part.is_some() || !self.labels.is_empty() || self.reads_spans()
    }

    /// The parameters that parse to this selection.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, value: Option<String>| pairs.extend(value.map(|value| (name.to_owned(), value)));
        add("service", self.service.clone());
        add("name", self.name.clone());
        add("name~", self.name_part.clone());
        for (key, value) in &self.attributes {
            add(&format!("attr.{key}"), Some(value.clone()));
        }
        add("dur>", self.least.map(Bound::text));
        add("dur<", self.most.map(Bound::text));
        add("status", self.status.map(|status| status_text(status).to_owned()));
        for (key, value) in &self.labels {
            add(&format!("label.{key}"), Some(value.clone()));
        }
        add("trace", self.trace.map(|trace| trace.to_string()));
        add("span", self.span.map(|span| span.to_string()));
        add("below", self.below.then(|| "1".into()));
        add("inside", (self.side == Side::Inside).then(|| "1".into()));
        add("outside", (self.side == Side::Outside).then(|| "1".into()));
        add("type", (self.profile_type != CPU).then(|| self.profile_type.clone()));
        add("state", (self.state != StateChoice::All).then(|| self.state.text().into()));
        let single = self.trace.is_some() || self.span.is_some();
        if self.time_range != if single { TimeRange::Stored } else { TimeRange::usual() } {
            pairs.extend(self.time_range.query());
        }
        pairs
    }

    /// A link to `path` with this selection.
    pub(crate) fn link(&self, path: &str) -> String {
        link(path, &self.pairs())
    }

    /// The selection as people say it: `GET /cart of checkout, at least p95, last hour`.
    pub(crate) fn sentence(&self) -> String {
        let below = if self.below { " and all below it" } else { "" };
        let mut words = match (&self.name, self.span, self.trace) {
            (Some(name), Some(span), _) => format!("{name}, span {span}{below}"),
            (None, Some(span), _) => format!("span {span}{below}"),
            (Some(name), None, Some(trace)) => format!("{name} in trace {trace}"),
            (None, None, Some(trace)) => format!("trace {trace}"),
            (Some(name), None, None) => name.clone(),
            (None, None, None) => match self.side {
                _ if self.name_part.is_some() || self.reads_spans() => "spans".into(),
                Side::Any => "everything".into(),
                Side::Inside => "everything inside spans".into(),
                Side::Outside => "everything outside spans".into(),
            },
        };
        let mut add = |text: String| words.push_str(&text);
        if let Some(part) = &self.name_part {
            add(format!(" named like {part:?}"));
        }
        if let Some(service) = &self.service {
            add(format!(" of {service}"));
        }
        for (key, value) in self.attributes.iter().chain(&self.labels) {
            add(if value.is_empty() { format!(", without {key}") } else { format!(", {key} = {value}") });
        }
        match (self.least, self.most) {
            (None, None) => {}
            (Some(least), None) => add(format!(", at least {}", least.text())),
            (None, Some(most)) => add(format!(", at most {}", most.text())),
            (Some(least), Some(most)) => add(format!(", {} to {}", least.text(), most.text())),
        }
        if let Some(status) = self.status {
            add(format!(", status {}", status_text(status)));
        }
        if self.profile_type != CPU {
            add(format!(", {}", profile_types::word(&self.profile_type)));
        }
        if self.state != StateChoice::All {
            add(format!(", state {}", self.state.text()));
        }
        if self.time_range != TimeRange::Stored || (self.trace.is_none() && self.span.is_none()) {
            add(format!(", {}", self.time_range.words()));
        }
        words
    }
}

/// A query string.
pub(crate) fn query(pairs: &[(String, String)]) -> String {
    pairs.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect::<Vec<_>>().join("&")
}

/// A link to `path` with a query.
pub(crate) fn link(path: &str, pairs: &[(String, String)]) -> String {
    if pairs.is_empty() { path.into() } else { format!("{path}?{}", query(pairs)) }
}

fn take_status(params: &mut Params) -> Result<Option<Status>, BadParameter> {
    let Some(text) = params.take("status")? else { return Ok(None) };
    match [Status::Error, Status::Ok, Status::Unset].into_iter().find(|status| status_text(*status) == text) {
        Some(status) => Ok(Some(status)),
        None => Err(BadParameter::new("status", &text, "allowed are error, ok and unset")),
    }
}

/// A status as it is written in a query.
pub(crate) fn status_text(status: Status) -> &'static str {
    match status {
        Status::Error => "error",
        Status::Ok => "ok",
        Status::Unset => "unset",
    }
}

#[cfg(test)]
mod tests;
