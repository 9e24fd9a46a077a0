//! Words of static TLS (initial-exec) of this library's own: a load or two, where the first touch of an ordinary thread-local may allocate.

/// A word that is zero in every thread until that thread sets it: `$get() -> u64` is async-signal-safe, `$set(u64)` too.
/// The symbol is hidden: it is this library's own, in whatever object.
macro_rules! static_tls_word {
    ($(#[$doc:meta])* $symbol:literal, $get:ident, $set:ident) => {
        ::std::arch::global_asm!(
            concat!(".pushsection .tbss.", $symbol, ",\"awT\",@nobits"),
            ".p2align 3",
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ", @object"),
            concat!(".size ", $symbol, ", 8"),
            concat!($symbol, ":"),
            ".zero 8",
            ".popsection",
        );

        $(#[$doc])*
        #[inline]
        fn $get() -> u64 {
            let word: u64;
            // SAFETY: static TLS is mapped for every thread as long as it runs, and the word is ours.
            unsafe {
                ::std::arch::asm!(
                    concat!("mov {word}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    "mov {word}, qword ptr fs:[{word}]",
                    word = out(reg) word,
                    options(nostack, preserves_flags, readonly),
                );
            }
            word
        }

        fn $set(word: u64) {
            // SAFETY: as above; the word is this thread's alone.
            unsafe {
                ::std::arch::asm!(
                    concat!("mov {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    "mov qword ptr fs:[{at}], {word}",
                    at = out(reg) _,
                    word = in(reg) word,
                    options(nostack, preserves_flags),
                );
            }
        }
    };
}

pub(crate) use static_tls_word;
