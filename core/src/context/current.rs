//! The context of a thread at an instant: which span and which tags it is in.

use super::span_record::SpanRecord;
use super::tags::TagSetId;

/// Which span and tags the interrupted thread is in.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The span, null outside spans. Valid for the length of the handler.
    pub span: *const SpanRecord,
    /// The tag set that follows the execution context.
    pub tags: TagSetId,
}

impl Context {
    /// Outside every span, without tags.
    pub const NONE: Self = Self { span: std::ptr::null(), tags: TagSetId::EMPTY };
}
