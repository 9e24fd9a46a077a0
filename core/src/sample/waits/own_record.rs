//! The record of a thread that takes a sample outside of a handler, remembered in its block.
//!
//! Nobody is waited for: a garbage collection may wait for the calling thread, and all others for the collection. So no lock is taken but one
//! that is free, and no thread-local that has a destructor is touched: its first touch waits for whoever loads a library.

use super::block::Block;
use super::wrappers;
use crate::os::{fork, thread_id};
use crate::sample::record::{self, ThreadRecord};
use crate::sample::threads;

/// The calling thread's record, and the value to enter it with. It is made if there is none and nobody is at the registry, which takes
/// 10 µs. Not within a call of libc: the program's allocator may be within one.
pub(crate) fn own() -> Option<(&'static ThreadRecord, u64)> {
    if fork::forked() {
        return None;
    }
    match wrappers::own_block() {
        Some(block) => {
            // SAFETY: the calling thread's own block.
            let block = unsafe { &mut *block };
            noted(block).or_else(|| note(block, threads::own_record))
        }
        None => threads::own_record(thread_id::tid()),
    }
}

/// The same by the calling thread's block, within a call of libc: none is made.
pub(super) fn find(block: &mut Block) -> Option<(&'static ThreadRecord, u64)> {
    known(block).or_else(|| note(block, threads::find_record))
}

/// The same, if it was found before.
pub(super) fn known(block: &Block) -> Option<(&'static ThreadRecord, u64)> {
    // A child of vfork runs in its parent's memory, and with the block of the thread that made it.
    noted(block).filter(|_| block.thread == thread_id::tid())
}

#[inline]
fn noted(block: &Block) -> Option<(&'static ThreadRecord, u64)> {
    let value = block.record();
    let record = record::by_signal_value(value).filter(|record| record.is_for(value))?;
    Some((record, value))
}

fn note(
    block: &mut Block,
    find: impl FnOnce(i32) -> Option<(&'static ThreadRecord, u64)>,
) -> Option<(&'static ThreadRecord, u64)> {
    let thread = thread_id::tid();
    let (record, value) = find(thread)?;
    block.set_record(value, thread, record.counters());
    Some((record, value))
}
