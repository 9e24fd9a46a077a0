//! Words of each thread in static TLS (initial-exec), 0 at first: a load or two, where the first touch of an ordinary thread-local may
//! allocate.

use std::arch::{asm, global_asm};

// Hidden: they are this library's own, in whatever object.
global_asm!(
    ".pushsection .tbss.spanprof_own_words,\"awT\",@nobits",
    ".p2align 3",
    ".globl spanprof_own_words",
    ".hidden spanprof_own_words",
    ".type spanprof_own_words, @object",
    ".size spanprof_own_words, 16",
    "spanprof_own_words:",
    ".zero 16",
    ".popsection",
);

/// The word at this offset, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<const OFFSET: usize>(());

/// The address of the thread's block, of which `span/record.rs` says more.
pub(crate) const BLOCK: Word<0> = Word(());
/// The lowest address of the thread's stack.
pub(crate) const STACK: Word<8> = Word(());

impl<const OFFSET: usize> Word<OFFSET> {
    /// The calling thread's. Async-signal-safe: two loads.
    #[inline]
    pub(crate) fn get(self) -> u64 {
        let word: u64;
        // SAFETY: static TLS is mapped for every thread as long as it runs, and the word is ours.
        unsafe {
            asm!(
                "mov {word}, qword ptr [rip + spanprof_own_words@GOTTPOFF]",
                "mov {word}, qword ptr fs:[{word} + {offset}]",
                word = out(reg) word,
                offset = const OFFSET,
                options(nostack, preserves_flags, readonly),
            );
        }
        word
    }

    pub(crate) fn set(self, word: u64) {
        // SAFETY: as in `get`; the word is this thread's alone.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + spanprof_own_words@GOTTPOFF]",
                "mov qword ptr fs:[{at} + {offset}], {word}",
                at = out(reg) _,
                word = in(reg) word,
                offset = const OFFSET,
                options(nostack, preserves_flags),
            );
        }
    }
}
