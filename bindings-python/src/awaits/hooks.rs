//! The functions of the type of coroutines, in whose places ours stand while awaits are measured.
//!
//! A task's step is a call of the type's `am_send`; one with an exception (cancelled, timed out) of the method `throw`; other loops call
//! `send`. The pointers to these lie in static memory of the interpreter that can be written, which bound methods, method descriptors and
//! specialised calls all read when they call, so nothing of it can be seen from Python. They are one for all interpreters of the process.
//!
//! Who else does that may have put itself before us: then our function stays where it is and passes on.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::awaits::known::{Known, method};
use crate::awaits::layout::{AM_SEND, TP_AS_ASYNC, TP_FINALIZE};
use crate::awaits::steps::{destroy, enter, leave};
use crate::stack::memory::{Memory, Object, Probed};

type Send = unsafe extern "C-unwind" fn(Object, Object, *mut Object) -> c_int;
type OneArgument = unsafe extern "C-unwind" fn(Object, Object) -> Object;
/// From 3.11 on `throw` gets its arguments so; before, the third of these is not there and is passed on as it is.
type Arguments = unsafe extern "C-unwind" fn(Object, *const c_void, isize) -> Object;
type Finalize = unsafe extern "C-unwind" fn(Object);

/// `PYGEN_NEXT`.
const SUSPENDED: c_int = 1;

/// `METH_VARARGS`, `METH_NOARGS`, `METH_O`, `METH_FASTCALL`.
const TUPLE: u32 = 1;
const NONE: u32 = 4;
const ONE: u32 = 8;
const FAST: u32 = 0x80;

/// A pointer of the interpreter's to a function.
struct Hook {
    /// Where it is while ours was put there, else null.
    place: AtomicPtr<AtomicPtr<c_void>>,
    /// The function that was there before ours.
    original: AtomicPtr<c_void>,
    /// Somebody put another one before ours, which so stays.
    stays: AtomicBool,
}

