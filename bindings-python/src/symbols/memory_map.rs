//! Memory that handlers use.

use std::ptr;

use spanprof_core::{Error, ErrorKind};

/// Maps zeroed memory, with its pages, so that no handler waits for one.
pub(crate) fn map_zeroed(bytes: usize) -> Result<*mut u8, Error> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: a new anonymous mapping touches nothing else.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        let cause = std::io::Error::last_os_error();
        return Err(Error::new(ErrorKind::System, format!("mapping {bytes} bytes for code objects: {cause}")));
    }
    Ok(memory.cast())
}
