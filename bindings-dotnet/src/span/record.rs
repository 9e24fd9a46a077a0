//! A thread's block: the span and tags that it is in, written by managed code and read by the signal handler.
//!
//! The runtime's own context switch calls our AsyncLocal handler, which fills the half that is not current and flips
//! `active`. Writer and reader are one thread, so plain stores in program order are enough: the signal handler sees the
//! old half or the new one. The block's address is in a word of static TLS (initial-exec), which the handler loads by
//! one instruction: the first touch of an ordinary thread-local may allocate.
//!
//! Blocks are never freed, so managed code that kept an address too long writes into memory that is there. A thread that
//! ends gives its block to the next one, zeroed.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use std::sync::{Mutex, PoisonError};

use spanprof_core::{Context, SpanRecord, TagSetId, ThreadWord};

use crate::stack::{own_stack, static_tls};

/// What managed code writes. Offsets are part of the interface: `Interop/Block.cs` has the same.
#[repr(C)]
#[derive(Debug)]
pub struct Block {
    /// Which half is current, 0 or 1.
    active: AtomicU32,
    /// The tag set that follows the execution context, 0 for none.
    tags: TagSetId,
    /// Spans; one with id 0 is no span.
    halves: [SpanRecord; 2],
}

const _: () = assert!(offset_of!(Block, active) == 0 && offset_of!(Block, tags) == 4);
const _: () = assert!(size_of::<AtomicU32>() == 4 && size_of::<TagSetId>() == 4);
const _: () = assert!(offset_of!(Block, halves) == 8 && offset_of!(Block, halves) + size_of::<SpanRecord>() == 64);
const _: () = assert!(size_of::<Block>() == 120);

/// The calling thread's block, null if it has none. Async-signal-safe: two loads.
#[inline]
pub(super) fn own() -> *mut Block {
    #[expect(clippy::cast_possible_truncation, reason = "x86-64 only")]
    let address = static_tls::BLOCK.get() as usize;
    ptr::with_exposed_provenance_mut(address)
}

fn set_own(block: *mut Block) {
    static_tls::BLOCK.set(block.expose_provenance() as u64);
}

impl Block {
    fn empty() -> Self {
        // SAFETY: an empty name is valid for ever.
        let none = || unsafe { SpanRecord::new([0; 2], 0, "") };
        Self { active: AtomicU32::new(0), tags: TagSetId::EMPTY, halves: [none(), none()] }
    }
}

/// A block that no thread uses; its content is empty.
struct Unused(*mut Block);

// SAFETY: nobody else has the pointer; blocks are plain memory.
unsafe impl Send for Unused {}

/// Blocks of threads that ended.
static UNUSED: Mutex<Vec<Unused>> = Mutex::new(Vec::new());

/// The thread's block, which it gives back when it ends.
static OWN: ThreadWord = ThreadWord::new(Some(give_back));

extern "C" fn give_back(block: *mut c_void) {
    let block = block.cast::<Block>();
    set_own(ptr::null_mut());
    // The handler runs on this thread: in program order it sees no block from here on.
    compiler_fence(Ordering::SeqCst);
    // SAFETY: blocks are never freed, and this one is no thread's any more.
    unsafe { block.write(Block::empty()) };
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner).push(Unused(block));
}

/// The span and tags of the calling thread, as managed code published them.
///
/// Hot: in the signal handler, 2 ns. The span is valid as long as nothing else runs on this thread.
#[inline]
pub(crate) fn context() -> Context {
    // SAFETY: null or a block, and blocks are never freed. Who writes it is this thread, which is not running now.
    let Some(block) = (unsafe { own().as_ref() }) else {
        return Context::NONE;
    };
    let half = &block.halves[(block.active.load(Ordering::Relaxed) & 1) as usize];
    Context { span: if half.span_id() == 0 { ptr::null() } else { half }, tags: block.tags }
}

/// The calling thread's block; it is the thread's until it ends. The first call of a thread also makes it known to the
/// profiler. About 2 ns, the first time some microseconds. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn spanprof_block() -> *mut Block {
    let known = own();
    if !known.is_null() {
        return known;
    }
    let unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let block = unused.map_or_else(|| Box::into_raw(Box::new(Block::empty())), |unused| unused.0);
    // Where there are no more keys nobody takes it back from the thread.
    let _ = OWN.prepare() && OWN.set(block.expose_provenance() as u64);
    set_own(block);
    own_stack::note();
    spanprof_core::thread_started();
    block
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// What managed code does: fill the half that is not current, flip.
    fn publish(block: *mut Block, span_id: u64, name: &'static str) {
        // SAFETY: the block is this thread's.
        let block = unsafe { &mut *block };
        let next = block.active.load(Ordering::Relaxed) ^ 1;
        // SAFETY: the name is static.
        block.halves[next as usize] = unsafe { SpanRecord::new([1, 2], span_id, name) };
        block.active.store(next, Ordering::Relaxed);
    }

    fn span_id() -> u64 {
        // SAFETY: null or this thread's block.
        unsafe { context().span.as_ref() }.map_or(0, SpanRecord::span_id)
    }

    #[test]
    fn the_newest_published_half_is_current_and_id_0_is_no_span() {
        assert_eq!(span_id(), 0);
        let block = spanprof_block();
        assert_eq!(block, spanprof_block());
        for id in [7, 8, 0, 9] {
            publish(block, id, "GET /");
            assert_eq!(span_id(), id);
        }
    }

    #[test]
    fn a_thread_that_ends_leaves_its_block_empty_to_another() {
        let run = || {
            std::thread::spawn(|| {
                assert_eq!(span_id(), 0, "a new thread is in no span");
                let block = spanprof_block();
                assert_eq!(span_id(), 0, "a block that is used again is empty");
                publish(block, 5, "x");
                block as usize
            })
            .join()
            .unwrap()
        };
        let blocks: HashSet<usize> = (0..20).map(|_| run()).collect();
        assert!(blocks.len() < 10, "{} blocks for 20 threads one after the other", blocks.len());
    }
}
