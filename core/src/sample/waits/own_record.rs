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

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::ptr;

    use super::super::block::Call;
    use super::super::on_wait;
    use super::*;
    use crate::wait_state::State;

    #[test]
    fn a_wait_in_which_the_thread_lost_its_record_is_not_shortened_by_what_another_one_counted_there() {
        const SLEPT_NS: u64 = 5_000_000_000;
        // SAFETY: as in a new thread: numbers and null. It has no record.
        let mut block: Block = unsafe { std::mem::zeroed() };
        let [counted_anew, counted_much] = [2_u64.wrapping_sub(7), 1_000];
        for (times, expiries) in (1..).zip([counted_anew, counted_much]) {
            let call = Call {
                function: 0,
                state: State::Sleep as u16,
                polls: 0,
                took_ns: SLEPT_NS,
                ended_ns: 1,
                expiries,
                handled_ns: expiries,
                cpu_ns: 0,
                argument: 0,
                mutex: ptr::null(),
                caller: ptr::null(),
                frame: ptr::null(),
            };
            on_wait(&raw mut block, &raw const call);
            assert_eq!(block.total_ns, times * SLEPT_NS);
        }
    }
}
