//! What the words of a stack mean: code objects are told once, by the handler that first sees them.
//!
//! Nothing here ever takes the GIL, so a code object can only be read where it is surely alive: in the handler of the
//! thread that runs it. What people want to know of it (name, file, first line, location table) never changes and is
//! copied into one process-wide ring on first sight; a stack holds small words:
//!
//! ```text
//! | generation: 8 | slot: 24 | instruction: 32 |
//! ```
//!
//! The slot is the code object's place in the **seen table**, fixed and open addressed, of 64-bit keys that handlers
//! insert by compare-and-swap. A key is made of the address and of what tells a new object at the same address from
//! the old one. Its lowest bit says that the definition went out: a handler that finds the ring taken, full, or has
//! already defined enough leaves the bit clear, and the next sample of that code does it.
//!
//! When a table is three quarters full the profiler's thread turns to a fresh one (the next **generation**); words of
//! the last one stay resolvable until the next turn.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use spanprof_core::{Error, ErrorKind, Frame};

use crate::stack::layout::LineTable;
use crate::symbols::definition_ring::{DefinitionRing, MAX_RECORD, Record};
use crate::symbols::resolver::{LineMode, NO_SLOT_WORD, Resolver};

/// Places of a seen table. A power of two; twenty times what a large program runs.
const SLOTS: usize = 65_536;
/// A table with more keys is left for a fresh one.
const TURN_AT: u32 = 49_152;
/// Places tried for a key.
const MAX_PROBES: usize = 32;
/// Definitions and bytes that one sample may copy, so that a first deep stack stays short.
const PER_SAMPLE: u32 = 16;
const BYTES_PER_SAMPLE: usize = 64 * 1024;

/// The seen tables, the ring and what was read from it. One a process, alive for ever.
#[derive(Debug)]
pub(crate) struct Definitions {
    /// Of the even and of the odd generations; null until first needed.
    tables: [AtomicPtr<AtomicU64>; 2],
    generation: AtomicU32,
    /// Keys in the current table.
    used: AtomicU32,
    /// Held by the one handler that may write the ring.
    writing: AtomicBool,
    ring: DefinitionRing,
    /// Behind a pointer so that a forked child can leave a lock behind whose holder does not exist there.
    resolver: AtomicPtr<Mutex<Resolver>>,
    line_mode: AtomicU32,
}

/// The one instance.
pub(crate) static DEFINITIONS: Definitions = Definitions {
    tables: [AtomicPtr::new(ptr::null_mut()), AtomicPtr::new(ptr::null_mut())],
    generation: AtomicU32::new(0),
    used: AtomicU32::new(0),
    writing: AtomicBool::new(false),
    ring: DefinitionRing::new(),
    resolver: AtomicPtr::new(ptr::null_mut()),
    line_mode: AtomicU32::new(0),
};

