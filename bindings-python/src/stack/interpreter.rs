//! The interpreter, as the handler knows it: where its objects are, and what it may be asked.
//!
//! **Functions called in the handler:** `PyGILState_GetThisThreadState`. It names the thread state that *this* thread
//! runs, is null before one exists and after it is deleted, and so is right in subinterpreters, in threads of C code and
//! while the GIL is released. There are no lists of threads to keep. Up to 3.14 it reads a thread-specific value
//! (`pthread_getspecific`, which only loads) and compares a static. In 3.15 it reads a thread-local variable of the
//! interpreter's: only a load where the object that has it (the executable, or a libpython that it is linked with) was
//! there when the process started, as its variables then have their place in each thread from its birth. Where
//! libpython3.15.so came by dlopen (mod_wsgi, uWSGI's plugin) a thread's first touch may have the C library allocate,
//! which a handler must not do: the touch may be ours in a thread that Python has not run in. docs/python/limits.md
//! says so.
//!
//! `PyThreadState_GetUnchecked`, of which [`collection`](crate::stack::collection) says when.
//!
//! And `Py_IsFinalizing` (`_Py_IsFinalizing` before 3.13), an atomic load: an interpreter that ends frees the states of
//! threads that go on in C code, and theirs is still the one that is named. No timer should be armed then; where one is,
//! the handler does not look at the interpreter.
//!
//! **Subinterpreters.** In 3.12 and later a thread in a subinterpreter runs a thread state of that interpreter: its
//! samples have the stack there, and no span, since our variables belong to the main interpreter (this module refuses to
//! be imported into another). In 3.10 and 3.11 the thread's first state is what is seen: the sample has the stack and the
//! span of the call into the subinterpreter.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::stack::hamt::{Key, NodeTypes};
use crate::stack::layout::Layout;
use crate::stack::memory::Object;

unsafe extern "C" {
    /// In the stable ABI since 3.2, though pyo3 does not declare it.
    fn PyGILState_GetThisThreadState() -> *const c_void;
}

/// Objects of one of our classes, as the handler finds them in a ContextVar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    /// The variable.
    pub(crate) key: Key,
    /// The class of values that are ours.
    pub(crate) class: Object,
    /// Where in such an object our data is.
    pub(crate) offset: usize,
}

/// All that the handler must know of the interpreter.
#[derive(Debug)]
pub(crate) struct CPython {
    pub(crate) layout: &'static Layout,
    /// The type of code objects, in all interpreters.
    pub(crate) code_type: Object,
    /// The main interpreter.
    pub(crate) main: Object,
    pub(crate) nodes: NodeTypes,
    /// The variable of [`SpanHandle`](crate::span::record::SpanHandle)s.
    pub(crate) span: Published,
    /// The variable of [`TagSet`](crate::span::tags::TagSet)s.
    pub(crate) tags: Published,
    /// Says whether the interpreter ends.
    pub(crate) finalizing: Option<Finalizing>,
    /// How it is seen that it collects garbage, where that is known.
    pub(crate) collecting: Option<Collecting>,
    /// Where its static data are, empty if that is not known.
    pub(crate) runtime: Range<u64>,
}

// SAFETY: addresses of objects that are never freed, and numbers.
unsafe impl Send for CPython {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for CPython {}

/// `Py_IsFinalizing`: not 0 from the moment on in which the interpreter begins to end.
pub(crate) type Finalizing = unsafe extern "C" fn() -> c_int;

/// `PyThreadState_GetUnchecked`: the thread state with which the calling thread holds the GIL, or whichever holds it.
pub(crate) type Current = unsafe extern "C" fn() -> *const c_void;

/// How it is seen that an interpreter collects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Collecting {
    /// Where in an interpreter the flag is, a 32-bit number.
    pub(crate) flag: usize,
    pub(crate) current: Current,
}

/// The thread state that this thread runs, null without one.
#[inline]
pub(crate) fn thread_state() -> Object {
    // SAFETY: callable at any time, from any thread, without the GIL.
    unsafe { PyGILState_GetThisThreadState() }.cast()
}

impl CPython {
    /// Whether the interpreter ends: what a thread's state names may be gone.
    #[inline]
    pub(crate) fn is_finalizing(&self) -> bool {
        // SAFETY: callable at any time, from any thread, without the GIL.
        self.finalizing.is_some_and(|finalizing| unsafe { finalizing() } != 0)
    }
}
