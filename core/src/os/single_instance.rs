//! Two copies of the engine in one process, such as a wheel and a gem or two versions of a wheel: the first one samples,
//! the second says why it does not. Both would be right, and every thread would pay twice.
//!
//! A copy that samples has mapped a page of an empty memory file whose name has the process's id and that of its namespace; the
//! others find the
//! name in /proc/self/maps. Nobody ever touches the page, and a forked child has none: a process may get the id of one that its
//! parents come from.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::ptr;

use super::fork;

const PAGE: usize = 4096;

/// The right to sample this process, as long as it lives.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Null where there are no memory files.
    page: *mut libc::c_void,
    /// In which there is one.
    generation: u32,
}

// SAFETY: the page is never touched; any thread may unmap it.
unsafe impl Send for Claim {}

impl Claim {
    /// Claims the right to sample; `None` = another copy samples this process. Where memory files or /proc are not to be had,
    /// copies do not see each other.
    pub(crate) fn new() -> Option<Self> {
        // The child of process 1 in a container may be process 1 of a container of its own.
        let space = std::fs::metadata("/proc/self/ns/pid").map_or(0, |space| space.ino());
        let name = format!("spanprof-engine-{}-{space}", std::process::id());
        let claim = Self { page: map(&name).unwrap_or(ptr::null_mut()), generation: fork::generation() };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let is_alone = pages(&maps, &name).all(|page| page == claim.page.addr());
        is_alone.then_some(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.page.is_null() && self.generation == fork::generation() {
            // SAFETY: the mapping is ours and whole, and nobody refers to it.
            unsafe { libc::munmap(self.page, PAGE) };
        }
    }
}

/// Where a memory file of this name is mapped, by the text of /proc/self/maps.
fn pages(maps: &str, name: &str) -> impl Iterator<Item = usize> {
    let file = format!("/memfd:{name} (deleted)");
    maps.lines().filter_map(move |line| {
        let (start, rest) = line.split_once('-')?;
        rest.ends_with(&file).then(|| usize::from_str_radix(start, 16).ok())?
    })
}

fn map(name: &str) -> io::Result<*mut libc::c_void> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: a C string and a known flag.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // The file stays empty: making it longer than RLIMIT_FSIZE allows would end the process.
    // SAFETY: a new mapping, which nothing else refers to and nobody touches.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, libc::PROT_NONE, libc::MAP_PRIVATE, file, 0) };
    let error = io::Error::last_os_error();
    // SAFETY: ours, and closed once; the mapping keeps what it needs.
    unsafe { libc::close(file) };
    if page == libc::MAP_FAILED {
        return Err(error);
    }
    // Where that is not to be had, a child inherits it, as it did before.
    // SAFETY: our own mapping, of which only what fork does changes.
    unsafe { libc::madvise(page, PAGE, libc::MADV_DONTFORK) };
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_process_s_engines_count() {
        let maps = "\
7f01a0000000-7f01a0001000 ---p 00000000 00:01 2051   /memfd:spanprof-engine-12 (deleted)
7f01a0002000-7f01a0003000 ---p 00000000 00:01 2051   /memfd:spanprof-engine-1 (deleted)
7f01a0004000-7f01a0005000 rw-p 00000000 00:01 2052   /memfd:other (deleted)
7f01a0006000-7f01a0007000 rw-p 00000000 08:01 2053   /tmp/spanprof-engine-12
broken";
        assert_eq!(pages(maps, "spanprof-engine-12").collect::<Vec<_>>(), [0x7f01_a000_0000]);
    }

    #[test]
    fn a_claim_can_be_made_again_once_the_first_is_gone() {
        let first = Claim::new().unwrap();
        assert!(Claim::new().is_none());
        drop(first);
        assert!(Claim::new().is_some());
    }
}
