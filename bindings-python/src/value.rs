//! Python's values as Rust's: those of settings and tags.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use spanprof_core::Error;

use crate::calls;

/// What may hold a credential, also where it is of the wrong type: no message shows it.
const HIDDEN: [&str; 5] = ["server_address", "basic_auth_username", "basic_auth_password", "tenant_id", "http_headers"];

/// The TypeError that says of an argument's value what is allowed instead.
pub(crate) fn wrong_type(name: &str, value: &Bound<'_, PyAny>, allowed: &str) -> PyErr {
    let hidden = HIDDEN.contains(&name);
    match if hidden { Ok("the value (not shown)".to_owned()) } else { calls::representation(value) } {
        Ok(shown) => PyTypeError::new_err(Error::invalid(name, shown, allowed).message().to_owned()),
        Err(error) => error,
    }
}

/// A str; None is "".
pub(crate) fn string(name: &str, value: &Bound<'_, PyAny>, allowed: &str) -> PyResult<String> {
    if value.is_none() {
        return Ok(String::new());
    }
    value.extract().map_err(|_| wrong_type(name, value, allowed))
}

/// The names and values of a dict; None has none.
pub(crate) fn dict(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    if value.is_none() {
        return Ok(Vec::new());
    }
    match value.cast::<PyDict>() {
        Ok(dict) => pairs(name, dict),
        Err(_) => Err(wrong_type(name, value, "a dict of names and values")),
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
