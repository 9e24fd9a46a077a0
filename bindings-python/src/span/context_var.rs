//! ContextVars by their C functions.
//!
//! `PyContextVar_{New,Get,Set,Reset}` are exported by every CPython since 3.7 with these signatures, but are not in
//! the limited API, so pyo3 does not declare them for an abi3 wheel. Going through the objects' methods instead would
//! cost 100 ns a call on the path of every attach and detach. The self-test at start uses them before anything depends
//! on them, and a missing symbol fails the import with its name. They may run Python code: see [`calls`](crate::calls).
//!
//! Up to 3.11 what sets and resets a variable allocates, so it may collect, and so run destructors, while it holds the context's variables
//! without a reference: where a destructor sets one too (it opens a span) these are gone, and the process ends. So there are no
//! collections meanwhile.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;

use crate::calls::{drop_reference, guarded, owned, raised, uninterrupted};

unsafe extern "C-unwind" {
    fn PyContextVar_New(name: *const c_char, default: *mut PyObject) -> *mut PyObject;
    fn PyContextVar_Get(variable: *mut PyObject, default: *mut PyObject, value: *mut *mut PyObject) -> c_int;
    fn PyContextVar_Set(variable: *mut PyObject, value: *mut PyObject) -> *mut PyObject;
    fn PyContextVar_Reset(variable: *mut PyObject, token: *mut PyObject) -> c_int;
}

/// A `contextvars.ContextVar`.
#[derive(Debug)]
pub(crate) struct ContextVar(Py<PyAny>);

impl ContextVar {
    /// A new variable without a default.
    pub(crate) fn new(py: Python<'_>, name: &str) -> PyResult<Self> {
        let name = CString::new(name)?;
        // SAFETY: a C string, and null for "no default".
        let variable = unsafe { PyContextVar_New(name.as_ptr(), ptr::null_mut()) };
        // SAFETY: a new reference, or null with an exception set.
        Ok(Self(unsafe { Bound::from_owned_ptr_or_err(py, variable) }?.unbind()))
    }

    /// `object`, if it is a ContextVar.
    pub(crate) fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let class = object.py().import("contextvars")?.getattr("ContextVar")?;
        Ok(object.get_type().is(&class).then(|| Self(object.clone().unbind())))
    }

    pub(crate) fn as_object(&self) -> &Py<PyAny> {
        &self.0
    }

    /// The value in the current context, else the variable's default, else `None`.
    #[inline]
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut value = ptr::null_mut();
        // SAFETY: `self.0` is a ContextVar, and `value` takes a new reference or null.
        if guarded(|| unsafe { PyContextVar_Get(self.0.as_ptr(), ptr::null_mut(), &raw mut value) }) < 0 {
            return Err(raised(py));
        }
        // SAFETY: a new reference, or null.
        Ok(unsafe { Bound::from_owned_ptr_or_opt(py, value) })
    }

    /// Sets the value in the current context; returns the token that undoes it.
    #[inline]
    pub(crate) fn set<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: `self.0` is a ContextVar; it takes its own reference to the value.
        let set = || guarded(|| unsafe { PyContextVar_Set(self.0.as_ptr(), value.as_ptr()) });
        let token = uninterrupted(value.py(), set);
        // SAFETY: a new reference, or null with an exception set.
        unsafe { owned(value.py(), token) }
    }

    /// Undoes the `set` that gave `token`.
    ///
    /// # Errors
    /// As `ContextVar.reset`: used twice, another variable's, another context's, or no token at all.
    #[inline]
    pub(crate) fn reset(&self, token: &Bound<'_, PyAny>) -> PyResult<()> {
        if !is_token(token)? {
            // The C function trusts its argument; the method does not.
            return Err(PyTypeError::new_err("expected an instance of contextvars.Token"));
        }
        // What it drops may run Python code, so it lives until collections are back.
        let last = self.get(token.py())?;
        // SAFETY: a ContextVar and a Token.
        let reset = || guarded(|| unsafe { PyContextVar_Reset(self.0.as_ptr(), token.as_ptr()) });
        let result = if uninterrupted(token.py(), reset) < 0 { Err(raised(token.py())) } else { Ok(()) };
        drop_reference(last);
        result
    }
}

/// `contextvars.Token`.
pub(crate) fn token_class(py: Python<'_>) -> PyResult<&Py<PyAny>> {
    static TOKEN: pyo3::sync::PyOnceLock<Py<PyAny>> = pyo3::sync::PyOnceLock::new();
    TOKEN.get_or_try_init(py, || Ok::<_, PyErr>(py.import("contextvars")?.getattr("Token")?.unbind()))
}

fn is_token(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(object.get_type().as_ptr() == token_class(object.py())?.as_ptr())
}
