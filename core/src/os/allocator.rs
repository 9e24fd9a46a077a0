//! The allocator of the packages: malloc, and a reserve for the time in which the program has used up its memory.
//!
//! Many a program lives on where an allocation fails: Python raises MemoryError, Ruby NoMemoryError. Rust ends the process. So where
//! malloc has nothing for us, the reserve has; and who keeps much asks [`is_short`] and lets it go.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Malloc with a reserve of 2 MiB, for a library that must not end its host: the packages declare one as
/// `#[global_allocator]`. The reserve takes addresses at once and memory when it is needed; it costs a comparison a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

/// Pools of the reserve. What lives long keeps one of them from being whole again, not all.
const POOLS: usize = 4;
const POOL_BYTES: usize = 512 * 1024;
/// What malloc must have again for the shortage to be over: less than what it maps.
const ENOUGH: usize = 96 * 1024;

#[repr(C, align(4096))]
struct Memory(UnsafeCell<[[u8; POOL_BYTES]; POOLS]>);

// SAFETY: bytes of it belong to who was given them.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([[0; POOL_BYTES]; POOLS]));
static RESERVE: Reserve = Reserve::new();
/// Malloc failed, and was not seen to have memory since.
static SHORT: AtomicBool = AtomicBool::new(false);

/// Whether malloc has no memory. Tries it if it had none when last asked; from one thread of the profiler's.
pub(crate) fn is_short() -> bool {
    if was_short() && has(ENOUGH) {
        SHORT.store(false, Ordering::Relaxed);
    }
    was_short()
}