impl Hook {
    const fn new() -> Self {
        Self {
            place: AtomicPtr::new(ptr::null_mut()),
            original: AtomicPtr::new(ptr::null_mut()),
            stays: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    fn original(&self) -> *mut c_void {
        // Relaxed: who came here read the pointer to our function, which was written after this one.
        self.original.load(Ordering::Relaxed)
    }

    /// # Safety
    /// `place` is a pointer to a function of the type of `ours`, for ever, and the GIL is held.
    unsafe fn install(&self, place: Object, ours: *mut c_void) {
        let place: *mut AtomicPtr<c_void> = place.cast_mut().cast();
        // SAFETY: the caller's promise; an aligned pointer.
        let pointer = unsafe { &*place };
        self.place.store(place, Ordering::Relaxed);
        let found = pointer.load(Ordering::Acquire);
        if found == ours || self.stays.load(Ordering::Relaxed) {
            return;
        }
        self.original.store(found, Ordering::Relaxed);
        // Release pairs with the load by which an interpreter with another GIL comes here.
        pointer.store(ours, Ordering::Release);
    }

    fn uninstall(&self, ours: *mut c_void) {
        // SAFETY: null, or a pointer that `install` was promised to be there for ever.
        let Some(pointer) = (unsafe { self.place.swap(ptr::null_mut(), Ordering::Relaxed).as_ref() }) else { return };
        let taken = pointer.compare_exchange(ours, self.original(), Ordering::AcqRel, Ordering::Relaxed);
        self.stays.store(taken.is_err(), Ordering::Relaxed);
    }
}

static SEND: Hook = Hook::new();
static METHOD_SEND: Hook = Hook::new();
static METHOD_THROW: Hook = Hook::new();
static METHOD_CLOSE: Hook = Hook::new();
static FINALIZE: Hook = Hook::new();

fn all() -> [(&'static Hook, *mut c_void); 5] {
    let (send, method_send, throw): (Send, OneArgument, Arguments) = (on_send, on_method_send, on_method_throw);
    let (close, finalize): (OneArgument, Finalize) = (on_method_close, on_finalize);
    [
        (&SEND, send as *mut c_void),
        (&METHOD_SEND, method_send as *mut c_void),
        (&METHOD_THROW, throw as *mut c_void),
        (&METHOD_CLOSE, close as *mut c_void),
        (&FINALIZE, finalize as *mut c_void),
    ]
}

/// Where the five pointers are. `None`: the type does not look as is known.
fn places(known: &Known) -> Option<[Object; 5]> {
    let class = known.coroutine;
    // SAFETY: the type is never freed, and Probed asks.
    let methods = unsafe { Probed::pointer(class, TP_AS_ASYNC) }.filter(|methods| !methods.is_null())?;
    let send = method(class, c"send").filter(|send| send.flags == ONE)?;
    let throw = method(class, c"throw").filter(|throw| throw.flags == TUPLE || throw.flags == FAST)?;
    let close = method(class, c"close").filter(|close| close.flags == NONE)?;
    let places = [methods.wrapping_add(AM_SEND), send.place, throw.place, close.place, class.wrapping_add(TP_FINALIZE)];
    // SAFETY: as above.
    let is_function =
        |place: &Object| unsafe { Probed::pointer(*place, 0) }.is_some_and(|function| !function.is_null());
    places.iter().all(is_function).then_some(places)
}

/// Puts ours there. False: the type does not look as is known, and nothing was changed. The GIL is held.
pub(super) fn install(known: &Known) -> bool {
    let Some(places) = places(known) else { return false };
    for ((hook, ours), place) in all().into_iter().zip(places) {
        // SAFETY: found in the static type and tables of the interpreter, by name and flags.
        unsafe { hook.install(place, ours) };
    }
    true
}

/// Puts back what was there. The GIL is held.
pub(super) fn uninstall() {
    for (hook, ours) in all() {
        hook.uninstall(ours);
    }
}

unsafe extern "C-unwind" fn on_send(coroutine: Object, argument: Object, result: *mut Object) -> c_int {
    // SAFETY: what was at the place of `am_send`.
    let original = unsafe { transmute::<*mut c_void, Send>(SEND.original()) };
    // SAFETY: called with a coroutine.
    let step = unsafe { enter(coroutine) };
    // SAFETY: as we were called.
    let sent = unsafe { original(coroutine, argument, result) };
    // SAFETY: as above.
    unsafe { leave(coroutine, step, sent == SUSPENDED) };
    sent
}

unsafe extern "C-unwind" fn on_method_send(coroutine: Object, argument: Object) -> Object {
    // SAFETY: what was at the place of a method with one argument.
    let original = unsafe { transmute::<*mut c_void, OneArgument>(METHOD_SEND.original()) };
    // SAFETY: called with a coroutine.
    let step = unsafe { enter(coroutine) };
    // SAFETY: as we were called.
    let sent = unsafe { original(coroutine, argument) };
    // SAFETY: as above.
    unsafe { leave(coroutine, step, !sent.is_null()) };
    sent
}

unsafe extern "C-unwind" fn on_method_throw(coroutine: Object, arguments: *const c_void, number: isize) -> Object {
    // SAFETY: what was at the place of a method with a tuple, or an array and its length.
    let original = unsafe { transmute::<*mut c_void, Arguments>(METHOD_THROW.original()) };
    // SAFETY: called with a coroutine.
    let step = unsafe { enter(coroutine) };
    // SAFETY: as we were called.
    let sent = unsafe { original(coroutine, arguments, number) };
    // SAFETY: as above.
    unsafe { leave(coroutine, step, !sent.is_null()) };
    sent
}

unsafe extern "C-unwind" fn on_method_close(coroutine: Object, none: Object) -> Object {
    // SAFETY: what was at the place of a method without arguments.
    let original = unsafe { transmute::<*mut c_void, OneArgument>(METHOD_CLOSE.original()) };
    // SAFETY: called with a coroutine.
    let step = unsafe { enter(coroutine) };
    // SAFETY: as we were called.
    let closed = unsafe { original(coroutine, none) };
    // SAFETY: as above. It is over, or it refused to end: then it counts from its next suspension on.
    unsafe { leave(coroutine, step, false) };
    closed
}

unsafe extern "C-unwind" fn on_finalize(coroutine: Object) {
    // SAFETY: what was at the place of `tp_finalize`.
    let original = unsafe { transmute::<*mut c_void, Finalize>(FINALIZE.original()) };
    // SAFETY: called with a coroutine.
    unsafe { destroy(coroutine) };
    // SAFETY: as we were called.
    unsafe { original(coroutine) };
}
