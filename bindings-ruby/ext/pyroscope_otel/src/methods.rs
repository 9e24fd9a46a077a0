//! Methods that Ruby calls without magnus.

use std::ffi::{CStr, c_int};

use magnus::RModule;
use magnus::rb_sys::AsRawValue;
use rb_sys::VALUE;

pub(crate) type Method = unsafe extern "C" fn(c_int, *const VALUE, VALUE) -> VALUE;

/// Defines a method without magnus' conversions, which would cost more than these do.
pub(crate) fn define(module: RModule, name: &CStr, method: Method) {
    // SAFETY: Ruby calls a method of arity -1 with these three arguments.
    let method = unsafe { std::mem::transmute::<Method, unsafe extern "C" fn() -> VALUE>(method) };
    // SAFETY: a module, and a name that ends with NUL.
    unsafe { rb_sys::rb_define_method(module.as_raw(), name.as_ptr(), Some(method), -1) };
}
