//! Python's values as Rust's: those of settings and tags.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::calls;

/// A str; None is "".
pub(crate) fn string(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_none() {
        return Ok(String::new());
    }
    value.extract().map_err(|_| PyTypeError::new_err(format!("{name} must be a str, not {}", value.get_type())))
}

/// The names and values of a dict; None has none.
pub(crate) fn dict(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    if value.is_none() {
        return Ok(Vec::new());
    }
    match value.cast::<PyDict>() {
        Ok(dict) => pairs(name, dict),
        Err(_) => Err(PyTypeError::new_err(format!("{name} must be a dict, not {}", value.get_type()))),
    }
}

/// Names and values; values that are not str become it.
pub(crate) fn pairs(field: &str, tags: &Bound<'_, PyDict>) -> PyResult<Vec<(String, String)>> {
    tags.iter().map(|(name, value)| pair(field, &name, &value)).collect()
}

/// A name and a value.
pub(crate) fn pair(field: &str, name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<(String, String)> {
    let Ok(name) = name.cast::<PyString>() else {
        return Err(PyTypeError::new_err(format!("{field}: the name {} is not a str", calls::representation(name)?)));
    };
    let value = match value.cast_exact::<PyString>() {
        Ok(value) => value.to_string_lossy().into_owned(),
        Err(_) => calls::text(value)?,
    };
    Ok((name.to_string_lossy().into_owned(), value))
}
