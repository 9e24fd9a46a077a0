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

/// Copies what lies at each of at most 64 addresses, by few system calls. The bits of those of which the first word is mapped.
pub(crate) fn read_each<const N: usize>(addresses: &[u64], into: &mut [[u64; N]]) -> u64 {
    let size = size_of::<[u64; N]>();
    let (mut there, mut at) = (0, 0);
    let count = addresses.len().min(into.len()).min(64);
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: size }; 64];
    for (place, address) in remote.iter_mut().zip(addresses) {
        #[expect(clippy::cast_possible_truncation, reason = "x86-64 only")]
        let from = std::ptr::without_provenance_mut(*address as usize);
        place.iov_base = from;
    }
    // SAFETY: takes nothing and cannot fail.
    let pid = unsafe { libc::getpid() };
    while at < count {
        let rest = &mut into[at..count];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: size_of_val(rest) };
        let (from, many) = (remote[at..count].as_ptr(), rest.len() as libc::c_ulong);
        // SAFETY: valid iovecs; the kernel checks what the remote ones name.
        let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, from, many, 0) };
        let read = usize::try_from(read).unwrap_or(0);
        let whole = read / size;
        (at..at + whole).for_each(|place| there |= 1 << place);
        at += whole;
        if at < count {
            // It ends where something is not mapped.
            there |= u64::from(read % size >= 8) << at;
            at += 1;
        }
    }
    there
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_that_is_mapped_is_read() {
        let words = [1_u64, 2, 3];
        let at = |place: usize| (&raw const words[place]) as u64;
        let mut copies = [[0_u64; 2]; 4];
        assert_eq!(read_each(&[at(0), 8, at(1), 16], &mut copies), 0b101);
        assert_eq!([copies[0], copies[2]], [[1, 2], [2, 3]]);
        assert_eq!(read_each(&[], &mut copies), 0);
    }

    #[test]
    fn what_is_not_mapped_reads_as_nothing() {
        let mut copy = [0; 4];
        assert_eq!(read(b"code".as_ptr() as u64, &mut copy), b"code");
        assert_eq!(read(8, &mut copy), b"");
    }
}