/// Whether malloc has so many bytes, at this instant. Of much it is asked for a part, and the kernel for all: where malloc itself mapped
/// and unmapped as much, it would from then on keep blocks of the program's up to that size on its heap, which it maps today.
pub(crate) fn has(bytes: usize) -> bool {
    // SAFETY: it only asks, and frees what it gets.
    let had = unsafe { libc::malloc(bytes.min(ENOUGH)) };
    // SAFETY: null or of malloc.
    unsafe { libc::free(had) };
    if had.is_null() || bytes <= ENOUGH {
        return !had.is_null();
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which nobody knows of.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if mapped != libc::MAP_FAILED {
        // SAFETY: made above, not used.
        unsafe { libc::munmap(mapped, bytes) };
    }
    mapped != libc::MAP_FAILED
}

/// Whether malloc had none when last asked: what a sample costs, not more.
pub(crate) fn was_short() -> bool {
    SHORT.load(Ordering::Relaxed)
}

// SAFETY: memory is malloc's or the reserve's, of which no byte is given to two; each goes back where it came from.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let memory = unsafe { System.alloc(layout) };
        if memory.is_null() { from_reserve(layout) } else { memory }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match pool_of(memory) {
            Some(pool) => RESERVE.put(pool),
            // SAFETY: the caller's promise, and it is not the reserve's.
            None => unsafe { System.dealloc(memory, layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            return memory;
        }
        let memory = from_reserve(layout);
        if !memory.is_null() {
            // SAFETY: as long as the layout says.
            unsafe { ptr::write_bytes(memory, 0, layout.size()) };
        }
        memory
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if pool_of(memory).is_none() {
            // SAFETY: the caller's promise, and it is not the reserve's.
            let moved = unsafe { System.realloc(memory, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.moved(memory, layout, size) }
    }
}

impl Allocator {
    /// What realloc does where malloc cannot: another place, a copy, and the old one given back.
    #[cold]
    unsafe fn moved(self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller of realloc promises that the size can be had with this alignment, and is not 0.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as above.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both are as long as that, and one is new.
            unsafe { ptr::copy_nonoverlapping(memory, moved, layout.size().min(size)) };
            // SAFETY: the caller's promise; it is not used any more.
            unsafe { self.dealloc(memory, layout) };
        }
        moved
    }
}

#[cold]
fn from_reserve(layout: Layout) -> *mut u8 {
    SHORT.store(true, Ordering::Relaxed);
    reserved(layout)
}

fn reserved(layout: Layout) -> *mut u8 {
    match RESERVE.take(layout) {
        Some(offset) => MEMORY.0.get().cast::<u8>().wrapping_add(offset),
        None => ptr::null_mut(),
    }
}

/// The pool that an address lies in.
#[inline]
fn pool_of(memory: *const u8) -> Option<usize> {
    let offset = memory.addr().wrapping_sub(MEMORY.0.get().addr());
    (offset < POOLS * POOL_BYTES).then_some(offset / POOL_BYTES)
}

/// Who has what of each pool: how many blocks are in use, above the bytes that were given out. A pool is whole again when its
/// last block comes back. Without a lock, which a fork could leave taken.
#[derive(Debug)]
struct Reserve([AtomicU64; POOLS]);

const ONE_BLOCK: u64 = 1 << 32;
const GIVEN: u64 = ONE_BLOCK - 1;

impl Reserve {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; POOLS])
    }

    /// The offset of so many bytes, which nobody else has.
    fn take(&self, layout: Layout) -> Option<usize> {
        if layout.align() > align_of::<Memory>() {
            return None;
        }
        self.0.iter().enumerate().find_map(|(pool, state)| {
            let mut begin = 0;
            let take = |state: u64| {
                begin = usize::try_from(state & GIVEN).ok()?.checked_next_multiple_of(layout.align())?;
                let end = begin.checked_add(layout.size()).filter(|end| *end <= POOL_BYTES)?;
                Some((state & !GIVEN) + ONE_BLOCK + end as u64)
            };
            // Acquire pairs with put()'s Release: who had these bytes before is done with them.
            state.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?;
            Some(pool * POOL_BYTES + begin)
        })
    }

    /// Takes one block of a pool back.
    fn put(&self, pool: usize) {
        let put = |state: u64| {
            let left = state.checked_sub(ONE_BLOCK)?;
            Some(if left < ONE_BLOCK { 0 } else { left })
        };
        if let Some(state) = self.0.get(pool) {
            let _ = state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, put);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn blocks_are_aligned_and_apart_and_a_pool_is_whole_again_after_its_last() {
        let reserve = Reserve::new();
        assert_eq!(reserve.take(layout(3, 1)), Some(0));
        assert_eq!(reserve.take(layout(8, 64)), Some(64));
        assert_eq!(reserve.take(layout(1, 4096)), Some(4096));
        reserve.put(0);
        reserve.put(0);
        assert_eq!(reserve.take(layout(1, 1)), Some(4097));
        reserve.put(0);
        reserve.put(0);
        assert_eq!(reserve.take(layout(5, 1)), Some(0));
    }

    #[test]
    fn what_lives_long_keeps_one_pool_and_what_is_too_large_has_none() {
        let reserve = Reserve::new();
        let whole = layout(POOL_BYTES, 4096);
        assert_eq!(reserve.take(layout(1, 1)), Some(0));
        for pool in 1..POOLS {
            assert_eq!(reserve.take(whole), Some(pool * POOL_BYTES));
        }
        assert_eq!(reserve.take(whole), None);
        reserve.put(2);
        assert_eq!(reserve.take(whole), Some(2 * POOL_BYTES));
        assert_eq!(reserve.take(layout(POOL_BYTES + 1, 1)), None);
        assert_eq!(reserve.take(layout(1, 8192)), None, "the reserve itself is not aligned so");
    }

    #[test]
    fn no_byte_is_given_to_two_threads() {
        static RESERVE: Reserve = Reserve::new();
        static OWNERS: [AtomicUsize; POOLS * POOL_BYTES / 64] =
            [const { AtomicUsize::new(0) }; POOLS * POOL_BYTES / 64];
        let work = |own: usize| {
            for round in 0..50_000 {
                let blocks = 1 + (round * own) % 700;
                let Some(offset) = RESERVE.take(layout(64 * blocks, 64)) else { continue };
                let cells = OWNERS.iter().skip(offset / 64).take(blocks);
                for cell in cells.clone() {
                    assert_eq!(cell.swap(own, Ordering::Relaxed), 0);
                }
                for cell in cells {
                    assert_eq!(cell.swap(0, Ordering::Relaxed), own);
                }
                RESERVE.put(offset / POOL_BYTES);
            }
        };
        thread::scope(|scope| {
            for own in 1..=8 {
                scope.spawn(move || work(own));
            }
        });
        assert_eq!(RESERVE.take(layout(1, 1)), Some(0), "all of it came back");
    }

    #[test]
    fn what_the_reserve_gave_grows_and_goes_back_to_it() {
        let small = layout(100, 8);
        let memory = reserved(small);
        assert_eq!(pool_of(memory), Some(0));
        // SAFETY: 100 bytes of ours.
        unsafe { ptr::write_bytes(memory, 7, 100) };
        // SAFETY: it has this layout.
        let grown = unsafe { Allocator.realloc(memory, small, 5_000) };
        assert_eq!(pool_of(grown), None, "malloc has memory");
        // SAFETY: 5,000 bytes of ours, of which 100 were copied.
        assert_eq!(unsafe { grown.wrapping_add(99).read() }, 7);
        // SAFETY: it has this layout.
        unsafe { Allocator.dealloc(grown, layout(5_000, 8)) };
        assert_eq!(RESERVE.0[0].load(Ordering::Relaxed), 0);
    }
}
