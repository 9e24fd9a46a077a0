//! A word of each thread, and what is called with it as the thread ends.
//!
//! By pthread, and no thread-local: to give one a destructor takes ld.so's lock, so the first touch waits for whoever loads a library, until
//! that library's constructors are over. Threads of a host may come here with the interpreter's lock held.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word of each thread, 0 at first.
#[derive(Debug)]
pub struct ThreadWord {
    /// Its key, plus one; 0: it has none, and reads as 0.
    key: AtomicU64,
    at_end: Option<extern "C" fn(*mut c_void)>,
}

impl ThreadWord {
    /// One that nobody can set yet. `at_end` is called with each thread's word that is not 0, after the destructors of thread-locals, and again
    /// if it is set anew in one that comes later.
    pub const fn new(at_end: Option<extern "C" fn(*mut c_void)>) -> Self {
        Self { key: AtomicU64::new(0), at_end }
    }

    /// Makes it usable, once. False: the process has as many such words as there may be.
    pub fn prepare(&self) -> bool {
        if self.key.load(Ordering::Relaxed) != 0 {
            return true;
        }
        // As pthread's declaration has it.
        let at_end = self.at_end.map(|at_end| at_end as unsafe extern "C" fn(*mut c_void));
        let mut key = 0;
        // SAFETY: a place of ours; the function is there for ever.
        if unsafe { libc::pthread_key_create(&raw mut key, at_end) } != 0 {
            return false;
        }
        if self.key.compare_exchange(0, u64::from(key) + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // SAFETY: just made, and nobody's.
            unsafe { libc::pthread_key_delete(key) };
        }
        true
    }

    /// The calling thread's. 2 ns.
    #[inline]
    pub fn get(&self) -> u64 {
        // SAFETY: a key of ours, which is never deleted.
        self.known_key().map_or(0, |key| unsafe { libc::pthread_getspecific(key) }.addr() as u64)
    }

    /// Sets the calling thread's, which for an address has its provenance exposed. False: there is no memory, or it is not prepared. It may allocate: never from a signal handler.
    pub fn set(&self, word: u64) -> bool {
        self.known_key().is_some_and(|key| {
            #[expect(clippy::cast_possible_truncation, reason = "of 64 bits")]
            let word = ptr::with_exposed_provenance::<c_void>(word as usize);
            // SAFETY: as above.
            unsafe { libc::pthread_setspecific(key, word) == 0 }
        })
    }

    #[inline]
    fn known_key(&self) -> Option<libc::pthread_key_t> {
        libc::pthread_key_t::try_from(self.key.load(Ordering::Relaxed)).ok()?.checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_word_is_its_own_and_is_told_as_it_ends() {
        static ENDED: AtomicU64 = AtomicU64::new(0);
        extern "C" fn at_end(word: *mut c_void) {
            ENDED.fetch_add(word.addr() as u64, Ordering::Relaxed);
        }
        static WORD: ThreadWord = ThreadWord::new(Some(at_end));
        assert!(!WORD.set(1) && WORD.get() == 0, "not prepared");
        assert!(WORD.prepare() && WORD.prepare() && WORD.set(7));
        let other = || (WORD.get(), WORD.set(5), WORD.get());
        assert_eq!(std::thread::spawn(other).join().ok(), Some((0, true, 5)));
        assert_eq!((WORD.get(), ENDED.load(Ordering::Relaxed)), (7, 5));
    }
}
