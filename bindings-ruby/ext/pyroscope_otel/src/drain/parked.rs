//! The Ruby thread of ours that is parked outside the GVL until the bell rings, and then drains.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Module, RClass, Ruby, Value};
use rb_sys::VALUE;

use crate::drain::bell;
use crate::drain::rings::drain;
use crate::errors::{is_thread_error, quietly};
use crate::stack::gvl;
use crate::value::NIL;

/// Which parked thread is the one; others end.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// It is there.
static IS_PARKED: AtomicBool = AtomicBool::new(false);

/// Sees to it that the parked thread is there.
pub(crate) fn park() -> Result<(), Error> {
    if IS_PARKED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let made = magnus::rb_sys::protect(|| {
        // SAFETY: a function that stays; its argument is a number.
        unsafe { rb_sys::rb_thread_create(Some(run), ptr::without_provenance_mut(generation as usize)) }
    });
    let described = made.and_then(|thread| {
        // SAFETY: a Thread that was just made.
        let thread = unsafe { Value::from_raw(thread) };
        thread.funcall::<_, _, Value>("name=", ("pyroscope",))?;
        thread.funcall::<_, _, Value>("report_on_exception=", (false,))?;
        leave_group(thread)
    });
    if described.is_err() {
        IS_PARKED.store(false, Ordering::Relaxed);
    }
    described
}

/// Whoever starts the profiler may wait for the threads of its group, which this one is in: it goes to the one that all begin in.
fn leave_group(thread: Value) -> Result<(), Error> {
    let groups: RClass = Ruby::get_with(thread).class_object().const_get("ThreadGroup")?;
    let first: Value = groups.const_get("Default")?;
    match first.funcall::<_, _, Value>("add", (thread,)) {
        // The group is enclosed: nobody leaves it.
        Err(error) if is_thread_error(&error) => Ok(()),
        added => added.map(drop),
    }
}

/// The same, if Ruby can make a thread.
pub(crate) fn park_if_possible() -> Result<(), Error> {
    match park() {
        Err(error) if is_thread_error(&error) => Ok(()),
        parked => parked,
    }
}

/// Ends the parked thread.
pub(crate) fn unpark() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    IS_PARKED.store(false, Ordering::Relaxed);
    bell::ring();
}

/// In a forked child, which has none.
pub(super) fn forget() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    IS_PARKED.store(false, Ordering::Relaxed);
}

unsafe extern "C" fn run(generation: *mut c_void) -> VALUE {
    let generation = generation.addr() as VALUE;
    // SAFETY: two functions that take the number; the second runs however the first is left, by a kill too.
    unsafe { rb_sys::rb_ensure(Some(unmask), generation, Some(left), generation) }
}

/// A thread inherits what its maker defers (`Thread.handle_interrupt`). Nothing is deferred here, or nobody could end this one.
unsafe extern "C" fn unmask(generation: VALUE) -> VALUE {
    // Nothing with a destructor lives here, as a kill jumps.
    // SAFETY: called by Ruby, with the GVL held, and the name ends.
    let id = |name: &CStr| unsafe { rb_sys::rb_intern(name.as_ptr()) };
    let (immediate, handle_interrupt) = (id(c"immediate"), id(c"handle_interrupt"));
    // SAFETY: as above, and Ruby has this number.
    let immediate = unsafe { rb_sys::rb_id2sym(immediate) };
    // SAFETY: Ruby's classes have been there since it started.
    let object = unsafe { rb_sys::rb_cObject };
    // SAFETY: as above.
    let thread = unsafe { rb_sys::rb_cThread };
    // SAFETY: as above.
    let mask = unsafe { rb_sys::rb_hash_new() };
    // SAFETY: as above, with a hash that nobody else knows.
    unsafe { rb_sys::rb_hash_aset(mask, object, immediate) };
    // SAFETY: as above, with one argument. The block takes the number, which Ruby looks at only to see that it is no object.
    unsafe { rb_sys::rb_block_call(thread, handle_interrupt, 1, &raw const mask, Some(stay_in_block), generation) }
}

unsafe extern "C" fn stay_in_block(_: VALUE, generation: VALUE, _: c_int, _: *const VALUE, _: VALUE) -> VALUE {
    // SAFETY: as the caller's.
    unsafe { stay(generation) }
}

fn number(generation: VALUE) -> u32 {
    u32::try_from(generation).unwrap_or(0)
}

unsafe extern "C" fn stay(generation: VALUE) -> VALUE {
    // Before the generation and the request are looked at: who changes them rings afterwards.
    let mut heard = bell::heard();
    while GENERATION.load(Ordering::Relaxed) == number(generation) {
        // The first time too: a bell that rang before this thread ran is not heard any more.
        gvl::is_back();
        quietly(drain);
        // SAFETY: both functions stay and call nothing of Ruby's; the number outlives the call. Nothing with a destructor
        // lives here, as a kill jumps.
        unsafe {
            rb_sys::rb_thread_call_without_gvl(Some(sleep), (&raw mut heard).cast(), Some(bell::wake), ptr::null_mut())
        };
    }
    NIL
}

/// As the bell's; then this thread takes the GVL back, and waits for nothing else.
unsafe extern "C" fn sleep(heard: *mut c_void) -> *mut c_void {
    gvl::leave();
    // SAFETY: as the caller's.
    let result = unsafe { bell::sleep(heard) };
    gvl::come_back();
    result
}

unsafe extern "C" fn left(generation: VALUE) -> VALUE {
    gvl::is_back();
    if GENERATION.load(Ordering::Relaxed) == number(generation) {
        IS_PARKED.store(false, Ordering::Relaxed);
    }
    NIL
}
