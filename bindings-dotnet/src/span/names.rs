//! What managed code says of spans' names, beside their records: where a name stays, and what a span was called in the end.

use std::collections::HashSet;
use std::ptr;
use std::sync::{PoisonError, RwLock};

use spanprof_core::MAX_NAME_BYTES;

/// Whether samples of the last two windows may carry the span, 0 or 1: if not, its end needs no
/// [`spanprof_span_ended`]. About 1 ns.
#[unsafe(no_mangle)]
pub extern "C" fn spanprof_is_sampled(span_id: u64) -> u8 {
    u8::from(spanprof_core::is_sampled(span_id))
}

/// Tells what a span was called in the end, in UTF-8; samples get that name. About 100 ns.
///
/// # Safety
/// `name` is valid for `len` bytes; null with 0 is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spanprof_span_ended(span_id: u64, name: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    if let Some(name) = unsafe { text(name, len) } {
        spanprof_core::span_ended(span_id, name);
    }
}

/// Span names that are kept for ever; more get null.
const MAX_NAMES: usize = 2_048;

static NAMES: RwLock<Option<HashSet<&'static str>>> = RwLock::new(None);

/// An address where this name stays for ever, for a [`SpanRecord`](spanprof_core::SpanRecord). Null for one that is longer than
/// 256 bytes or no UTF-8, and once 2,048 names are kept: publish null and length 0 then, and the name that the span's end tells
/// counts. About 50 ns for a known name.
///
/// # Safety
/// `name` is valid for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spanprof_name(name: *const u8, len: usize) -> *const u8 {
    // SAFETY: the caller's promise.
    let Some(name) = (unsafe { text(name, len) }) else {
        return ptr::null();
    };
    if name.len() > MAX_NAME_BYTES {
        return ptr::null();
    }
    if let Some(names) = NAMES.read().unwrap_or_else(PoisonError::into_inner).as_ref()
        && let Some(known) = names.get(name)
    {
        return known.as_ptr();
    }
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known.as_ptr();
    }
    if names.len() >= MAX_NAMES {
        return ptr::null();
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    kept.as_ptr()
}

/// # Safety
/// `text` is null, or valid for `len` bytes for as long as the result is used.
unsafe fn text<'a>(text: *const u8, len: usize) -> Option<&'a str> {
    if text.is_null() || len == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    str::from_utf8(unsafe { std::slice::from_raw_parts(text, len) }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        let name = |text: &str| {
            // SAFETY: a string is valid for its length.
            unsafe { spanprof_name(text.as_ptr(), text.len()) }
        };
        let first = name(&String::from("GET /cart"));
        assert_eq!(first, name(&String::from("GET /cart")));
        // SAFETY: the name stays for ever.
        assert_eq!(unsafe { text(first, 9) }, Some("GET /cart"));
        assert!(name(&"x".repeat(257)).is_null() && name("").is_null());
        assert!(!name(&"x".repeat(256)).is_null());
    }
}
