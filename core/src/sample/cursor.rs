//! How far a ring is written and read: one writer, one reader. `core/loom` tries all interleavings of this very file.

use crate::os::atomics::{AtomicU64, Ordering};

/// Positions count up and never wrap. Both start as zero.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) head: AtomicU64,
    pub(crate) tail: AtomicU64,
}

impl Cursor {
    /// Back to the start. Nobody may write or read meanwhile.
    pub(crate) fn reset(&self) {
        self.head.store(0, Ordering::Relaxed);
        self.tail.store(0, Ordering::Relaxed);
    }

    /// For the writer: where it goes on, and up to where the reader has read.
    #[inline]
    pub(crate) fn for_writer(&self) -> (u64, u64) {
        // Acquire: pairs with `give_back`; what the reader gave back it has read.
        let tail = self.tail.load(Ordering::Acquire);
        (self.head.load(Ordering::Relaxed), tail)
    }

    /// All before `head` is written.
    #[inline]
    pub(crate) fn publish(&self, head: u64) {
        // Release: pairs with `for_reader`; the words before it are written.
        self.head.store(head, Ordering::Release);
    }

    /// For the reader: from where to where there is something to read.
    pub(crate) fn for_reader(&self) -> (u64, u64) {
        // Acquire: pairs with `publish`.
        let head = self.head.load(Ordering::Acquire);
        (self.tail.load(Ordering::Relaxed), head)
    }

    /// All before `tail` is read.
    pub(crate) fn give_back(&self, tail: u64) {
        // Release: pairs with `for_writer`.
        self.tail.store(tail, Ordering::Release);
    }
}
