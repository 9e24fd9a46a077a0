//! Frames that are the engine's own and no runtime's: why a sample has no stack, and what a wait called.

use std::sync::Arc;

use crate::sample::due::SEEN_LATE;
use crate::sample::frames::{Frame, FrameId};
use crate::sample::threads::Why;
use crate::sample::waits;

/// Frame ids from here on say why there is no stack. Those from [`waits::FIRST_FRAME`] on are the engine's; no runtime may use them.
const RESERVED: FrameId = u64::MAX - 15;
/// The frame of a stack that has none.
pub(super) const NO_STACK: FrameId = RESERVED;

/// The frame of expiries that no handler saw.
pub(super) fn id_of(why: Why) -> FrameId {
    RESERVED
        + match why {
            Why::Starting => 1,
            Why::Ended => 2,
            Why::Stopped => 3,
        }
}

/// What such an id means; `None`: it is the runtime's.
pub(super) fn of(id: FrameId) -> Option<Arc<Frame>> {
    if id < waits::FIRST_FRAME {
        return None;
    }
    let function = match id.checked_sub(RESERVED) {
        _ if id == SEEN_LATE => "(seen as the span changes)",
        Some(0) => "(no stack)",
        Some(1) => "(thread starting)",
        Some(2) => "(thread ended)",
        Some(3) => "(profiler stopped)",
        _ => waits::function_of(id).unwrap_or("(unknown)"),
    };
    Some(Arc::new(Frame { function: function.into(), ..Frame::default() }))
}
