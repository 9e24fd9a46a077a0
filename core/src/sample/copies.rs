//! Two copies of the engine in one process, such as a wheel and a gem or two versions of a wheel: the first one samples,
//! the second says why it does not. Both would be right, and every thread would pay twice.
//!
//! A copy that samples has mapped one page of a memory file, whose name the others find in /proc/self/maps. The mapping
//! is private, so a forked child has a page of its own, in which its parent's id stands until it starts a profiler
//! itself. The page stays mapped for ever: another copy may just be reading it.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::error::{Error, ErrorKind};

const NAME: &std::ffi::CStr = c"spanprof-engine";
const PAGE: usize = 4096;

/// This copy's page, null before its first start. It begins with the id of the process whose threads are sampled, or 0.
static OWN: AtomicPtr<AtomicI32> = AtomicPtr::new(ptr::null_mut());

/// The right to sample, given back unless it is kept.
#[derive(Debug)]
pub(crate) struct Claim(());

impl Claim {
    /// Sampling has begun: the claim stands until [`release`].
    pub(crate) fn keep(self) {
        let _ = std::mem::ManuallyDrop::new(self);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        release();
    }
}

/// Claims the right to sample this process. Where memory files or /proc are not to be had, copies do not see each other.
///
/// # Errors
/// `AlreadyRunning`: another copy samples it.
pub(crate) fn claim() -> Result<Claim, Error> {
    // SAFETY: getpid takes nothing and cannot fail.
    let pid = unsafe { libc::getpid() };
    if OWN.load(Ordering::Acquire).is_null()
        && let Ok(page) = map()
    {
        OWN.store(page, Ordering::Release);
    }
    let own = OWN.load(Ordering::Acquire);
    // SAFETY: null, or a page that stays mapped.
    if let Some(page) = unsafe { own.as_ref() } {
        page.store(pid, Ordering::SeqCst);
    }
    let claim = Claim(());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    // SAFETY: a mapping of this name was made by `map` of some copy, and stays; it begins with an atomic number.
    let sampled = |page: usize| unsafe { &*ptr::with_exposed_provenance::<AtomicI32>(page) }.load(Ordering::SeqCst);
    if pages(&maps).any(|page| page != own.addr() && sampled(page) == pid) {
        let why = "another copy of the profiler's engine samples this process already; remove one of the two packages";
        return Err(Error::new(ErrorKind::AlreadyRunning, why));
    }
    Ok(claim)
}

/// This copy samples no more.
pub(crate) fn release() {
    // SAFETY: null, or a page that stays mapped.
    if let Some(page) = unsafe { OWN.load(Ordering::Acquire).as_ref() } {
        page.store(0, Ordering::SeqCst);
    }
}

/// Where copies have their pages, by the text of /proc/self/maps.
fn pages(maps: &str) -> impl Iterator<Item = usize> {
    maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, _) = range.split_once('-')?;
        let is_ours = rest.starts_with("rw-p") && rest.trim_end().ends_with("/memfd:spanprof-engine (deleted)");
        is_ours.then(|| usize::from_str_radix(start, 16).ok())?
    })
}

fn map() -> io::Result<*mut AtomicI32> {
    // SAFETY: the name is a C string; the flags are known.
    let file = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the file is ours; PAGE fits in its offset.
    let sized = unsafe { libc::ftruncate(file, PAGE as libc::off_t) } == 0;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which nothing else refers to.
    let start = unsafe { libc::mmap(ptr::null_mut(), PAGE, access, libc::MAP_PRIVATE, file, 0) };
    // SAFETY: ours, and closed once; the mapping keeps what it needs.
    unsafe { libc::close(file) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if !sized {
        // SAFETY: the mapping is ours and whole. Without room behind it, a touch would be SIGBUS.
        unsafe { libc::munmap(start, PAGE) };
        return Err(io::Error::other("no room in a memory file"));
    }
    Ok(start.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_an_engine_are_read() {
        let maps = "\
7f01a0000000-7f01a0001000 rw-p 00000000 00:01 2051   /memfd:spanprof-engine (deleted)
7f01a0002000-7f01a0003000 r--p 00000000 00:01 2051   /memfd:spanprof-engine (deleted)
7f01a0004000-7f01a0005000 rw-p 00000000 00:01 2052   /memfd:other (deleted)
7f01a0006000-7f01a0007000 rw-p 00000000 08:01 2053   /tmp/spanprof-engine
broken";
        assert_eq!(pages(maps).collect::<Vec<_>>(), [0x7f01_a000_0000]);
    }
}
