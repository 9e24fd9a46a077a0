//! What the frame ids of a stack mean, for the profiler's thread: reads what handlers told, and says it in turn.
//!
//! Handlers fill the seen tables and the ring ([`code_table`](crate::stack::code_table)); here their memory is mapped, the ring is
//! read into the [`resolver`](crate::symbols::resolver), and a full table is left for a fresh one.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use spanprof_core::{Error, Frame, FrameId};

use crate::stack::code_table::{DEFINITIONS, SLOTS};
use crate::stack::layout::LineTable;
use crate::symbols::memory_map::map_zeroed;
use crate::symbols::resolver::{LineMode, Resolver};

/// A table with more keys is left for a fresh one.
const ROTATE_AT: u32 = 49_152;

/// What was read from the ring. Behind a pointer so that a forked child can leave a lock behind whose holder does not exist there.
static RESOLVER: AtomicPtr<Mutex<Resolver>> = AtomicPtr::new(ptr::null_mut());
/// The [`LineMode`] of the profiler that runs.
static LINE_MODE: AtomicU32 = AtomicU32::new(0);

/// Maps the memory that handlers use. Called before the first sample, any number of times.
///
/// # Errors
/// System: the kernel gave no memory.
pub(crate) fn map() -> Result<(), Error> {
    DEFINITIONS.ring.map()?;
    table_of(DEFINITIONS.generation.load(Ordering::Relaxed))?;
    if RESOLVER.load(Ordering::Relaxed).is_null() {
        fresh_resolver();
    }
    Ok(())
}

pub(crate) fn set_line_mode(mode: LineMode) {
    LINE_MODE.store(mode as u32, Ordering::Relaxed);
}

/// Moves what handlers told into the resolver. The profiler's thread, each tick and before it resolves frames.
pub(crate) fn collect() {
    let Some(mut resolver) = resolver() else {
        return;
    };
    DEFINITIONS.ring.drain(|record| resolver.add(record));
    if DEFINITIONS.used.load(Ordering::Relaxed) > ROTATE_AT {
        rotate_generations(&mut resolver);
    }
}

/// Says what `ids` mean, `None` for those whose definition is still to come.
///
/// A definition goes out before the sample that needs it, so what is collected now tells every frame of samples that were read by
/// now; what was collected before they were read may not.
pub(crate) fn resolve(ids: &[FrameId], lines: LineTable) -> Vec<Option<Frame>> {
    collect();
    let mode = match LINE_MODE.load(Ordering::Relaxed) {
        1 => LineMode::First,
        2 => LineMode::NoLine,
        _ => LineMode::LastInstruction,
    };
    match resolver() {
        Some(resolver) => ids.iter().map(|&id| resolver.resolve(id, lines, mode)).collect(),
        None => vec![None; ids.len()],
    }
}

/// Makes a forked child's definitions its own: locks that a thread of the parent held are left behind, and all
/// code is told anew. Called while no handler can run.
pub(crate) fn after_fork() {
    if RESOLVER.load(Ordering::Relaxed).is_null() {
        return;
    }
    DEFINITIONS.writing.store(false, Ordering::Relaxed);
    DEFINITIONS.ring.clear();
    fresh_resolver();
    for table in &DEFINITIONS.tables {
        clear(table.load(Ordering::Relaxed));
    }
    DEFINITIONS.used.store(0, Ordering::Relaxed);
    DEFINITIONS.generation.fetch_add(2, Ordering::Relaxed);
}

fn resolver() -> Option<MutexGuard<'static, Resolver>> {
    let resolver = RESOLVER.load(Ordering::Acquire);
    // SAFETY: null, or from Box::into_raw in fresh_resolver(), which never frees one.
    let resolver = unsafe { resolver.as_ref() }?;
    Some(resolver.lock().unwrap_or_else(PoisonError::into_inner))
}

fn fresh_resolver() {
    let fresh = Box::into_raw(Box::new(Mutex::new(Resolver::default())));
    RESOLVER.store(fresh, Ordering::Release);
}

/// The table of `generation`, mapped if it is not yet.
fn table_of(generation: u32) -> Result<*mut AtomicU64, Error> {
    let place = &DEFINITIONS.tables[(generation & 1) as usize];
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return Ok(known);
    }
    let table = map_zeroed(SLOTS * size_of::<AtomicU64>())?.cast::<AtomicU64>();
    place.store(table, Ordering::Release);
    Ok(table)
}

fn rotate_generations(resolver: &mut Resolver) {
    let next = DEFINITIONS.generation.load(Ordering::Relaxed).wrapping_add(1);
    let Ok(table) = table_of(next) else {
        // No memory: code that finds no place in the full table stays unknown.
        return;
    };
    clear(table);
    resolver.forget(next.wrapping_sub(2));
    DEFINITIONS.used.store(0, Ordering::Relaxed);
    // Release pairs with definer()'s Acquire.
    DEFINITIONS.generation.store(next, Ordering::Release);
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
