//! The part of the running thread's stack that may be read.
//!
//! A thread may run on memory that is not its stack (coroutines of a native library), with a page that may not be read right above. So what
//! is read lies between the stack pointer and the end of a stack that is known: the thread's own, of which it notes once where it begins
//! ([`note`]), that of signals, and the main thread's. Of a thread that noted nothing, as it runs no managed code, the kernel is asked.
//!
//! **Functions called in the handler:** `getpid` and `process_vm_readv`, system calls and no more.

use std::arch::asm;
use std::mem;
use std::ptr;

use crate::stack::{modules, static_tls};

/// A stack pointer that is farther below is on some other stack.
const MAX_THREAD: u64 = 16 << 20;
const MAX_MAIN: u64 = 64 << 20;
const PAGE_SIZE: usize = 4096;
const PAGE: u64 = PAGE_SIZE as u64;
/// Pages that the kernel is asked for by one system call, and such calls.
const AT_ONCE: usize = 32;
const MAX_ASKED: usize = 8;

/// Notes where the calling thread's stack begins. Again: nothing. The first time about 2 µs, and it allocates: never from a signal handler.
pub(crate) fn note() {
    // SAFETY: plain bits.
    let mut attributes: libc::pthread_attr_t = unsafe { mem::zeroed() };
    // Of the main thread glibc would read all mappings to tell.
    if static_tls::STACK.get() != 0 || is_on_main((&raw const attributes) as u64) {
        return;
    }
    // SAFETY: takes nothing and cannot fail.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: a thread that runs; destroyed below.
    if unsafe { libc::pthread_getattr_np(own, &raw mut attributes) } != 0 {
        return;
    }
    let (mut start, mut size) = (ptr::null_mut(), 0);
    // SAFETY: they were just filled.
    let result = unsafe { libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut size) };
    // SAFETY: as before, and not used again.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    if result == 0 {
        static_tls::STACK.set(start as u64);
    }
}

/// Whether that is on the main thread's stack, which has nothing mapped closely below it: the kernel keeps a gap.
#[inline]
fn is_on_main(sp: u64) -> bool {
    let end = modules::main_stack_end();
    sp < end && end - sp < MAX_MAIN
}

/// Where fs points: the calling thread's control block. Async-signal-safe.
#[inline]
pub(crate) fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: the first word of a thread's control block is its own address, by the ABI.
    unsafe { asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly)) };
    pointer
}

/// From the stack pointer to the end of the stack that it is on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl Stack {
    /// Nothing if it is not known which stack that is. `alternate`: start and size of the thread's signal stack.
    #[inline]
    pub(crate) fn of(sp: u64, alternate: (u64, u64)) -> Self {
        let (start, size) = alternate;
        if start != 0 && sp >= start && sp < start.saturating_add(size) {
            return Self { low: sp, high: start + size };
        }
        if is_on_main(sp) {
            return Self { low: sp, high: modules::main_stack_end() };
        }
        // glibc puts a thread's control block, which fs points to, at the upper end of its stack, in the same mapping.
        let thread = thread_pointer();
        if sp < thread {
            let high = match static_tls::STACK.get() {
                0 if thread - sp < MAX_THREAD => readable_end(sp, thread),
                lowest if lowest != 0 && lowest <= sp => thread,
                _ => sp,
            };
            return Self { low: sp, high };
        }
        Self { low: sp, high: sp }
    }

    /// The word at `address`, if that is within.
    #[inline]
    pub(crate) fn load(&self, address: u64) -> Option<u64> {
        if address < self.low || address & 7 != 0 || address >= self.high || self.high - address < 8 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "x86-64 only")]
        let address = address as usize;
        // SAFETY: between the stack pointer and the end of a stack that it is on, which is mapped.
        Some(unsafe { ptr::with_exposed_provenance::<u64>(address).read() })
    }
}

/// Up to where all pages from `from` to `to` can be read, of those that are asked for.
#[cold]
fn readable_end(from: u64, to: u64) -> u64 {
    let mut at = from & !(PAGE - 1);
    let mut copies = [0_u8; AT_ONCE];
    // SAFETY: takes nothing and cannot fail.
    let pid = unsafe { libc::getpid() };
    for _ in 0..MAX_ASKED {
        let mut remote = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 1 }; AT_ONCE];
        let asked = usize::try_from(to.saturating_sub(at).div_ceil(PAGE)).map_or(AT_ONCE, |pages| pages.min(AT_ONCE));
        for (page, place) in (at..).step_by(PAGE_SIZE).zip(&mut remote[..asked]) {
            #[expect(clippy::cast_possible_truncation, reason = "x86-64 only")]
            let page = page as usize;
            place.iov_base = ptr::without_provenance_mut(page);
        }
        let local = libc::iovec { iov_base: copies.as_mut_ptr().cast(), iov_len: asked };
        // SAFETY: valid iovecs; the kernel checks what the remote ones name.
        let read =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), asked as libc::c_ulong, 0) };
        let read = usize::try_from(read).unwrap_or(0);
        at += PAGE * read as u64;
        if read < AT_ONCE {
            break;
        }
    }
    at.clamp(from, to)
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    /// The address of a page of its own, below the calling thread's stack, with another one above that may not be read.
    fn page_below_the_stack() -> u64 {
        let size = 2 * PAGE_SIZE;
        let own = usize::try_from(thread_pointer() & !(PAGE - 1)).unwrap();
        for below in 1..4_000 {
            let hint = ptr::with_exposed_provenance_mut::<c_void>(own - below * PAGE_SIZE);
            let (may, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            );
            // SAFETY: takes only what is free.
            let start = unsafe { libc::mmap(hint, size, may, flags, -1, 0) };
            if start != libc::MAP_FAILED {
                // SAFETY: the second page of what was just mapped.
                let second = unsafe { start.add(PAGE_SIZE) };
                // SAFETY: as above.
                assert_eq!(unsafe { libc::mprotect(second, PAGE_SIZE, libc::PROT_NONE) }, 0);
                return start as u64;
            }
        }
        panic!("nothing is free below the stack");
    }

    #[test]
    fn nothing_is_read_beyond_a_stack_that_is_not_the_threads() {
        let read = |notes: bool| {
            let run = move || {
                if notes {
                    note();
                    assert!(static_tls::STACK.get() != 0, "it is known");
                }
                let own = Stack::of((&raw const notes) as u64 & !7, (0, 0));
                let page = page_below_the_stack();
                let other = Stack::of(page + 64, (0, 0));
                (own.high == thread_pointer(), other.high - page)
            };
            // Not the main thread, of whose stack the end may not be known.
            std::thread::spawn(run).join().unwrap()
        };
        assert_eq!(read(true), (true, 64), "a thread that noted its stack is on no other one");
        assert_eq!(read(false), (true, PAGE), "of one that did not, what can be read");
    }
}
