//! The postponed job that drains, from Ruby 3.3 on.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use crate::drain::rings::drain;
use crate::errors::quietly;

/// Of our job; `None`: Ruby's table is full, and the parked thread reads rings alone.
static HANDLE: OnceLock<Option<c_uint>> = OnceLock::new();

pub(super) fn init() {
    // SAFETY: a function that stays; called with the GVL held.
    let handle = unsafe { rb_sys::rb_postponed_job_preregister(0, Some(run), ptr::null_mut()) };
    HANDLE.get_or_init(|| (handle != c_uint::MAX).then_some(handle));
}

/// Whether a job will come.
pub(super) fn trigger() -> bool {
    let Some(Some(handle)) = HANDLE.get() else { return false };
    // SAFETY: may be called from any thread, also without the GVL.
    unsafe { rb_sys::rb_postponed_job_trigger(*handle) };
    true
}

unsafe extern "C" fn run(_: *mut c_void) {
    quietly(drain);
}
