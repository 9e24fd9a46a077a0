//! Code objects that handlers have seen, and their frame ids: each is told once, by the handler that first sees it.
//!
//! Nothing here ever takes the GIL, so a code object can only be read where it is surely alive: in the handler of the
//! thread that runs it. What people want to know of it (name, file, first line, location table) never changes and is
//! copied into one process-wide ring on first sight; a stack holds small ids ([`frame_id`](crate::stack::frame_id)).
//!
//! A slot is the code object's place in the **seen table**, fixed and open addressed, of 64-bit keys that handlers
//! insert by compare-and-swap. A key is made of the address and of what tells a new object at the same address from
//! the old one. Its lowest bit says that the definition went out: a handler that finds the ring taken, full, or has
//! already defined enough leaves the bit clear, and the next sample of that code does it.
//!
//! When a table is three quarters full the profiler's thread rotates to a fresh one (the next **generation**); ids of
//! the last one stay resolvable until the next rotation.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use spanprof_core::FrameId;

use crate::stack::definition_ring::{DefinitionRing, MAX_RECORD, Record};
use crate::stack::frame_id::TABLE_FULL;

/// Places of a seen table. A power of two; twenty times what a large program runs.
pub(crate) const SLOTS: usize = 65_536;
/// Places tried for a key.
const MAX_PROBES: usize = 32;
/// Definitions and bytes that one sample may copy, so that a first deep stack stays short.
const PER_SAMPLE: u32 = 16;
const BYTES_PER_SAMPLE: usize = 64 * 1024;

/// The seen tables and the ring. One a process, alive for ever. Mapped, rotated and read by
/// [`definitions`](crate::symbols::definitions).
#[derive(Debug)]
pub(crate) struct Definitions {
    /// Of the even and of the odd generations; null until first needed.
    pub(crate) tables: [AtomicPtr<AtomicU64>; 2],
    pub(crate) generation: AtomicU32,
    /// Keys in the current table.
    pub(crate) used: AtomicU32,
    /// Held by the one handler that may write the ring.
    pub(crate) writing: AtomicBool,
    pub(crate) ring: DefinitionRing,
}

/// The one instance.
pub(crate) static DEFINITIONS: Definitions = Definitions {
    tables: [AtomicPtr::new(ptr::null_mut()), AtomicPtr::new(ptr::null_mut())],
    generation: AtomicU32::new(0),
    used: AtomicU32::new(0),
    writing: AtomicBool::new(false),
    ring: DefinitionRing::new(),
};

/// One sample's right to turn code objects into frame ids. Handler only.
#[derive(Debug)]
pub(crate) struct Definer {
    table: *const AtomicU64,
    generation: u32,
    left: u32,
    bytes_left: usize,
    lock: Lock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Untried,
    Held,
    Denied,
}

impl Definitions {
    /// Begins a sample.
    #[inline]
    pub(crate) fn definer(&self) -> Definer {
        // Acquire pairs with rotate_generations()'s Release: who sees the generation sees its table, empty.
        let generation = self.generation.load(Ordering::Acquire);
        let table = self.tables[(generation & 1) as usize].load(Ordering::Relaxed);
        Definer { table, generation, left: PER_SAMPLE, bytes_left: BYTES_PER_SAMPLE, lock: Lock::Untried }
    }
}

impl Definer {
    /// The frame id of instruction `index` of the code object that the two words of `key` tell. `describe` is called when its definition
    /// is not out yet and there is room; it fills the record and says whether it could.
    ///
    /// Hot: one cache line, once the code object is known.
    ///
    /// # Safety
    /// [`definitions::map`](crate::symbols::definitions::map) was called.
    #[inline]
    pub(crate) unsafe fn frame_id(
        &mut self,
        key: (u64, u64),
        index: u32,
        describe: impl FnOnce(&mut Record) -> bool,
    ) -> FrameId {
        // A stale table after a rotation must not take a key of this generation for one of its own.
        let key = mix(key.0, key.1 ^ (u64::from(self.generation) << 24));
        let mut slot = (key >> 48) as usize;
        let key = (key | 2) & !DEFINED;
        for _ in 0..MAX_PROBES {
            // SAFETY: `slot` is below SLOTS.
            let entry = unsafe { self.table.add(slot) };
            // SAFETY: map() made the table, and it is never unmapped.
            let entry = unsafe { &*entry };
            // Acquire pairs with define()'s Release: who reads a sample of a frame has its definition in the ring.
            let mut found = entry.load(Ordering::Acquire);
            if found == 0 {
                found = match entry.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        DEFINITIONS.used.fetch_add(1, Ordering::Relaxed);
                        key
                    }
                    Err(other) => other,
                };
            }
            if found & !DEFINED == key {
                if found & DEFINED == 0 {
                    self.define(entry, slot, describe);
                }
                return (u64::from(self.generation & 0xFF) << 56) | ((slot as u64) << 32) | u64::from(index);
            }
            slot = (slot + 1) % SLOTS;
        }
        TABLE_FULL
    }

    #[cold]
    fn define(&mut self, entry: &AtomicU64, slot: usize, describe: impl FnOnce(&mut Record) -> bool) {
        if self.left == 0 || self.bytes_left == 0 {
            return;
        }
        if self.lock == Lock::Untried {
            // Acquire pairs with Drop's Release: this handler sees all that the last one wrote.
            let taken = DEFINITIONS.writing.swap(true, Ordering::Acquire);
            self.lock = if taken { Lock::Denied } else { Lock::Held };
        }
        // Another thread may have told it while we were looking.
        if self.lock == Lock::Denied || entry.load(Ordering::Relaxed) & DEFINED != 0 {
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "SLOTS is below 2³²")]
        let slot = slot as u32;
        let Some(mut record) = DEFINITIONS.ring.begin(MAX_RECORD, self.generation, slot) else {
            self.left = 0;
            return;
        };
        if describe(&mut record) {
            self.left -= 1;
            self.bytes_left = self.bytes_left.saturating_sub(record.commit());
            // Release pairs with frame_id()'s Acquire, in this handler and in others.
            entry.fetch_or(DEFINED, Ordering::Release);
        }
    }
}

impl Drop for Definer {
    #[inline]
    fn drop(&mut self) {
        if self.lock == Lock::Held {
            DEFINITIONS.writing.store(false, Ordering::Release);
        }
    }
}

/// The bit of a key that says that the definition is in the ring, or was.
const DEFINED: u64 = 1;

/// Spreads two words over all bits of one: the halves of their product, as wyhash does it.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "halves are meant")]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0xA076_1D64_78BD_642F) * u128::from(b ^ 0xE703_7ED1_A0B4_28DB);
    (product as u64) ^ ((product >> 64) as u64)
}
