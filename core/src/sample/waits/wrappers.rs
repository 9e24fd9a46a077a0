//! The wrappers of `calls.c`, as Rust sees them. On other processors than x86-64 there are none.

use std::ffi::{CStr, c_void};

use super::block::{Block, Call};

/// An address of code.
pub(super) type Address = *const c_void;
/// What a wrapper calls: of a call that took its time, at the unlocking of a mutex at which a wait is pending, and when a module
/// was opened. A handler of the program's that comes within the first two may end the thread, which unwinds them.
pub(super) type OnWait = extern "C-unwind" fn(*mut Block, *const Call);
pub(super) type OnUnlock = extern "C-unwind" fn(*mut Block);
pub(super) type OnModule = extern "C" fn();

#[cfg(target_arch = "x86_64")]
mod native {
    use std::ffi::{c_char, c_int};

    use super::{Address, Block, OnModule, OnUnlock, OnWait};

    unsafe extern "C" {
        /// Functions with a wrapper, then those that are only called.
        pub(super) static spanprof_waits_names: [*const c_char; 0];
        pub(super) static spanprof_waits_wrappers: [Address; 0];
        pub(super) static spanprof_waits_wrapped: c_int;
        pub(super) static spanprof_waits_functions: c_int;
        pub(super) fn spanprof_waits_prepare(
            functions: *const Address,
            shortest_ns: u64,
            on_wait: OnWait,
            on_unlock: OnUnlock,
            on_module: OnModule,
        );
        pub(super) safe fn spanprof_waits_switch(on: c_int);
        pub(super) safe fn spanprof_waits_own() -> *mut Block;
    }
}

/// Functions that have a wrapper, and with those that wrappers only call.
#[cfg(target_arch = "x86_64")]
pub(super) fn counts() -> (usize, usize) {
    // SAFETY: constants.
    let (wrapped, functions) = unsafe { (native::spanprof_waits_wrapped, native::spanprof_waits_functions) };
    (usize::try_from(wrapped).unwrap_or(0), usize::try_from(functions).unwrap_or(0))
}

/// The name of a function.
#[cfg(target_arch = "x86_64")]
pub(super) fn name(function: usize) -> Option<&'static CStr> {
    if function >= counts().1 {
        return None;
    }
    let names = (&raw const native::spanprof_waits_names).cast::<*const std::ffi::c_char>();
    // SAFETY: there are so many.
    let name = unsafe { names.wrapping_add(function).read() };
    // SAFETY: a string literal.
    Some(unsafe { CStr::from_ptr(name) })
}

/// The address of a function's wrapper.
#[cfg(target_arch = "x86_64")]
pub(super) fn wrapper(function: usize) -> Option<Address> {
    if function >= counts().0 {
        return None;
    }
    let wrappers = (&raw const native::spanprof_waits_wrappers).cast::<Address>();
    // SAFETY: there are so many.
    Some(unsafe { wrappers.wrapping_add(function).read() })
}

/// Tells the wrappers where libc's functions are, once a process, before any slot has one of them.
#[cfg(target_arch = "x86_64")]
pub(super) fn prepare(
    functions: &[Address],
    shortest_ns: u64,
    on_wait: OnWait,
    on_unlock: OnUnlock,
    on_module: OnModule,
) {
    assert_eq!(functions.len(), counts().1);
    // SAFETY: as many as it reads.
    unsafe { native::spanprof_waits_prepare(functions.as_ptr(), shortest_ns, on_wait, on_unlock, on_module) };
}

/// Whether wrappers measure, or only call.
#[cfg(target_arch = "x86_64")]
pub(super) fn switch(on: bool) {
    native::spanprof_waits_switch(i32::from(on));
}

/// Nanoseconds that the calling thread waited so far, in calls that were measured. Reads a thread-local that takes no first touch.
#[inline]
pub fn waited_ns() -> u64 {
    // SAFETY: the calling thread's own block, which nobody else writes.
    own_block().map_or(0, |block| unsafe { (*block).total_ns })
}

/// The calling thread's block.
#[cfg(target_arch = "x86_64")]
pub(super) fn own_block() -> Option<*mut Block> {
    Some(native::spanprof_waits_own())
}

#[cfg(not(target_arch = "x86_64"))]
mod absent {
    use super::{Address, Block, CStr, OnModule, OnUnlock, OnWait};

    pub(in super::super) fn counts() -> (usize, usize) {
        (0, 0)
    }
    pub(in super::super) fn name(_: usize) -> Option<&'static CStr> {
        None
    }
    pub(in super::super) fn wrapper(_: usize) -> Option<Address> {
        None
    }
    pub(in super::super) fn prepare(_: &[Address], _: u64, _: OnWait, _: OnUnlock, _: OnModule) {}
    pub(in super::super) fn switch(_: bool) {}
    pub(in super::super) fn own_block() -> Option<*mut Block> {
        None
    }
}
#[cfg(not(target_arch = "x86_64"))]
pub(super) use absent::{counts, name, own_block, prepare, switch, wrapper};
