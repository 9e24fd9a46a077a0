//! ld.so's lock of its list of modules.
//!
//! Who opens or closes a module holds it, and who asks for the list by `dl_iterate_phdr`, also while it calls the program for each module.
//! That may wait for the interpreter's lock (Python's threadpoolctl asks so), which who looks up a function may hold, and who forks, for which
//! this folder's own lock is taken. So we take it only where it is free, but for a thread that looks where it is, at a process's first start.
//!
//! glibc makes the other locks of ld.so anew in a forked child, and not this one: where another thread of the parent's held it, it is held
//! for ever, by nobody who is there. So a child looks at it, while it has one thread, and does not ask for modules where it is held. Where the
//! lock is glibc does not say, so it is found by what it counts. musl makes its own anew, and this finds nothing there.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::{mem, ptr, slice};

use libc::dl_phdr_info;

use super::elf::word;
use crate::os::thread_id::tid;

/// The beginning of a mutex of glibc's that one thread may lock several times.
#[repr(C)]
struct Mutex {
    /// 0: nobody has it.
    lock: AtomicI32,
    count: AtomicI32,
    owner: AtomicI32,
}

static LOCK: AtomicPtr<Mutex> = AtomicPtr::new(ptr::null_mut());
static IS_STUCK: AtomicBool = AtomicBool::new(false);

/// Looks for the lock, once a process, and waits for it.
pub(super) fn find() {
    if LOCK.load(Ordering::Relaxed).is_null() {
        // SAFETY: the callback takes nothing, and asks again from within, as ld.so allows.
        unsafe { libc::dl_iterate_phdr(Some(ask_again), ptr::null_mut()) };
    }
}

/// The lock, or nothing where it is not known. Who has it asks for modules without waiting.
#[derive(Debug)]
pub(super) struct Held(*mut Mutex);

impl Drop for Held {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: ld.so's, which stays, and this thread locked it.
            unsafe { libc::pthread_mutex_unlock(self.0.cast()) };
        }
    }
}

/// Takes the lock where nobody else has it. Waits for nobody.
pub(super) fn try_hold() -> Option<Held> {
    let lock = LOCK.load(Ordering::Relaxed);
    if is_stuck() {
        return None;
    }
    // SAFETY: null, or ld.so's, which stays.
    let is_held = lock.is_null() || unsafe { libc::pthread_mutex_trylock(lock.cast()) } == 0;
    is_held.then(|| Held(lock))
}

/// Whether this process was forked while another thread held the lock: the list of modules is not to be asked for.
pub(super) fn is_stuck() -> bool {
    IS_STUCK.load(Ordering::Relaxed)
}

/// In a forked child, before it has a second thread.
pub(crate) fn look() {
    // SAFETY: ld.so's, and it stays.
    let lock = unsafe { LOCK.load(Ordering::Relaxed).as_ref() };
    let is_stuck = lock.is_some_and(|lock| lock.lock.load(Ordering::Relaxed) != 0);
    IS_STUCK.store(is_stuck, Ordering::Relaxed);
}

/// This thread holds the lock twice now, and no other one so.
unsafe extern "C" fn ask_again(_: *mut dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: as in `find`.
    unsafe { libc::dl_iterate_phdr(Some(find_in), ptr::null_mut()) };
    1
}

/// Called for each module: looks for the lock in what ld.so can write.
unsafe extern "C" fn find_in(info: *mut dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: valid for the call.
    let info = unsafe { &*info };
    // SAFETY: getauxval may be called at any time.
    if word(info.dlpi_addr) != word(unsafe { libc::getauxval(libc::AT_BASE) }) {
        return 0;
    }
    let own = tid();
    // SAFETY: there are so many.
    for header in unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) } {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W == 0 {
            continue;
        }
        let start = word(info.dlpi_addr + header.p_vaddr).next_multiple_of(mem::align_of::<usize>());
        let end = word(info.dlpi_addr + header.p_vaddr + header.p_memsz);
        for place in (start..end.saturating_sub(mem::size_of::<Mutex>())).step_by(mem::align_of::<usize>()) {
            let mutex = ptr::with_exposed_provenance_mut::<Mutex>(place);
            // SAFETY: within what is mapped; others write it word by word.
            let Mutex { lock, count, owner } = unsafe { &*mutex };
            let [lock, count, owner] = [lock, count, owner].map(|word| word.load(Ordering::Relaxed));
            if lock != 0 && count == 2 && owner == own {
                LOCK.store(mutex, Ordering::Relaxed);
            }
        }
    }
    1
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_taken_where_nobody_else_has_it() {
        unsafe extern "C" fn tries(_: *mut dl_phdr_info, _: usize, tried: *mut c_void) -> c_int {
            let try_here = || try_hold().is_some();
            let elsewhere = std::thread::scope(|scope| scope.spawn(try_here).join().unwrap());
            // SAFETY: the place that is passed below.
            unsafe { *tried.cast() = [try_here(), elsewhere] };
            1
        }
        find();
        let mut tried = [false; 2];
        // SAFETY: the callback takes what is passed.
        unsafe { libc::dl_iterate_phdr(Some(tries), (&raw mut tried).cast()) };
        assert_eq!(tried, [true, false]);
        std::thread::scope(|scope| assert!(scope.spawn(|| try_hold().is_some()).join().unwrap(), "it was given back"));
    }

    #[test]
    fn the_lock_that_is_found_is_held_by_who_asks_for_modules() {
        unsafe extern "C" fn owner(_: *mut dl_phdr_info, _: usize, owner: *mut c_void) -> c_int {
            // SAFETY: what `find` found.
            let lock = unsafe { LOCK.load(Ordering::Relaxed).as_ref() };
            // SAFETY: the place that is passed below.
            unsafe { *owner.cast() = lock.map_or(0, |lock| lock.owner.load(Ordering::Relaxed)) };
            1
        }
        find();
        let mut found = 0;
        // SAFETY: the callback takes what is passed.
        unsafe { libc::dl_iterate_phdr(Some(owner), (&raw mut found).cast()) };
        assert_eq!(found, tid());
    }
}
