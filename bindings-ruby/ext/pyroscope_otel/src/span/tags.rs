//! Tags of samples. Those that follow the execution context lie in a variable of the Fiber that no method shows, and the
//! slot has a copy for the handler: an object of ours, which lets go of an interned set when the block ends, or when the
//! collector takes it, as the fiber never came to the end of its block. Those of threads are kept by the engine.
//!
//! A name that no server takes is left out and reported once: what is inside a `tag_wrapper` has to run. So it does without tags
//! where there can be none: in Ractors other than the main one, and in a frozen fiber.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, RHash, RModule, Ruby, Value};
use rb_sys::{ID, VALUE};
use spanprof_core::host::report;
use spanprof_core::{TagSetId, may_be_a_tag};

use crate::data_type::{DataType, data_type};
use crate::errors::{guard, not_allowed, raising};
use crate::ractor::is_main_ractor;
use crate::span::{record, saved};
use crate::strings::pairs;
use crate::value::{FALSE, Gvl, NIL, TRUE, id};

/// Whether any tags were ever set, so that programs without tags do not pay for looking.
static ARE_USED: AtomicBool = AtomicBool::new(false);

#[inline]
pub(crate) fn are_used() -> bool {
    ARE_USED.load(Ordering::Relaxed)
}

fn variable() -> ID {
    static VARIABLE: OnceLock<ID> = OnceLock::new();
    *VARIABLE.get_or_init(|| id("__pyroscope_tags"))
}

/// A set for as long as a block runs, and what was there before.
struct Held {
    /// Its number; 0 when it was let go.
    set: AtomicU32,
    /// Another such object, or nil.
    outer: VALUE,
}

static HELD_TYPE: DataType = {
    let mut data_type =
        data_type(c"pyroscope/tags", mark, rb_sys::rbimpl_typeddata_flags::RUBY_TYPED_FREE_IMMEDIATELY as VALUE);
    data_type.0.function.dfree = Some(free);
    data_type
};

unsafe extern "C" fn mark(held: *mut c_void) {
    // SAFETY: what `hold` made.
    let held = unsafe { &*held.cast::<Held>() };
    // SAFETY: within marking.
    unsafe { rb_sys::rb_gc_mark(held.outer) };
}

/// Within a collection: nothing of Ruby's is called, and whoever has the lock of the sets holds it for a moment, without Ruby.
unsafe extern "C" fn free(held: *mut c_void) {
    // SAFETY: what `hold` made, and nobody refers to it any more.
    unsafe { Box::from_raw(held.cast::<Held>()) }.let_go();
}

impl Held {
    fn set(&self) -> TagSetId {
        TagSetId::from_number(self.set.load(Ordering::Relaxed))
    }

    /// Once, however often it is called.
    fn let_go(&self) {
        let set = TagSetId::from_number(self.set.swap(0, Ordering::Relaxed));
        if set != TagSetId::EMPTY {
            set.release();
        }
    }
}

/// The object that holds a set; it may be made by no one else. An error: there is no memory for it.
fn hold(set: TagSetId, outer: VALUE) -> Result<VALUE, Error> {
    let held = Box::into_raw(Box::new(Held { set: AtomicU32::new(set.number()), outer }));
    let made = magnus::rb_sys::protect(|| {
        // SAFETY: set when Ruby began.
        let class = unsafe { rb_sys::rb_cObject };
        // SAFETY: a class, a type that stays, and data that it frees. `outer` is the fiber's until this one is.
        unsafe { rb_sys::rb_data_typed_object_wrap(class, held.cast(), &raw const HELD_TYPE.0) }
    });
    if made.is_err() {
        // SAFETY: made above, and nobody has it.
        unsafe { free(held.cast()) };
    }
    made
}

/// What an object holds, if it is one of ours. Not beyond the next call of Ruby's that may collect.
fn held<'a>(_: Gvl, object: VALUE) -> Option<&'a Held> {
    // SAFETY: any value of Ruby's may be asked.
    if unsafe { rb_sys::rb_typeddata_is_kind_of(object, &raw const HELD_TYPE.0) } == 0 {
        return None;
    }
    // SAFETY: of this type, so it raises nothing.
    let data = unsafe { rb_sys::rb_check_typeddata(object, &raw const HELD_TYPE.0) };
    // SAFETY: what `hold` made.
    unsafe { data.cast::<Held>().as_ref() }
}

/// The tags of the fiber that runs.
pub(crate) fn of_fiber(gvl: Gvl) -> TagSetId {
    held(gvl, gvl.fiber_ivar(variable())).map_or(TagSetId::EMPTY, Held::set)
}

/// Tags of the fiber that runs are those that samples carry.
pub(crate) fn republish(gvl: Gvl) {
    if are_used()
        && let Some(slot) = record::own_or_claim()
    {
        slot.set_tags(of_fiber(gvl));
        saved::save(slot);
    }
}

