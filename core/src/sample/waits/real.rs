//! Where libc's functions are.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use super::wrappers::Address;

const RTLD_DI_LINKMAP: c_int = 2;

unsafe extern "C" {
    fn dlinfo(handle: *mut c_void, request: c_int, info: *mut c_void) -> c_int;
}

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

/// The beginning of `struct link_map`: what ld.so knows of a module.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const c_void,
}

/// Where the program's executable is loaded. The list of modules is not asked for, which somebody may hold for ever.
pub(super) fn executable() -> Address {
    // SAFETY: the program itself, which is always loaded.
    let program = unsafe { libc::dlopen(ptr::null(), libc::RTLD_LAZY) };
    let mut map: *const LinkMap = ptr::null();
    // SAFETY: an open handle, and a place for what is asked for.
    let is_found = !program.is_null() && unsafe { dlinfo(program, RTLD_DI_LINKMAP, (&raw mut map).cast()) } == 0;
    // SAFETY: null, or what ld.so knows of the executable, which stays.
    let map = if is_found { unsafe { map.as_ref() } } else { None };
    let found = map.map_or(ptr::null(), |map| module_of(map.dynamic));
    if !program.is_null() {
        // SAFETY: opened above.
        unsafe { libc::dlclose(program) };
    }
    found
}

/// Where the module is loaded that this address is in.
fn module_of(address: Address) -> Address {
    // SAFETY: plain bits.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for.
    unsafe { libc::dladdr(address, &raw mut info) };
    info.dli_fbase
}

/// The address of a function of libc as modules see it, null if there is none. In an executable that is not position-independent a
/// function may have the address of that executable's own stub, which leads back to the slot that we change: then libc is asked.
pub(super) fn address_of(name: &CStr, executable: Address) -> Address {
    // SAFETY: a string; any module may be asked at any time.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() || module_of(address) != executable {
        return address;
    }
    let found = of_libc(|handle| {
        // SAFETY: a handle that is open, and a string.
        let address: Address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!address.is_null() && module_of(address) != executable).then_some(address)
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
