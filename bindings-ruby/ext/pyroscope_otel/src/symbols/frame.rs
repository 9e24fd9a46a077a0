//! Which objects of Ruby's are frames.

use rb_sys::VALUE;

use crate::stack::frame_id::FIRST_OBJECT;

unsafe extern "C" {
    fn pyroscope_flags(object: VALUE) -> VALUE;
}

/// How Ruby marks its internal objects in their flags, and which of them are frames: ment and iseq.
const TYPE_MASK: VALUE = 0x1f;
const T_IMEMO: VALUE = 0x1a;
const IMEMO_SHIFT: u32 = 12;
const IMEMO_MASK: VALUE = 0xf;
const IMEMO_MENT: VALUE = 6;
pub(super) const IMEMO_ISEQ: VALUE = 7;

/// Whether Ruby may be asked about this: it ends the process over anything but a frame.
pub(super) fn is_frame(object: VALUE) -> bool {
    matches!(kind_of(object), Some(IMEMO_MENT | IMEMO_ISEQ))
}

/// Which of Ruby's internal objects this is, if it is one.
pub(super) fn kind_of(object: VALUE) -> Option<VALUE> {
    if object < FIRST_OBJECT << 3 {
        return None;
    }
    // SAFETY: behind the guard; 0 if there is nothing.
    let flags = unsafe { pyroscope_flags(object) };
    (flags & TYPE_MASK == T_IMEMO).then_some((flags >> IMEMO_SHIFT) & IMEMO_MASK)
}
