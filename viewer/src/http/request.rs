//! What pages, API and downloads are asked for beside a selection. Parsed here and nowhere else.

use crate::ids::TraceId;
use crate::params::{BadParameter, Params};
use crate::selection::{Selection, Side, StackDisplay, StateChoice, TimeRange};
use crate::store::TraceSort;

/// What a list of services is about.
pub(crate) fn take_time_range(params: &mut Params) -> Result<TimeRange, BadParameter> {
    TimeRange::take(params, TimeRange::usual())
}

/// The same, with nothing beside it.
pub(crate) fn time_range_alone(mut params: Params) -> Result<TimeRange, BadParameter> {
    let time_range = take_time_range(&mut params)?;
    params.finish()?;
    Ok(time_range)
}

/// What a list of span names or traces is about: a service, and which of its spans.
pub(crate) struct ServiceRequest {
    pub(crate) service: String,
    pub(crate) selection: Selection,
}

impl ServiceRequest {
    /// Takes a selection that names a service, and nothing that a list of spans cannot heed.
    pub(crate) fn take(params: &mut Params) -> Result<Self, BadParameter> {
        let selection = Selection::take(params)?;
        if let Some((key, value)) = selection.labels.first_key_value() {
            let name = format!("label.{key}");
            return Err(BadParameter::new(&name, value, "belongs to profiles; choose spans by attr.KEY=VALUE"));
        }
        let is_of_samples = selection.side != Side::Any || selection.state != StateChoice::All;
        if is_of_samples || selection.trace.is_some() || selection.span.is_some() {
            let given = selection.pairs().into_iter().find(|(name, _)| SINGLE.contains(&name.as_str()));
            let (name, value) = given.unwrap_or_default();
            return Err(BadParameter::new(&name, &value, "is known to flame graphs, and not to lists of spans"));
        }
        match selection.service.clone() {
            Some(service) => Ok(Self { service, selection }),
            None => Err(BadParameter::new("service", "", "is missing; name a service")),
        }
    }

    /// The same, with nothing beside it.
    pub(crate) fn alone(mut params: Params) -> Result<Self, BadParameter> {
        let request = Self::take(&mut params)?;
        params.finish()?;
        Ok(request)
    }
}

const SINGLE: [&str; 6] = ["trace", "span", "below", "inside", "outside", "state"];

/// A selection and how its stacks are shown.
pub(crate) struct StackRequest {
    pub(crate) selection: Selection,
    pub(crate) display: StackDisplay,
}

impl StackRequest {
    /// Takes both.
    pub(crate) fn take(params: &mut Params) -> Result<Self, BadParameter> {
        Ok(Self { selection: Selection::take(params)?, display: StackDisplay::take(params)? })
    }

    /// The same, with nothing beside them.
    pub(crate) fn alone(mut params: Params) -> Result<Self, BadParameter> {
        let request = Self::take(&mut params)?;
        params.finish()?;
        Ok(request)
    }
}

/// A function of a selection.
pub(crate) struct FunctionRequest {
    pub(crate) stacks: StackRequest,
    pub(crate) function: String,
    pub(crate) file: Option<String>,
}

impl FunctionRequest {
    /// Takes `function` and `file` beside a selection.
    pub(crate) fn alone(mut params: Params) -> Result<Self, BadParameter> {
        let function = params.take("function")?;
        let file = params.take("file")?;
        let stacks = StackRequest::alone(params)?;
        match function {
            Some(function) => Ok(Self { stacks, function, file }),
            None => Err(BadParameter::new("function", "", "is missing; name a function")),
        }
    }
}

/// Takes `sort` of a list of traces.
pub(crate) fn take_trace_sort(params: &mut Params) -> Result<TraceSort, BadParameter> {
    match params.take("sort")?.as_deref() {
        None | Some("wall") => Ok(TraceSort::Wall),
        Some("cpu") => Ok(TraceSort::Cpu),
        Some(other) => Err(BadParameter::new("sort", other, "allowed are wall and cpu")),
    }
}

/// Reads a trace id from a path.
pub(crate) fn trace_id(text: &str) -> Result<TraceId, BadParameter> {
    TraceId::parse(text).ok_or_else(|| BadParameter::new("trace", text, "allowed are 32 hex digits, not all zeros"))
}
