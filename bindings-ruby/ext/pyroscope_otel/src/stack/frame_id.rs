//! What a word of a stack holds: a frame, which is an object of Ruby's (`VALUE`), and its line; or a reason why there is none.
//!
//! The object may be freed or moved: see [`marking`](crate::symbols::marking).

use rb_sys::VALUE;

/// Words that stand for no object: no object has so low an address.
pub(crate) const COLLECTING_WORD: u64 = 1;
pub(crate) const NATIVE_WORD: u64 = 2;
pub(crate) const NO_RUBY_FRAME_WORD: u64 = 3;
pub(crate) const UNREADABLE_WORD: u64 = 4;
/// The first word that does.
pub(crate) const FIRST_OBJECT_WORD: u64 = 512;

/// A word is an object's address, of which the lowest three bits are 0, and above it the line.
pub(super) const ADDRESS_BITS: u32 = 45;
/// Higher lines are not told, and no word is one of the engine's own.
pub(super) const MAX_LINE: u64 = (1 << (u64::BITS - ADDRESS_BITS)) - 2;

/// Which object a word stands for.
pub(crate) fn object_of(word: u64) -> VALUE {
    (word & ((1 << ADDRESS_BITS) - 1)) << 3
}

/// The line in a word, 0 if it is not known.
pub(crate) fn line_of(word: u64) -> u32 {
    (word >> ADDRESS_BITS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_address_and_line_apart() {
        let object: VALUE = 0x7fff_ffff_fff8;
        let word = object >> 3 | MAX_LINE << ADDRESS_BITS;
        assert_eq!((object_of(word), u64::from(line_of(word))), (object, MAX_LINE));
        assert!(word < u64::MAX - 16, "the engine's own words");
    }
}
