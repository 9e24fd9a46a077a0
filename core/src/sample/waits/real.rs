//! Where libc's functions are.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr;

use libc::dl_phdr_info;

use super::elf::Module;
use super::wrappers::Address;

/// The range of the program's executable.
pub(super) fn executable() -> Range<usize> {
    unsafe extern "C" fn first(info: *mut dl_phdr_info, _: usize, range: *mut c_void) -> c_int {
        // SAFETY: valid for the call.
        let info = unsafe { &*info };
        // SAFETY: the first module is the executable, which stays.
        if let Some(module) = unsafe { Module::read(info) } {
            // SAFETY: what is passed below.
            unsafe { *range.cast() = module.range };
        }
        1
    }
    let mut range = 0..0;
    // SAFETY: as for looks for modules.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut range).cast()) };
    range
}

/// The address of a function of libc as modules see it, null if there is none. In an executable that is not position-independent a
/// function may have the address of that executable's own stub, which leads back to the slot that we change: then libc is asked.
pub(super) fn address_of(name: &CStr, executable: &Range<usize>) -> Address {
    // SAFETY: a string; any module may be asked at any time.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !executable.contains(&address.addr()) {
        return address;
    }
    for library in [c"libpthread.so.0", c"libc.so.6"] {
        // SAFETY: a string; what is not loaded is not loaded by this.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            continue;
        }
        // SAFETY: a handle that is open.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        // SAFETY: as above; libc stays.
        unsafe { libc::dlclose(handle) };
        if !address.is_null() && !executable.contains(&address.addr()) {
            return address;
        }
    }
    ptr::null()
}
