//! What the program and its environment ask for, as the engine's settings.

use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use spanprof_core::{Config, Level, Secret, TraceIdLabel};

use crate::errors::{guard, to_python};
use crate::symbols::resolver::LineMode;
use crate::value::{dict, pairs, string};

/// What the environment alone says: whether to profile, the application's name ("" if it has none), names of tags.
#[pyfunction]
pub(crate) fn environment(py: Python<'_>) -> PyResult<(bool, String, Vec<String>)> {
    guard(|| {
        let config = from_environment(py, &PyDict::new(py))?;
        let tags = config.tags.into_iter().map(|(name, _)| name).collect();
        Ok((config.enabled && config.cpu_enabled, config.application_name, tags))
    })
}

/// The labels that an OpenTelemetry resource with these attributes gives to profiles.
#[pyfunction]
pub(crate) fn resource_labels(attributes: &Bound<'_, PyDict>) -> PyResult<Vec<(String, String)>> {
    guard(|| {
        let attributes = pairs("resource", attributes)?;
        let known = |name: &str| attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        Ok(spanprof_core::resource_labels(known))
    })
}

/// Reads true, false, 1, 0, yes or no, in any case; ValueError naming `field` for anything else.
#[pyfunction]
pub(crate) fn parse_bool(field: &str, value: &str) -> PyResult<bool> {
    guard(|| spanprof_core::parse_bool(field, value).map_err(|error| to_python(&error)))
}

/// The configuration that the environment gives. What `settings` say of one variable goes before it.
pub(crate) fn from_environment(py: Python<'_>, settings: &Bound<'_, PyDict>) -> PyResult<Config> {
    let environ = py.import("os")?.getattr("environ")?;
    let resource_labels = match settings.get_item("resource_labels")? {
        Some(value) => Some(value.is_truthy()?.to_string()),
        None => None,
    };
    let lookup = |name: &str| match &resource_labels {
        Some(value) if name == "OTEL_PYROSCOPE_RESOURCE_LABELS" => Some(value.clone()),
        _ => environ.call_method1("get", (name,)).ok()?.extract::<String>().ok(),
    };
    let mut config = Config::from_environment(lookup).map_err(|error| to_python(&error))?;
    let version = Python::version_str();
    let version = version.split_whitespace().next().unwrap_or_default().to_owned();
    config.spy = "spanprof-python".to_owned();
    config.runtime = ("cpython".to_owned(), version);
    config.package = ("pyroscope-otel".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    Ok(config)
}

/// Puts the arguments that were given in code over the configuration.
pub(crate) fn apply(config: &mut Config, settings: &Bound<'_, PyDict>) -> PyResult<LineMode> {
    let mut lines = LineMode::LastInstruction;
    for (name, value) in settings {
        let name: String = name.extract()?;
        match name.as_str() {
            "application_name" => config.application_name = string(&name, &value)?,
            "server_address" => config.server_address = string(&name, &value)?,
            "basic_auth_username" => config.basic_auth_user = string(&name, &value)?,
            "basic_auth_password" => config.basic_auth_password = Secret(string(&name, &value)?),
            "tenant_id" => config.tenant_id = string(&name, &value)?,
            "http_headers" => {
                config.http_headers =
                    dict(&name, &value)?.into_iter().map(|(name, value)| (name, Secret(value))).collect();
            }
            "tags" => config.tags.extend(dict(&name, &value)?),
            "sample_rate" => config.sample_rate = number(&name, &value)?,
            "upload_interval" => config.upload_interval = seconds(&name, &value)?,
            "cpu_enabled" => config.cpu_enabled = value.is_truthy()?,
            "enable_logging" => config.log_level = Some(if value.is_truthy()? { Level::Info } else { Level::Warning }),
            "report_pid" => config.report_pid = value.is_truthy()?,
            "report_thread_id" => config.report_thread_id = value.is_truthy()?,
            "report_thread_name" => config.report_thread_name = value.is_truthy()?,
            "trace_id" => config.trace_id = trace_id(&name, &value)?,
            // Has told from_environment() already.
            "resource_labels" => {}
            "span_names" => config.span_names = value.is_truthy()?,
            "line_no" => {
                lines = match value.extract::<u32>()? {
                    1 => LineMode::First,
                    2 => LineMode::NoLine,
                    _ => LineMode::LastInstruction,
                };
            }
            // For the stress test: rates by wall time that no CPU clock could give.
            "wall_clock" if value.is_truthy()? => config.clock = spanprof_core::SampleClock::Wall,
            "wall_clock" => {}
            _ => return Err(PyTypeError::new_err(format!("configure() got an unexpected keyword argument '{name}'"))),
        }
    }
    Ok(lines)
}

fn trace_id(name: &str, value: &Bound<'_, PyAny>) -> PyResult<TraceIdLabel> {
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(if value.is_true() { TraceIdLabel::Always } else { TraceIdLabel::Never });
    }
    spanprof_core::parse_trace_id(name, &string(name, value)?).map_err(|error| to_python(&error))
}

/// Whole numbers that no setting allows become one that is not allowed either, so that the core can say what is.
fn number(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    let number: i64 = value
        .extract()
        .map_err(|_| PyTypeError::new_err(format!("{name} must be an int, not {}", value.get_type())))?;
    match u32::try_from(number) {
        Ok(number) => Ok(number),
        Err(_) => Err(to_python(&spanprof_core::Error::invalid(name, number, "1 to 1000 samples a second"))),
    }
}

fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = value
        .extract()
        .map_err(|_| PyTypeError::new_err(format!("{name} must be a number of seconds, not {}", value.get_type())))?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| to_python(&spanprof_core::Error::invalid(name, seconds, "1 s to 10 min")))
}