/// Gives the fiber that runs this object, or nil; false: it is frozen.
fn make_current(gvl: Gvl, object: VALUE) -> Result<bool, Error> {
    // SAFETY: called by a Ruby method on a Ruby thread.
    let fiber = unsafe { rb_sys::rb_fiber_current() };
    // SAFETY: an object.
    if unsafe { rb_sys::rb_obj_frozen_p(fiber) } != FALSE {
        return Ok(false);
    }
    // SAFETY: what it raises, as there is no memory, is caught.
    magnus::rb_sys::protect(|| unsafe { rb_sys::rb_ivar_set(fiber, variable(), object) })?;
    republish(gvl);
    Ok(true)
}

/// `tags_within`: runs its block with tags added to those of the fiber that runs, and gives the fiber back what it had. The block
/// is told whether there are tags.
///
/// All of it is one method, as Ruby looks for interrupts (`Timeout`, `Thread#raise`) wherever a method returns: what entering
/// returned would be lost, and leaving be left out.
unsafe extern "C" fn within(_native: VALUE, tags: VALUE) -> VALUE {
    // SAFETY: a method called by Ruby.
    let gvl = unsafe { Gvl::held() };
    // SAFETY: nothing here has a destructor.
    let inner = unsafe { raising(|| enter(gvl, tags)) };
    if held(gvl, inner).is_none() {
        // SAFETY: the method's own block; without one Ruby raises.
        return unsafe { rb_sys::rb_yield(FALSE) };
    }
    // SAFETY: functions that stay. What the block raises or throws jumps over this frame, where nothing has a destructor.
    unsafe { rb_sys::rb_ensure(Some(rb_sys::rb_yield), TRUE, Some(leave), inner) }
}

/// Adds tags to those of the fiber that runs. Returns what [`leave`] is to be given; nil: there can be no tags here.
fn enter(gvl: Gvl, tags: VALUE) -> Result<VALUE, Error> {
    // SAFETY: called by Ruby.
    let ruby = unsafe { Ruby::get_unchecked() };
    if !is_main_ractor() {
        return Ok(NIL);
    }
    // SAFETY: an argument of the method that runs.
    let tags = unsafe { Value::from_raw(tags) };
    let Some(tags) = RHash::from_value(tags) else { return Err(not_allowed(&ruby, "tag_wrapper", tags, "a Hash")) };
    let mut tags = pairs(&ruby, "tag_wrapper", tags)?;
    tags.retain(|(name, _)| may_be_a_tag("tag_wrapper", name, report));
    ARE_USED.store(true, Ordering::Relaxed);
    let outer = gvl.fiber_ivar(variable());
    let inner = hold(of_fiber(gvl).with(&tags), outer)?;
    // Last: from here on the caller has to leave.
    Ok(if make_current(gvl, inner)? { inner } else { NIL })
}

/// The fiber that runs has again what it had before the [`enter`] that returned this.
unsafe extern "C" fn leave(inner: VALUE) -> VALUE {
    // SAFETY: called by Ruby.
    let gvl = unsafe { Gvl::held() };
    let give_back = || {
        if let Some(inner) = held(gvl, inner) {
            inner.let_go();
            if !make_current(gvl, inner.outer)? {
                // It was frozen meanwhile, and what it still has holds nothing any more.
                republish(gvl);
            }
        }
        Ok(())
    };
    // SAFETY: nothing here has a destructor.
    unsafe { raising(give_back) };
    NIL
}

/// Defines `tags_within`.
pub(crate) fn define(native: RModule) {
    // SAFETY: Ruby calls a singleton method of arity 1 with these two arguments.
    let method = unsafe {
        std::mem::transmute::<unsafe extern "C" fn(VALUE, VALUE) -> VALUE, unsafe extern "C" fn() -> VALUE>(within)
    };
    // SAFETY: a module, and a name that ends with NUL.
    unsafe { rb_sys::rb_define_singleton_method(native.as_raw(), c"tags_within".as_ptr(), Some(method), 1) };
}

/// Adds a tag to the calling thread's samples; false = no profiler runs, or the name is not allowed.
pub(crate) fn add_to_thread(ruby: &Ruby, name: String, value: String) -> Result<bool, Error> {
    guard(ruby, || Ok(may_be_a_tag("_add_tags", &name, report) && spanprof_core::add_thread_tag(&name, &value)))
}

/// Takes back the last [`add_to_thread`] of the same name and value; false = no profiler runs.
pub(crate) fn remove_from_thread(ruby: &Ruby, name: String, value: String) -> Result<bool, Error> {
    guard(ruby, || Ok(spanprof_core::remove_thread_tag(&name, &value)))
}
