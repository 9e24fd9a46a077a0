//! Memory for rings: what is mapped, and what of it is free.

use crate::sample::ring::Memory;

/// Memory of all rings together. A thread beyond it gets the ring of the one that was quiet for longest, or is counted as
/// unsampled if none is.
const MAX_RING_BYTES: usize = 64 << 20;
/// Rings of ended threads that are kept mapped for the next ones.
const SPARE_RINGS: usize = 32;

/// The rings of all threads.
#[derive(Debug, Default)]
pub(super) struct Rings {
    spare: Vec<Memory>,
    /// Of all that are mapped.
    bytes: usize,
}

impl Rings {
    /// One of this size, if there may be one more.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Memory> {
        if let Some(at) = self.spare.iter().position(|memory| memory.bytes() == bytes) {
            return Some(self.spare.swap_remove(at));
        }
        if self.bytes + bytes > MAX_RING_BYTES {
            return None;
        }
        let memory = Memory::map(bytes).ok()?;
        self.bytes += bytes;
        Some(memory)
    }

    /// Keeps one for the next thread while threads are sampled; else there will be none, and all go.
    pub(super) fn give_back(&mut self, memory: Memory, is_sampling: bool) {
        if is_sampling && self.spare.len() < SPARE_RINGS {
            self.spare.push(memory);
        } else {
            self.bytes -= memory.bytes();
            if !is_sampling {
                for spare in self.spare.drain(..) {
                    self.bytes -= spare.bytes();
                }
            }
        }
    }
}
