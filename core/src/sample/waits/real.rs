//! Where libc's functions are.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr;

use libc::dl_phdr_info;

use super::elf::Module;
use super::wrappers::Address;

/// Functions that have another name in other modules, which is the same function for files of 64 bits.
pub(super) const ALIASES: [(&CStr, &CStr); 12] = [
    (c"pread", c"pread64"),
    (c"pwrite", c"pwrite64"),
    (c"preadv", c"preadv64"),
    (c"pwritev", c"pwritev64"),
    (c"sendfile", c"sendfile64"),
    (c"open", c"open64"),
    (c"fcntl", c"fcntl64"),
    (c"lockf", c"lockf64"),
    (c"__read", c"read"),
    (c"__write", c"write"),
    (c"__poll", c"poll"),
    (c"__connect", c"connect"),
];

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
    let found = of_libc(|handle| {
        // SAFETY: a handle that is open, and a string.
        let address: Address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!address.is_null() && !executable.contains(&address.addr())).then_some(address)
    });
    found.unwrap_or(ptr::null())
}

/// The version of the first libc of this processor. Modules that name no versions mean it.
pub(super) const OLDEST: &CStr = c"GLIBC_2.2.5";

/// Whether modules that ask for the oldest version of a function do not mean this one: of what `pthread_cond_wait` waits for there were
/// two kinds, and who is given the wrong one writes where nothing is.
pub(super) fn has_older(name: &CStr, real: Address) -> bool {
    let older = of_libc(|handle| {
        // SAFETY: a handle that is open, and strings.
        let address: Address = unsafe { libc::dlvsym(handle, name.as_ptr(), OLDEST.as_ptr()) };
        (!address.is_null()).then_some(address)
    });
    older.is_some_and(|older| older != real)
}

/// What is found first in the libraries that are libc.
fn of_libc<T>(find: impl Fn(*mut c_void) -> Option<T>) -> Option<T> {
    [c"libpthread.so.0", c"libc.so.6"].into_iter().find_map(|library| {
        // SAFETY: a string; what is not loaded is not loaded by this.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        let found = find(handle);
        // SAFETY: as above; libc stays.
        unsafe { libc::dlclose(handle) };
        found
    })
}
