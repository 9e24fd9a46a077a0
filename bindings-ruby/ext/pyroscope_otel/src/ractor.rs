//! Ractors: which one calls, and which methods may be called in all of them.

use std::ptr;
use std::sync::OnceLock;

use rb_sys::rb_ractor_local_key_t;

/// Notes that the calling Ractor, which loads the extension, is the main one.
pub(crate) fn init() {
    // SAFETY: no type: what it keeps is a number.
    let key = unsafe { rb_sys::rb_ractor_local_storage_ptr_newkey(ptr::null()) };
    // SAFETY: a key of our own.
    unsafe { rb_sys::rb_ractor_local_storage_ptr_set(key, ptr::without_provenance_mut(1)) };
    let _ = MAIN_RACTOR.set(Key(key));
}

struct Key(rb_ractor_local_key_t);

// SAFETY: an address that stays; what is behind it is Ruby's, and each Ractor asks for its own.
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

/// Under which the main Ractor, and no other, has something.
static MAIN_RACTOR: OnceLock<Key> = OnceLock::new();

/// Whether the calling thread is one of the main Ractor's: only there the program's objects and our tables may be used.
pub(crate) fn is_main_ractor() -> bool {
    // SAFETY: called by Ruby, with a key of our own.
    MAIN_RACTOR.get().is_none_or(|key| !unsafe { rb_sys::rb_ractor_local_storage_ptr(key.0) }.is_null())
}

/// Methods that `define` defines may be called in all Ractors; others raise there.
pub(crate) fn ractor_safely<T>(define: impl FnOnce() -> T) -> T {
    // SAFETY: notes it with the calling thread, which is Ruby's.
    unsafe { rb_sys::rb_ext_ractor_safe(true) };
    let defined = define();
    // SAFETY: as above.
    unsafe { rb_sys::rb_ext_ractor_safe(false) };
    defined
}
