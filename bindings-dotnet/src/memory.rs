//! Copies of memory of this process that may not be there: code of a method that was unloaded meanwhile, say. The kernel
//! is asked, so nothing can fault. Off the handler.

/// Copies up to `into.len()` bytes from `address`; as many as are mapped.
pub(crate) fn read(address: u64, into: &mut [u8]) -> &[u8] {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    #[expect(clippy::cast_possible_truncation, reason = "x86-64 only")]
    let from = std::ptr::without_provenance_mut(address as usize);
    let remote = libc::iovec { iov_base: from, iov_len: into.len() };
    // SAFETY: takes nothing and cannot fail.
    let pid = unsafe { libc::getpid() };
    // SAFETY: both are one valid iovec; the kernel checks what the remote one names.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    &into[..usize::try_from(read).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_reads_as_nothing() {
        let mut copy = [0; 4];
        assert_eq!(read(b"code".as_ptr() as u64, &mut copy), b"code");
        assert_eq!(read(8, &mut copy), b"");
    }
}
