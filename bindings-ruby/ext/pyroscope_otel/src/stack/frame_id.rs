//! What a frame id holds: a frame, which is an object of Ruby's (`VALUE`), and its line; or a reason why there is none.
//!
//! The object may be freed or moved: see [`marking`](crate::symbols::marking).

use rb_sys::VALUE;
use spanprof_core::FrameId;

/// Those that stand for no object: no object has so low an address.
pub(crate) const COLLECTING: FrameId = 1;
pub(crate) const NATIVE: FrameId = 2;
pub(crate) const NO_RUBY_FRAME: FrameId = 3;
pub(crate) const UNREADABLE: FrameId = 4;
pub(crate) const FIBER_WAITS: FrameId = 5;
/// The first one that does.
pub(crate) const FIRST_OBJECT: FrameId = 512;

/// A frame id is an object's address, of which the lowest three bits are 0, and above it the line.
pub(super) const ADDRESS_BITS: u32 = 45;
/// Higher lines are not told, and no id is one of the engine's own.
pub(super) const MAX_LINE: u64 = (1 << (u64::BITS - ADDRESS_BITS)) - 2;

/// Which object a frame id stands for.
pub(crate) fn object_of(id: FrameId) -> VALUE {
    (id & ((1 << ADDRESS_BITS) - 1)) << 3
}

/// The line in a frame id, 0 if it is not known.
pub(crate) fn line_of(id: FrameId) -> u32 {
    (id >> ADDRESS_BITS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_id_keeps_address_and_line_apart() {
        let object: VALUE = 0x7fff_ffff_fff8;
        let id = object >> 3 | MAX_LINE << ADDRESS_BITS;
        assert_eq!((object_of(id), u64::from(line_of(id))), (object, MAX_LINE));
        assert!(id < u64::MAX - 4_095, "the engine's own ids");
    }
}
