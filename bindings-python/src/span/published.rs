//! What the handler reads of spans and tags, and what this side of the library writes for it.

use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32};

use spanprof_core::SpanRecord;

/// Which time of following spans this is: a new one begins with the first span processor after there was none. 0: spans
/// are not followed, as contexts keep their last value.
pub(crate) static PROCESSOR_EPOCH: AtomicU32 = AtomicU32::new(0);

/// Whether any tags were ever set, so that programs without tags do not pay for looking.
pub(crate) static TAGS_USED: AtomicBool = AtomicBool::new(false);

/// A span as the handler reads it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PublishedSpan {
    pub(crate) record: SpanRecord,
    /// The [`PROCESSOR_EPOCH`] in which it was made. The handler takes no other one's: a context that no attach or detach of ours
    /// has touched since still holds the span of an earlier time.
    pub(crate) processor_epoch: u32,
}

/// Where the epoch of a span is, from its record on.
pub(crate) const EPOCH_OF_RECORD: usize =
    offset_of!(PublishedSpan, processor_epoch) - offset_of!(PublishedSpan, record);
