//! Frames are objects of Ruby's, which are kept alive from the sample on until nobody asks any more what they are called.
//!
//! Two objects of ours are marked by the collector. `rings` marks each frame that was sampled and is not drained yet; it has
//! no write barrier, so it is marked in minor collections too, and it counts collections. `known` pins what was drained in
//! this window and the one before. It has a write barrier and grows old.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use magnus::Error;
use rb_sys::VALUE;
use spanprof_core::FrameId;

use crate::data_type::{DataType, data_type};
use crate::span::record;
use crate::stack::collection::GC_COUNT;
use crate::stack::frame_id::{FIRST_OBJECT, object_of};
use crate::symbols::functions::NAMES;
use crate::value::NIL;

/// The frame ids that [`resolve`](crate::symbols::resolver::resolve) is at, while there is a [`Resolving`]; null at other times.
static RESOLVING: AtomicPtr<u64> = AtomicPtr::new(ptr::null_mut());
static RESOLVING_LENGTH: AtomicUsize = AtomicUsize::new(0);
/// The object that pins.
static mut KNOWN: VALUE = NIL;
static mut RINGS: VALUE = NIL;

static RINGS_TYPE: DataType = data_type(c"pyroscope/rings", mark_rings, 0);
static KNOWN_TYPE: DataType =
    data_type(c"pyroscope/names", mark_known, rb_sys::rbimpl_typeddata_flags::RUBY_TYPED_WB_PROTECTED as VALUE);

/// Makes the two objects, when the extension loads.
pub(crate) fn init() -> Result<(), Error> {
    for (place, data_type) in [(&raw mut RINGS, &RINGS_TYPE), (&raw mut KNOWN, &KNOWN_TYPE)] {
        // SAFETY: a static's address.
        unsafe { rb_sys::rb_gc_register_address(place) };
        let object = magnus::rb_sys::protect(|| {
            // SAFETY: Ruby marks a data object only if it has data: any address that is not null will do.
            let data = ptr::from_ref(data_type).cast_mut().cast();
            // SAFETY: set when Ruby began.
            let class = unsafe { rb_sys::rb_cObject };
            // SAFETY: a class, and a type that stays.
            unsafe { rb_sys::rb_data_typed_object_wrap(class, data, &raw const data_type.0) }
        })?;
        // SAFETY: when the extension loads, one thread runs this.
        unsafe { *place = object };
    }
    Ok(())
}

unsafe extern "C" fn mark_rings(_: *mut c_void) {
    // What a frame id meant may be another function's from here on, unless it is marked.
    GC_COUNT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: collections run with the GVL held, and rings are drained with it alone.
    unsafe { spanprof_core::for_each_pending_frame(mark_frame) };
    let ids = RESOLVING.load(Ordering::Relaxed);
    if !ids.is_null() {
        // SAFETY: a `Resolving` borrows so many until its drop clears the pointer; it is on a thread that waits for
        // this collection, or that runs it.
        unsafe { std::slice::from_raw_parts(ids, RESOLVING_LENGTH.load(Ordering::Relaxed)) }
            .iter()
            .copied()
            .for_each(mark_frame);
    }
    record::for_each_object(|object| {
        // SAFETY: within marking; what is no object is left alone.
        unsafe { rb_sys::rb_gc_mark_maybe(object) };
    });
}

fn mark_frame(id: FrameId) {
    if id & ((1 << 45) - 1) >= FIRST_OBJECT {
        // SAFETY: within marking; `maybe` as a torn stack may hold what is no object.
        unsafe { rb_sys::rb_gc_mark_maybe(object_of(id)) };
    }
}

unsafe extern "C" fn mark_known(_: *mut c_void) {
    // SAFETY: a collection runs, so nobody is in `with_names`.
    let names = unsafe { &*NAMES.0.get() };
    for object in names.iter().flat_map(|names| names.current.keys().chain(names.previous.keys())) {
        // SAFETY: within marking; each was checked to be a frame and has been marked ever since.
        unsafe { rb_sys::rb_gc_mark(*object) };
    }
}

/// Frames that collections mark while it lives; a panic ends it too.
pub(super) struct Resolving<'a>(pub(super) &'a [u64]);

impl<'a> Resolving<'a> {
    pub(super) fn new(ids: &'a [FrameId]) -> Self {
        RESOLVING_LENGTH.store(ids.len(), Ordering::Relaxed);
        RESOLVING.store(ids.as_ptr().cast_mut(), Ordering::Relaxed);
        Resolving(ids)
    }
}

impl Drop for Resolving<'_> {
    fn drop(&mut self) {
        RESOLVING.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// # Safety
/// `object` is alive, and the GVL is held.
pub(super) unsafe fn write_barrier(object: VALUE) {
    // SAFETY: written once, when the extension loaded.
    let known = unsafe { KNOWN };
    // SAFETY: as the caller promises.
    unsafe { rb_sys::rb_gc_writebarrier(known, object) };
}