/// One sample's right to turn code objects into words. Handler only.
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
    /// Maps the memory that handlers use. Called before the first sample, any number of times.
    ///
    /// # Errors
    /// System: the kernel gave no memory.
    pub(crate) fn map(&self) -> Result<(), Error> {
        self.ring.map()?;
        self.table_of(self.generation.load(Ordering::Relaxed))?;
        if self.resolver.load(Ordering::Relaxed).is_null() {
            self.fresh_resolver();
        }
        Ok(())
    }

    pub(crate) fn set_line_mode(&self, mode: LineMode) {
        self.line_mode.store(mode as u32, Ordering::Relaxed);
    }

    /// Begins a sample.
    #[inline]
    pub(crate) fn definer(&self) -> Definer {
        // Acquire pairs with turn()'s Release: who sees the generation sees its table, empty.
        let generation = self.generation.load(Ordering::Acquire);
        let table = self.tables[(generation & 1) as usize].load(Ordering::Relaxed);
        Definer { table, generation, left: PER_SAMPLE, bytes_left: BYTES_PER_SAMPLE, lock: Lock::Untried }
    }

    /// Moves what handlers told into the resolver. The profiler's thread, each tick and before it resolves words.
    pub(crate) fn collect(&self) {
        let Some(mut resolver) = self.resolver() else {
            return;
        };
        self.ring.drain(|record| resolver.add(record));
        if self.used.load(Ordering::Relaxed) > TURN_AT {
            self.turn(&mut resolver);
        }
    }

    /// Says what `words` mean, `None` for those whose definition is still to come.
    pub(crate) fn resolve(&self, words: &[u64], lines: LineTable) -> Vec<Option<Frame>> {
        let mode = match self.line_mode.load(Ordering::Relaxed) {
            1 => LineMode::First,
            2 => LineMode::NoLine,
            _ => LineMode::LastInstruction,
        };
        match self.resolver() {
            Some(resolver) => words.iter().map(|&word| resolver.resolve(word, lines, mode)).collect(),
            None => vec![None; words.len()],
        }
    }

    /// Makes a forked child's definitions its own: locks that a thread of the parent held are left behind, and all
    /// code is told anew. Called while no handler can run.
    pub(crate) fn after_fork(&self) {
        if self.resolver.load(Ordering::Relaxed).is_null() {
            return;
        }
        self.writing.store(false, Ordering::Relaxed);
        self.ring.clear();
        self.fresh_resolver();
        for table in &self.tables {
            clear(table.load(Ordering::Relaxed));
        }
        self.used.store(0, Ordering::Relaxed);
        self.generation.fetch_add(2, Ordering::Relaxed);
    }

    fn resolver(&self) -> Option<MutexGuard<'_, Resolver>> {
        let resolver = self.resolver.load(Ordering::Acquire);
        // SAFETY: null, or from Box::into_raw in fresh_resolver(), which never frees one.
        let resolver = unsafe { resolver.as_ref() }?;
        Some(resolver.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fresh_resolver(&self) {
        let fresh = Box::into_raw(Box::new(Mutex::new(Resolver::default())));
        self.resolver.store(fresh, Ordering::Release);
    }

    /// The table of `generation`, mapped if it is not yet.
    fn table_of(&self, generation: u32) -> Result<*mut AtomicU64, Error> {
        let place = &self.tables[(generation & 1) as usize];
        let known = place.load(Ordering::Relaxed);
        if !known.is_null() {
            return Ok(known);
        }
        let table = map_zeroed(SLOTS * size_of::<AtomicU64>())?.cast::<AtomicU64>();
        place.store(table, Ordering::Release);
        Ok(table)
    }

    fn turn(&self, resolver: &mut Resolver) {
        let next = self.generation.load(Ordering::Relaxed).wrapping_add(1);
        let Ok(table) = self.table_of(next) else {
            // No memory: code that finds no place in the full table stays unknown.
            return;
        };
        clear(table);
        resolver.forget(next.wrapping_sub(2));
        self.used.store(0, Ordering::Relaxed);
        // Release pairs with definer()'s Acquire.
        self.generation.store(next, Ordering::Release);
    }
}

impl Definer {
    /// The word of instruction `index` of the code object that the two words of `key` tell. `describe` is called when its definition
    /// is not out yet and there is room; it fills the record and says whether it could.
    ///
    /// Hot: one cache line, once the code object is known.
    ///
    /// # Safety
    /// [`Definitions::map`] was called.
    #[inline]
    pub(crate) unsafe fn word(
        &mut self,
        key: (u64, u64),
        index: u32,
        describe: impl FnOnce(&mut Record) -> bool,
    ) -> u64 {
        // A stale table after a turn must not take a key of this generation for one of its own.
        let key = mix(key.0, key.1 ^ (u64::from(self.generation) << 24));
        let mut slot = (key >> 48) as usize;
        let key = (key | 2) & !DEFINED;
        for _ in 0..MAX_PROBES {
            // SAFETY: `slot` is below SLOTS.
            let entry = unsafe { self.table.add(slot) };
            // SAFETY: map() made the table, and it is never unmapped.
            let entry = unsafe { &*entry };
            // Acquire pairs with define()'s Release: who reads a sample of a word has its definition in the ring.
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
        NO_SLOT_WORD
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
            // Release pairs with word()'s Acquire, in this handler and in others.
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

/// Empties a table; null is none.
fn clear(table: *mut AtomicU64) {
    if !table.is_null() {
        for slot in 0..SLOTS {
            // SAFETY: a table has SLOTS entries.
            let entry = unsafe { table.add(slot) };
            // SAFETY: and is never unmapped.
            unsafe { &*entry }.store(0, Ordering::Relaxed);
        }
    }
}

/// Maps zeroed memory, with its pages, so that no handler waits for one.
pub(crate) fn map_zeroed(bytes: usize) -> Result<*mut u8, Error> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: a new anonymous mapping touches nothing else.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        let cause = std::io::Error::last_os_error();
        return Err(Error::new(ErrorKind::System, format!("mapping {bytes} bytes for code objects: {cause}")));
    }
    Ok(memory.cast())
}
