//! What slots say, saved with Ruby threads, where native threads run many of them (RUBY_MN_THREADS=1): the next native thread
//! that goes on with one copies it back. The handler asks [`is_switching`].

use std::ffi::c_int;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use rb_sys::VALUE;
use spanprof_core::TagSetId;

use crate::span::record::{self, Ids, Slot};

static ON: AtomicBool = AtomicBool::new(false);
static KEY: OnceLock<c_int> = OnceLock::new();

/// What a slot says, where another native thread may go on with a Ruby thread.
#[derive(Debug, Default)]
struct Saved {
    span: Option<(Ids, Vec<u8>)>,
    tags: TagSetId,
}

impl Slot {
    /// Own thread only, as the next.
    fn save(&self, saved: &mut Saved) {
        saved.span = self.span().map(|(ids, name)| (ids, name.to_vec()));
        saved.tags = self.tags();
    }

    /// Speaks for a Ruby thread from now on.
    fn restore(&self, saved: Option<&Saved>) {
        match saved.and_then(|saved| saved.span.as_ref()) {
            // Where native threads are shared no waits are measured.
            Some((ids, name)) => self.publish(*ids, name, ptr::null()),
            None => self.clear(),
        }
        self.set_tags(saved.map_or(TagSetId::EMPTY, |saved| saved.tags));
        // Last: until here samples wait.
        compiler_fence(Ordering::SeqCst);
        self.set_saved_in(saved.map_or(ptr::null(), ptr::from_ref));
    }

    /// Says which Ruby thread the slot speaks for.
    fn set_saved_in(&self, saved: *const Saved) {
        self.saved_in.store(saved.addr(), Ordering::Relaxed);
    }

    /// Whether the slot speaks for the Ruby thread with which this is saved. For handlers too.
    #[inline]
    fn is_saved_in(&self, saved: *const Saved) -> bool {
        self.saved_in.load(Ordering::Relaxed) == saved.addr()
    }
}

/// Saves from here on. With the GVL held.
pub(crate) fn begin() {
    // SAFETY: called with the GVL held; keys are never given back, and this one is made once.
    KEY.get_or_init(|| unsafe { rb_sys::rb_internal_thread_specific_key_create() });
    ON.store(true, Ordering::Relaxed);
}

/// No more. The blocks stay with their threads until they are saved again, and then are freed as those end.
pub(crate) fn end() {
    ON.store(false, Ordering::Relaxed);
}

/// Whether native threads run many Ruby threads each.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Whether the calling thread's slot speaks for another Ruby thread than the one that runs: where native threads are shared,
/// between the interpreter's switch and our hook's. For handlers.
#[inline]
pub(crate) fn is_switching(running: impl FnOnce() -> Option<VALUE>) -> bool {
    if !is_on() {
        return false;
    }
    let (Some(key), Some(thread)) = (KEY.get(), running()) else { return false };
    // SAFETY: async-signal-safe, says Ruby's documentation; the thread that runs and our own key.
    let saved = unsafe { rb_sys::rb_internal_thread_specific_get(thread, *key) }.cast::<Saved>();
    record::own().map_or(!saved.is_null(), |slot| !slot.is_saved_in(saved))
}

/// Notes what the slot says with the Ruby thread too, where another native thread may go on with it.
pub(crate) fn save(slot: &Slot) {
    let (true, Some(key)) = (ON.load(Ordering::Relaxed), KEY.get()) else { return };
    // SAFETY: called with the GVL held by a Ruby thread.
    let thread = unsafe { rb_sys::rb_thread_current() };
    // SAFETY: a thread and our own key.
    let known = unsafe { rb_sys::rb_internal_thread_specific_get(thread, *key) }.cast::<Saved>();
    // SAFETY: what this key holds came from the Box below.
    match unsafe { known.as_mut() } {
        Some(saved) => {
            slot.save(saved);
            slot.set_saved_in(saved);
        }
        None => {
            let mut saved = Box::new(Saved::default());
            slot.save(&mut saved);
            let saved = Box::into_raw(saved);
            // SAFETY: as above; freed when the thread ends.
            unsafe { rb_sys::rb_internal_thread_specific_set(thread, *key, saved.cast()) };
            slot.set_saved_in(saved);
        }
    }
}

/// A Ruby thread goes on, on the calling native thread.
///
/// # Safety
/// `thread` is that Ruby thread.
pub(crate) unsafe fn restore(thread: VALUE) {
    let (Some(key), Some(slot)) = (KEY.get(), record::own_or_claim()) else { return };
    // SAFETY: a thread and our own key.
    let saved = unsafe { rb_sys::rb_internal_thread_specific_get(thread, *key) }.cast::<Saved>();
    // SAFETY: null, or what `save` made.
    slot.restore(unsafe { saved.as_ref() });
}

/// A Ruby thread ends, on the calling native thread.
///
/// # Safety
/// `thread` is that Ruby thread.
pub(crate) unsafe fn forget(thread: VALUE) {
    let Some(key) = KEY.get() else { return };
    // SAFETY: a thread and our own key.
    let saved = unsafe { rb_sys::rb_internal_thread_specific_get(thread, *key) }.cast::<Saved>();
    // SAFETY: as above.
    unsafe { rb_sys::rb_internal_thread_specific_set(thread, *key, ptr::null_mut()) };
    if let Some(slot) = record::own() {
        slot.set_saved_in(ptr::null());
    }
    if !saved.is_null() {
        // SAFETY: it came from a Box, and nobody else has it any more.
        drop(unsafe { Box::from_raw(saved) });
    }
}
