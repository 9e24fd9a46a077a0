//! Where libc's functions are.

use std::ffi::CStr;
use std::ptr;

use super::wrappers::Address;
use crate::sample::elf::{Module, Name, word};

/// Functions that have another name in other modules, which is the same function for files of 64 bits.
pub(super) const ALIASES: [(&CStr, &CStr); 24] = [
    (c"pread", c"pread64"),
    (c"pwrite", c"pwrite64"),
    (c"preadv", c"preadv64"),
    (c"pwritev", c"pwritev64"),
    (c"sendfile", c"sendfile64"),
    (c"open", c"open64"),
    (c"openat", c"openat64"),
    (c"fopen", c"fopen64"),
    (c"readdir", c"readdir64"),
    (c"stat", c"stat64"),
    (c"lstat", c"lstat64"),
    (c"fstatat", c"fstatat64"),
    (c"truncate", c"truncate64"),
    (c"ftruncate", c"ftruncate64"),
    (c"fallocate", c"fallocate64"),
    (c"__xstat", c"__xstat64"),
    (c"__lxstat", c"__lxstat64"),
    (c"__fxstatat", c"__fxstatat64"),
    (c"fcntl", c"fcntl64"),
    (c"lockf", c"lockf64"),
    (c"__read", c"read"),
    (c"__write", c"write"),
    (c"__poll", c"poll"),
    (c"__connect", c"connect"),
];

/// Where the program's executable is loaded: where its headers are, as its kernel says, or ld.so that was called to run it.
pub(super) fn executable() -> Address {
    // SAFETY: may be called at any time.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) };
    module_of(ptr::with_exposed_provenance(word(headers)))
}

/// Where the module is loaded that this address is in.
fn module_of(address: Address) -> Address {
    // SAFETY: plain bits.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for.
    unsafe { libc::dladdr(address, &raw mut info) };
    info.dli_fbase
}

/// The address of a function of libc, null if there is none. What ld.so finds first may be another module's, which need not be the same
/// function at all (`remove` of a program's own lists), or, in an executable that is not position-independent, that executable's own stub,
/// which leads back to the slot that we change: then libc is asked.
pub(super) fn address_of(name: &'static CStr, executable: Address, libc: &Libc) -> Address {
    // SAFETY: a string; any module may be asked at any time.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let mut libraries = libc.iter().flatten().peekable();
    let is_libc_s = match libraries.peek() {
        Some(_) => libraries.any(|library| library.range.contains(&address.addr())),
        None => module_of(address) != executable,
    };
    if is_libc_s {
        return address;
    }
    let found = libc.iter().flatten().find_map(|library| library.newest(&Name::new(name)));
    found.map_or(ptr::null(), ptr::with_exposed_provenance)
}

/// The version of the first libc of this processor. Modules that name no versions mean it.
pub(super) const OLDEST: &CStr = c"GLIBC_2.2.5";

/// Whether modules that ask for the oldest version of a function may not mean this one: of what `pthread_cond_wait` waits for there were
/// two kinds, and who is given the wrong one writes where nothing is.
pub(super) fn has_older(name: &Name, real: Address, libc: &Libc) -> bool {
    let library = libc.iter().flatten().find(|library| library.defines(name));
    library.is_some_and(|library| library.has_other(name, real.addr()))
}

/// The libraries that are libc, that of threads first.
pub(super) type Libc = [Option<Module>; 3];

/// Functions that nobody else has: of the libraries of threads and of `dlsym`, which were ones of their own before glibc 2.34, and of libc
/// itself.
const OF_GLIBC: [[&CStr; 3]; 3] = [
    [c"pthread_sigqueue", c"pthread_attr_getaffinity_np", c"pthread_yield"],
    [c"dladdr1", c"dlmopen", c"dlvsym"],
    [c"gnu_get_libc_version", c"gnu_get_libc_release", c"__libc_freeres"],
];

/// Finds them without opening them again: a child that was forked while another thread of its parent's opened a module is ended by ld.so
/// for that. `None`: they hide behind stubs of the executable (see [`address_of`]). musl has none of these names, and one version of each.
pub(super) fn libc(executable: Address) -> Option<Libc> {
    let mut libc = [None, None, None];
    for (library, names) in libc.iter_mut().zip(OF_GLIBC) {
        // SAFETY: strings; any module may be asked at any time.
        let found = names.map(|name| module_of(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }));
        let mut found = found.into_iter().filter(|module| !module.is_null()).peekable();
        if found.peek().is_some() {
            let base = found.find(|module| *module != executable)?;
            // SAFETY: where a file is loaded that stays.
            *library = unsafe { Module::at(base.addr()) };
        }
    }
    Some(libc)
}

#[cfg(all(test, target_env = "gnu", target_arch = "x86_64"))]
mod tests {
    use super::super::wrappers;
    use super::*;

    #[test]
    fn the_executable_is_where_this_test_is() {
        assert_eq!(executable(), module_of(the_executable_is_where_this_test_is as Address));
    }

    #[test]
    fn names_of_one_function_have_one_address() {
        for (alias, name) in ALIASES {
            // SAFETY: strings.
            let [alias_at, at] = [alias, name].map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
            assert!(alias_at.is_null() || alias_at == at, "{alias:?} is not {name:?}");
        }
    }

    #[test]
    fn libc_s_own_tables_say_what_ld_so_says() {
        let (libc, mut older) = (libc(executable()).unwrap(), Vec::new());
        for name in (0..wrappers::counts().1).map(|function| wrappers::name(function).unwrap()) {
            // SAFETY: a string.
            let real = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            // SAFETY: strings.
            let oldest = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name.as_ptr(), OLDEST.as_ptr()) };
            let tables = libc.iter().flatten().find_map(|library| library.newest(&Name::new(name)));
            assert_eq!(tables, Some(real.addr()), "{name:?}");
            let is_older = !oldest.is_null() && oldest != real;
            assert_eq!(has_older(&Name::new(name), real, &libc), is_older, "{name:?}");
            if is_older {
                older.push(name);
            }
        }
        assert!(older.contains(&c"pthread_cond_wait"), "{older:?}");
    }
}
