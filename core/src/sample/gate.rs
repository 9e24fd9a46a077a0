//! Who may use a thread's record: the handler on its thread while the record is that thread's, then whoever retires it.
//!
//! A handler enters, looks whether the generation is still the one its signal was made for, and leaves. Who retires
//! closes the gate and waits until it is empty; whoever enters later finds another generation. `core/loom` tries all
//! interleavings of this very file.

use crate::os::atomics::{AtomicBool, AtomicU32, Ordering};

/// All fields start as zero.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) generation: AtomicU32,
    /// Handlers inside: 0 or 1, and late ones on their way out.
    pub(crate) inside: AtomicU32,
    /// Set while handlers may sample; a record that waits to be drained for the last time is not live.
    pub(crate) live: AtomicBool,
}

impl Gate {
    /// Lets handlers in that know the number which is returned.
    pub(crate) fn open(&self) -> u32 {
        // The timer that signals handlers with this number is made after this, by a system call.
        self.live.store(true, Ordering::Release);
        self.generation.load(Ordering::Relaxed)
    }

    /// Enters; false = what is inside is not for this generation. `leave` must follow either way.
    ///
    /// AcqRel pairs with the read-modify-write of `is_empty`: one of the two comes first in the order of `inside`. If that
    /// is ours, it sees us inside; else we see the generation that `close` moved before it.
    #[inline]
    pub(crate) fn enter(&self, generation: u32) -> bool {
        self.inside.fetch_add(1, Ordering::AcqRel);
        self.generation.load(Ordering::Relaxed) == generation && self.live.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn leave(&self) {
        // Release: pairs with the Acquire side of `is_empty`; what we did is done.
        self.inside.fetch_sub(1, Ordering::Release);
    }

    /// Lets no handler in from now on. Some may still be inside.
    pub(crate) fn close(&self) {
        self.live.store(false, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether no handler is inside. After `close`, and once true, what the gate guards is the caller's.
    pub(crate) fn is_empty(&self) -> bool {
        self.inside.fetch_add(0, Ordering::AcqRel) == 0
    }

    /// Handlers that were inside ran on threads that no longer exist.
    pub(crate) fn abandon(&self) {
        self.inside.store(0, Ordering::Relaxed);
    }
}
