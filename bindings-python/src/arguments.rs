//! What the program and its environment ask for, as the engine's settings.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};
use spanprof_core::{Config, Level, SettingKind, SettingValue};

use crate::calls;
use crate::errors::{guard, to_python};
use crate::symbols::resolver::LineMode;
use crate::value::{dict, pairs, string, wrong_type};

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

/// Reads a bool, and true, false, 1, 0, yes or no, in any case; None if it was not given. ValueError naming it for anything else.
#[pyfunction(name = "flag")]
pub(crate) fn read_flag(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
    guard(|| flag(name, value))
}

/// The configuration that the environment gives. What `settings` say of one variable goes before it.
pub(crate) fn from_environment(py: Python<'_>, settings: &Bound<'_, PyDict>) -> PyResult<Config> {
    let environ = py.import("os")?.getattr("environ")?;
    let resource_labels = match settings.get_item("resource_labels")? {
        Some(value) => flag("resource_labels", &value)?.map(|labels| labels.to_string()),
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
            "enable_logging" => {
                // Grafana's package takes whatever is true or not.
                let is_text = value.is_instance_of::<PyString>();
                if let Some(logs) = if is_text { flag(&name, &value)? } else { Some(value.is_truthy()?) } {
                    config.log_level = Some(if logs { Level::Info } else { Level::Warning });
                }
            }
            // Has told from_environment() already.
            "resource_labels" => {}
            "line_no" => {
                lines = match value.extract::<u32>()? {
                    1 => LineMode::First,
                    2 => LineMode::NoLine,
                    _ => LineMode::LastInstruction,
                };
            }
            _ => {
                let Some(kind) = SettingKind::of(&name) else {
                    let text = format!("configure() got an unexpected keyword argument '{name}'");
                    return Err(PyTypeError::new_err(text));
                };
                if let Some(value) = setting(&name, kind, &value)? {
                    config.set(&name, value).map_err(|error| to_python(&error))?;
                }
            }
        }
    }
    Ok(lines)
}

/// Yes or no. Text is what it would be in the environment, so "no" is no, and a number what its text is; None and blank text are as if it
/// was not given.
fn flag(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
    if value.is_none() {
        return Ok(None);
    }
    if let Ok(flag) = value.extract() {
        return Ok(Some(flag));
    }
    let text = match value.cast::<PyString>() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => calls::representation(value)?,
    };
    match text.trim() {
        "" => Ok(None),
        text => spanprof_core::parse_bool(name, text).map(Some).map_err(|error| to_python(&error)),
    }
}

/// An argument as the engine takes it, None if it was not given; TypeError where that cannot be.
fn setting(name: &str, kind: SettingKind, value: &Bound<'_, PyAny>) -> PyResult<Option<SettingValue>> {
    let not = |allowed: &str| wrong_type(name, value, allowed);
    let (number, time) = ("an int, 1 to 1000 samples a second", "a number of seconds, 1 to 600");
    // Which is an int to Python.
    let is_bool = value.is_instance_of::<PyBool>();
    Ok(Some(match kind {
        SettingKind::Number if is_bool => return Err(not(number)),
        SettingKind::Time if is_bool => return Err(not(time)),
        SettingKind::Flag => return Ok(flag(name, value)?.map(SettingValue::Flag)),
        SettingKind::Number => SettingValue::Number(value.extract().map_err(|_| not(number))?),
        SettingKind::Time => SettingValue::Seconds(value.extract().map_err(|_| not(time))?),
        SettingKind::Pairs => SettingValue::Pairs(dict(name, value)?),
        SettingKind::TraceId => match value.cast::<PyBool>() {
            Ok(value) => SettingValue::Flag(value.is_true()),
            Err(_) => SettingValue::Text(string(name, value, "\"auto\", True, False")?),
        },
        SettingKind::Text | SettingKind::Secret | SettingKind::Level => {
            SettingValue::Text(string(name, value, "a str")?)
        }
    }))
}
