//! The registers of the interrupted thread, for what a function has computed and not written to memory yet.

use libc::ucontext_t;

/// General registers, which are the first ones.
#[cfg(target_arch = "x86_64")]
pub(crate) const GENERAL: usize = 16;
#[cfg(target_arch = "aarch64")]
pub(crate) const GENERAL: usize = 31;
/// With the halves of vector registers, in which compilers build pairs of words.
#[cfg(target_arch = "x86_64")]
pub(crate) const WORDS: usize = GENERAL + 2 * 16;
/// Pairs of words are stored from two general registers; no vector is needed.
#[cfg(target_arch = "aarch64")]
pub(crate) const WORDS: usize = GENERAL;

/// The registers' values, 0 for those that the kernel did not save.
///
/// # Safety
/// `ucontext` must be the third argument of the running signal handler.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn words(ucontext: *const ucontext_t) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let (general, halves) = words.split_at_mut(GENERAL);
    // SAFETY: the kernel passes a valid ucontext.
    let machine = unsafe { &(*ucontext).uc_mcontext };
    // Those that `gregs` has first are the general ones.
    for (word, register) in general.iter_mut().zip(machine.gregs) {
        *word = register.cast_unsigned();
    }
    // SAFETY: null, or where the kernel saved them.
    if let Some(vectors) = unsafe { machine.fpregs.as_ref() } {
        let elements = vectors._xmm.iter().flat_map(|register| register.element.as_chunks().0);
        for (word, &[low, high]) in halves.iter_mut().zip(elements) {
            *word = u64::from(low) | (u64::from(high) << 32);
        }
    }
    words
}

/// The registers' values.
///
/// # Safety
/// `ucontext` must be the third argument of the running signal handler.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn words(ucontext: *const ucontext_t) -> [u64; WORDS] {
    // SAFETY: the kernel passes a valid ucontext.
    unsafe { (*ucontext).uc_mcontext.regs }
}

/// The stack pointer.
///
/// # Safety
/// `ucontext` must be the third argument of the running signal handler.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::cast_possible_truncation, reason = "an address")]
pub(crate) unsafe fn stack_pointer(ucontext: *const ucontext_t) -> usize {
    // SAFETY: the kernel passes a valid ucontext.
    let machine = unsafe { &(*ucontext).uc_mcontext };
    machine.gregs[libc::REG_RSP as usize].cast_unsigned() as usize
}

/// The stack pointer.
///
/// # Safety
/// `ucontext` must be the third argument of the running signal handler.
#[cfg(target_arch = "aarch64")]
#[expect(clippy::cast_possible_truncation, reason = "an address")]
pub(crate) unsafe fn stack_pointer(ucontext: *const ucontext_t) -> usize {
    // SAFETY: the kernel passes a valid ucontext.
    unsafe { (*ucontext).uc_mcontext.sp as usize }
}
