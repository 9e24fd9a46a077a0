//! Final names of spans. Frameworks rename a span on routing, long after its first sample; what a span is called when it
//! ends is joined by span id before its window is encoded. Only spans that have samples pay for that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::span_record::truncate_name;

/// Number of the window that samples belong to, from 1.
pub(crate) static WINDOW: AtomicU32 = AtomicU32::new(1);

/// Names that may wait for a window's end; beyond it a span keeps the name it was sampled with.
const MAX_WAITING: usize = 100_000;
/// 8 KiB a window. Waits make some thousand samples in one, so with few bits nearly each span would seem to have one.
const BITS: u32 = 1 << 16;
const WORDS: usize = BITS as usize / 64;

/// A bit a span id, for this window and the one before: the handler sets, `is_sampled` reads. A bit that another span
/// set costs one needless `span_ended`, no more.
static SAMPLED: [[AtomicU64; WORDS]; 2] = [const { [const { AtomicU64::new(0) }; WORDS] }; 2];

static FINAL: Mutex<Option<HashMap<u64, Box<str>>>> = Mutex::new(None);

pub(crate) fn lock() -> MutexGuard<'static, Option<HashMap<u64, Box<str>>>> {
    FINAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a sample carries this span. Handler.
#[inline]
pub(crate) fn mark_sampled(span_id: u64, window: u32) {
    let (word, bit) = place(span_id);
    let word = &SAMPLED[(window & 1) as usize][word];
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Whether samples of the last two windows may carry this span: if not, its end needs no [`span_ended`]. About 1 ns.
#[inline]
pub fn is_sampled(span_id: u64) -> bool {
    let (word, bit) = place(span_id);
    SAMPLED.iter().any(|window| window[word].load(Ordering::Relaxed) & bit != 0)
}

/// Tells what a span was called in the end; its samples of this window get that name. About 100 ns.
pub fn span_ended(span_id: u64, name: &str) {
    let mut names = lock();
    let names = names.get_or_insert_default();
    if names.len() < MAX_WAITING && names.try_reserve(1).is_ok() {
        names.insert(span_id, truncate_name(name).into());
    }
}

/// The names told since the last call; a new window begins.
pub(crate) fn rotate_generations() -> HashMap<u64, Box<str>> {
    let next = WINDOW.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    for word in &SAMPLED[(next & 1) as usize] {
        word.store(0, Ordering::Relaxed);
    }
    lock().take().unwrap_or_default()
}

#[inline]
fn place(span_id: u64) -> (usize, u64) {
    // Span ids are random by specification, but tests and other tracers count them up: mix.
    let bit = span_id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - BITS.ilog2());
    ((bit / 64) as usize, 1 << (bit % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampled_span_is_known_for_two_windows() {
        let id = 0x1234_5678_9abc_def0;
        assert!(!is_sampled(id));
        mark_sampled(id, 8);
        assert!(is_sampled(id));
        for word in &SAMPLED[0] {
            word.store(0, Ordering::Relaxed);
        }
        assert!(!is_sampled(id));
    }
}
