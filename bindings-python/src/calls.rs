//! Calls into the interpreter that may run Python code, and so may never return.
//!
//! Up to 3.13 the interpreter ends a daemon thread that asks for the GIL while it finalises by `pthread_exit`, which unwinds
//! the thread's C stack. Rust must not be unwound like that: the process would be aborted. A thread asks for the GIL in
//! Python code, and such code may run in more calls than seem to: attributes may be properties, and in 3.10 and 3.11 every
//! allocation of an object that the collector looks at may collect, and so run destructors and `gc.callbacks`.
//!
//! So these calls may unwind (`C-unwind`), and where one does, the thread stays here for ever, as every such thread does
//! from 3.14 on. What pyo3 calls by itself has no such guard: this module's functions take its place wherever threads that
//! live to the end come by, which is in all that follows spans and tags. What pyo3 makes, objects of our classes (the
//! collector looks at each) and exceptions, it makes while there are no collections: [`uncollected`].

use std::ffi::c_int;
use std::hint::black_box;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

unsafe extern "C-unwind" {
    fn PyObject_GetAttr(object: *mut PyObject, name: *mut PyObject) -> *mut PyObject;
    fn PyObject_SetAttr(object: *mut PyObject, name: *mut PyObject, value: *mut PyObject) -> c_int;
    fn PyObject_GetItem(object: *mut PyObject, key: *mut PyObject) -> *mut PyObject;
    fn PyObject_CallFunctionObjArgs(callable: *mut PyObject, ...) -> *mut PyObject;
    fn PyObject_Str(object: *mut PyObject) -> *mut PyObject;
    fn PyObject_Repr(object: *mut PyObject) -> *mut PyObject;
    fn PyDict_New() -> *mut PyObject;
    fn Py_DecRef(object: *mut PyObject);
    fn PyErr_NormalizeException(class: *mut *mut PyObject, value: *mut *mut PyObject, trace: *mut *mut PyObject);
}

/// Keeps the thread, where the interpreter would unwind its stack.
#[derive(Debug)]
struct Hang;

impl Drop for Hang {
    #[cold]
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// Calls what may be unwound, which then never returns.
#[inline]
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> T {
    let guard = Hang;
    let result = call();
    let _returned = ManuallyDrop::new(guard);
    result
}

/// Puts collections back as they were.
#[derive(Debug)]
struct Collections {
    were_on: bool,
}

impl Drop for Collections {
    fn drop(&mut self) {
        if self.were_on {
            // SAFETY: the GIL is held, as `uncollected` asks.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// Runs `make`, which makes objects and runs no Python code, without a collection. The GIL stays held, so nobody sees that
/// they were off. Some nanoseconds.
#[inline]
pub(crate) fn uncollected<T>(_py: Python<'_>, make: impl FnOnce() -> T) -> T {
    // SAFETY: the GIL is held.
    let _collections = Collections { were_on: unsafe { ffi::PyGC_Disable() } != 0 };
    make()
}

/// The same, where allocations collect: up to 3.11. For functions of the interpreter that are not made for a collection in their midst.
#[inline]
pub(crate) fn uninterrupted<T>(py: Python<'_>, call: impl FnOnce() -> T) -> T {
    if allocations_collect(py) { uncollected(py, call) } else { call() }
}

#[inline]
fn allocations_collect(py: Python<'_>) -> bool {
    static COLLECT: OnceLock<bool> = OnceLock::new();
    *COLLECT.get_or_init(|| py.version_info() < (3, 12))
}

/// Gives up a reference, which may be the last one.
pub(crate) fn drop_reference(object: Option<Bound<'_, PyAny>>) {
    if let Some(object) = object {
        let object = object.into_ptr();
        // SAFETY: a reference that was ours, and the GIL is held.
        guarded(|| unsafe { hidden(Py_DecRef as unsafe extern "C-unwind" fn(*mut PyObject))(object) });
    }
}

/// The exception that is set.
#[cold]
pub(crate) fn raised(py: Python<'_>) -> PyErr {
    make_raised();
    uncollected(py, || PyErr::fetch(py))
}

/// Makes the exception that is set where it is only named yet: up to 3.11, by C code, or by `PyThreadState_SetAsyncExc`. Its class
/// may be the program's, whose `__init__` is Python code.
fn make_raised() {
    type Function = unsafe extern "C-unwind" fn(*mut *mut PyObject, *mut *mut PyObject, *mut *mut PyObject);
    let normalize: Function = hidden(PyErr_NormalizeException);
    let (mut class, mut value, mut trace) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: places of ours, and the GIL is held.
    unsafe { ffi::PyErr_Fetch(&raw mut class, &raw mut value, &raw mut trace) };
    // SAFETY: what was fetched, which stays ours, and the GIL is held.
    guarded(|| unsafe { normalize(&raw mut class, &raw mut value, &raw mut trace) });
    // SAFETY: what was fetched, given back.
    unsafe { ffi::PyErr_Restore(class, value, trace) };
}

/// A new reference; null: the exception that is set.
///
/// # Safety
/// As [`Bound::from_owned_ptr`], or null with an exception set.
#[inline]
pub(crate) unsafe fn owned(py: Python<'_>, object: *mut PyObject) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the caller's promise.
    unsafe { Bound::from_owned_ptr_or_opt(py, object) }.ok_or_else(|| raised(py))
}

type OneArgument = unsafe extern "C-unwind" fn(*mut PyObject) -> *mut PyObject;
type TwoArguments = unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject) -> *mut PyObject;

/// Functions that pyo3 declares too, as ones that never unwind, which the compiler would then take for granted of its one
/// declaration. So it is not to see which function is called.
#[inline]
fn hidden<F>(function: F) -> F {
    black_box(function)
}

fn call_one<'py>(function: OneArgument, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let function = hidden(function);
    // SAFETY: an object, and the GIL is held.
    let result = guarded(|| unsafe { function(object.as_ptr()) });
    // SAFETY: a new reference, or null with an exception set.
    unsafe { owned(object.py(), result) }
}

/// `object.name`.
#[inline]
pub(crate) fn get_attr<'py>(object: &Bound<'py, PyAny>, name: &Py<PyString>) -> PyResult<Bound<'py, PyAny>> {
    let function: TwoArguments = hidden(PyObject_GetAttr);
    // SAFETY: two objects, and the GIL is held.
    let value = guarded(|| unsafe { function(object.as_ptr(), name.as_ptr()) });
    // SAFETY: a new reference, or null with an exception set.
    unsafe { owned(object.py(), value) }
}

