//! The clock that the kernel puts into each process (vDSO): a program may have preloaded another `clock_gettime`, which waits for a file or
//! lets CPU time begin before it was burnt (libfaketime).

use super::elf::{Module, Name, word};
use crate::os::clock;

#[cfg(target_arch = "x86_64")]
const NAME: &std::ffi::CStr = c"__vdso_clock_gettime";
#[cfg(not(target_arch = "x86_64"))]
const NAME: &std::ffi::CStr = c"__kernel_clock_gettime";

/// From now on the engine's clocks are the kernel's, where it has one in this process (valgrind takes it away).
pub(crate) fn prefer() {
    // SAFETY: may be asked at any time.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    // SAFETY: where the kernel says that its module is, or 0.
    let found = unsafe { Module::at(word(base)) }.and_then(|module| module.newest(&Name::new(NAME)));
    if let Some(address) = found {
        // SAFETY: the function has the signature of clock_gettime and stays; a signal's handler may call it, as it reads memory or makes a
        // system call.
        unsafe { clock::set_source(std::ptr::with_exposed_provenance(address)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_clock_is_found_and_says_what_libc_says() {
        let libc_s = || std::time::Instant::now();
        let (began, before) = (libc_s(), clock::monotonic_ns());
        prefer();
        assert!(clock::has_source(), "this kernel has none");
        let (after, passed) = (clock::monotonic_ns(), began.elapsed());
        assert!(
            after >= before && u128::from(after - before) <= passed.as_nanos(),
            "{before} to {after} in {passed:?}"
        );
        let own = u64::try_from(clock::own_thread_cpu().as_nanos()).unwrap();
        assert!(own > 0 && own <= clock::process_cpu_ns());
        assert_eq!(clock::thread_cpu_ns(i32::MAX - 1), None, "there is no such thread");
    }
}
