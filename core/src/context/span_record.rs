//! The record that says which span a thread is in, as the signal handler reads it.
//!
//! A host publishes a pointer to a [`SpanRecord`] in whatever its runtime switches for it: the core's slot for
//! [`span_start`](crate::span_start), an own ContextVar in Python, a block in Ruby and .NET. Who publishes is the
//! thread itself, and who reads is a signal handler on that same thread, so a plain store is enough: the handler
//! sees the old pointer or the new one, never half of one.

use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::span_times::SpanTimes;

/// The longest span name that is kept, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// A span, as published to the sampler.
///
/// Who makes one keeps it, and the name it points to, alive for as long as any thread may be in the span, and does
/// not change them meanwhile: a name that changes is told with [`span_ended`](crate::span_ended).
#[repr(C)]
#[derive(Debug)]
pub struct SpanRecord {
    trace_id: [u64; 2],
    span_id: u64,
    name: *const u8,
    name_len: u32,
    /// Which ring the span's definition was last written to, and in which window, as the ring says; 0 = none. The handlers' own.
    defined_in: AtomicU32,
    /// The [flow](crate::current_flow) in which it was first current, 0 = not known, or [`ELSEWHERE`](Self::ELSEWHERE).
    flow: AtomicU64,
    /// What its time went to, null where nobody wants to know.
    times: *const SpanTimes,
}

// The .NET package has the same in `Interop/Block.cs`.
const _: () = assert!(size_of::<SpanRecord>() == 56 && align_of::<SpanRecord>() == 8);
const _: () = assert!(offset_of!(SpanRecord, trace_id) == 0 && offset_of!(SpanRecord, span_id) == 16);
const _: () = assert!(offset_of!(SpanRecord, name) == 24 && offset_of!(SpanRecord, name_len) == 32);
const _: () = assert!(offset_of!(SpanRecord, defined_in) == 36 && offset_of!(SpanRecord, flow) == 40);
const _: () = assert!(offset_of!(SpanRecord, times) == 48);

// SAFETY: the pointers are only read, and who publishes a record promises that its name lives and stays as it is, and its times live.
unsafe impl Send for SpanRecord {}
// SAFETY: as above; the rest that changes is atomic, the times too.
unsafe impl Sync for SpanRecord {}

impl SpanRecord {
    /// A flow that no thread runs: of a record that one thread has of a span which began in another.
    pub const ELSEWHERE: u64 = u64::MAX;

    /// A record of a span. The name is truncated at [`MAX_NAME_BYTES`], at a character's start.
    ///
    /// # Safety
    /// `name` stays valid and unchanged for as long as the record is published anywhere.
    pub unsafe fn new(trace_id: [u64; 2], span_id: u64, name: &str) -> Self {
        let name = truncate_name(name);
        Self {
            trace_id,
            span_id,
            name: name.as_ptr(),
            #[expect(clippy::cast_possible_truncation, reason = "truncate_name() leaves at most 256 bytes")]
            name_len: name.len() as u32,
            defined_in: AtomicU32::new(0),
            flow: AtomicU64::new(0),
            times: ptr::null(),
        }
    }

    /// The same with a place for what its time goes to.
    ///
    /// # Safety
    /// `times` stay valid for as long as the record is published anywhere.
    #[must_use]
    pub unsafe fn with_times(self, times: *const SpanTimes) -> Self {
        Self { times, ..self }
    }

    /// High and low half.
    #[inline]
    pub fn trace_id(&self) -> [u64; 2] {
        self.trace_id
    }

    /// Not 0 for a span.
    #[inline]
    pub fn span_id(&self) -> u64 {
        self.span_id
    }

    /// The flow in which it was first current, 0 = not known. Relaxed: who hands a span to another thread orders both.
    #[inline]
    pub fn flow(&self) -> u64 {
        self.flow.load(Ordering::Relaxed)
    }

    /// It is current in `flow`: the first one is its own, and time that others spend in it is beside its own.
    #[inline]
    pub fn enter(&self, flow: impl FnOnce() -> u64) {
        if self.flow() == 0 {
            self.flow.store(flow(), Ordering::Relaxed);
        }
    }

    /// What its time went to, if anybody wants to know.
    #[inline]
    pub fn times(&self) -> Option<&SpanTimes> {
        // SAFETY: null, or valid by the promise of `with_times`.
        unsafe { self.times.as_ref() }
    }

    #[inline]
    pub(crate) fn name_parts(&self) -> (*const u8, usize) {
        (self.name, self.name_len as usize)
    }

    /// Whether a ring has the span's definition in its window. Handler only; Relaxed: a second definition is harmless.
    #[inline]
    pub(crate) fn is_defined_in(&self, ring_and_window: u32) -> bool {
        self.defined_in.load(Ordering::Relaxed) == ring_and_window
    }

    #[inline]
    pub(crate) fn set_defined_in(&self, ring_and_window: u32) {
        self.defined_in.store(ring_and_window, Ordering::Relaxed);
    }
}

/// The longest start of `name` that has at most [`MAX_NAME_BYTES`] and ends between characters.
pub(crate) fn truncate_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_truncated_between_characters() {
        let name = format!("{}é", "x".repeat(255));
        assert_eq!(truncate_name(&name), "x".repeat(255));
        assert_eq!(truncate_name("GET /"), "GET /");
    }
}