/// `object.name`, `None` where there is none or it cannot be had.
#[inline]
pub(crate) fn find_attr<'py>(object: &Bound<'py, PyAny>, name: &Py<PyString>) -> Option<Bound<'py, PyAny>> {
    find(PyObject_GetAttr, object, name.as_ptr())
}

/// `object[key]`, `None` where there is none or it cannot be had.
pub(crate) fn find_item<'py>(object: &Bound<'py, PyAny>, key: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    find(PyObject_GetItem, object, key.as_ptr())
}

#[inline]
fn find<'py>(function: TwoArguments, object: &Bound<'py, PyAny>, of: *mut PyObject) -> Option<Bound<'py, PyAny>> {
    let function = hidden(function);
    // SAFETY: two objects, and the GIL is held.
    let value = guarded(|| unsafe { function(object.as_ptr(), of) });
    if value.is_null() {
        // SAFETY: the GIL is held.
        unsafe { ffi::PyErr_Clear() };
        return None;
    }
    // SAFETY: a new reference.
    Some(unsafe { Bound::from_owned_ptr(object.py(), value) })
}

/// `object.name = value`.
#[inline]
pub(crate) fn set_attr(object: &Bound<'_, PyAny>, name: &Py<PyString>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    type Function = unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> c_int;
    let function: Function = hidden(PyObject_SetAttr);
    // SAFETY: three objects, and the GIL is held.
    if guarded(|| unsafe { function(object.as_ptr(), name.as_ptr(), value.as_ptr()) }) < 0 {
        return Err(raised(object.py()));
    }
    Ok(())
}

/// `function(argument)`.
pub(crate) fn call<'py>(function: &Bound<'py, PyAny>, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    type Function = unsafe extern "C-unwind" fn(*mut PyObject, ...) -> *mut PyObject;
    let call: Function = hidden(PyObject_CallFunctionObjArgs);
    let end = ptr::null_mut::<PyObject>();
    // SAFETY: objects, ended by null, and the GIL is held.
    let result = guarded(|| unsafe { call(function.as_ptr(), argument.as_ptr(), end) });
    // SAFETY: a new reference, or null with an exception set.
    unsafe { owned(function.py(), result) }
}

/// `str(object)`.
pub(crate) fn text(object: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(call_one(PyObject_Str, object)?.cast::<PyString>()?.to_string_lossy().into_owned())
}

/// `repr(object)`.
pub(crate) fn representation(object: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(call_one(PyObject_Repr, object)?.cast::<PyString>()?.to_string_lossy().into_owned())
}

/// `{}`.
pub(crate) fn dict(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let function: unsafe extern "C-unwind" fn() -> *mut PyObject = hidden(PyDict_New);
    // SAFETY: the GIL is held.
    let made = guarded(|| unsafe { function() });
    // SAFETY: a new reference, or null with an exception set.
    let made = unsafe { owned(py, made) }?;
    Ok(made.cast_into::<PyDict>()?)
}
