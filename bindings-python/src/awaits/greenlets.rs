//! Greenlets under gevent: how long one was suspended, taken where it goes on, on its own stack.
//!
//! greenlet calls one function of each thread's after every switch, if there is one (`greenlet.settrace`). Ours is set where the first span
//! of a thread begins once gevent is loaded, and stays: nobody else can take it off a thread. When it is called, the greenlet that goes on
//! is current already, its context and its frames too. gevent's hub, whose greenlet runs the loop, is never taken for suspended.
//!
//! Each greenlet is a flow of its own, so spans that begin in it know its time from that of others.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ptr;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple, PyType};
use spanprof_core::{Level, current_flow, host, wants_span_times};

use crate::awaits::clock::ticks;
use crate::awaits::known::{Getter, getter};
use crate::awaits::sample::{add_up_greenlet, begins, consider_greenlet, flow_of_span};
use crate::awaits::shared::shared;
use crate::awaits::slots::{AddressHasher, Met};
use crate::awaits::steps::{is_foreign, is_measuring, own_tstate};
use crate::awaits::thread::Thread;
use crate::calls::{self, uncollected};
use crate::errors::guard;
use crate::stack::interpreter::CPython;
use crate::stack::memory::Object;
use crate::strings::names;

/// From here on numbers of flows are threads' own.
const FIRST_OF_THREADS: u64 = 1 << 63;
/// Greenlets that are remembered at most; more are not seen.
const MOST: usize = 1 << 20;

/// What is asked of both libraries.
struct Library {
    greenlet: Py<PyType>,
    hub: Py<PyType>,
    /// `greenlet.dead`.
    dead: Getter,
}

#[derive(Clone, Copy, Debug)]
struct Suspended {
    since: u64,
    flow: u64,
    is_concurrent: bool,
}

struct Greenlets {
    library: Option<Library>,
    suspended: ByAddress,
}

type ByAddress = HashMap<usize, Suspended, BuildHasherDefault<AddressHasher>>;

struct UnderGil(UnsafeCell<Greenlets>);

// SAFETY: touched by who holds the GIL of the main interpreter, and no reference outlives a call.
unsafe impl Sync for UnderGil {}

static GREENLETS: UnderGil =
    UnderGil(UnsafeCell::new(Greenlets { library: None, suspended: HashMap::with_hasher(BuildHasherDefault::new()) }));

/// # Safety
/// The GIL of the main interpreter is held, and no other reference from here is in use.
#[inline(always)]
unsafe fn greenlets<'a>() -> &'a mut Greenlets {
    let greenlets = GREENLETS.0.get();
    // SAFETY: the caller's promise.
    unsafe { &mut *greenlets }
}

/// Begins anew: what is noted is of before. The GIL is held.
pub(super) fn begin() {
    // SAFETY: by a thread of the main interpreter.
    unsafe { greenlets() }.suspended = HashMap::default();
}

/// A span begins on the calling thread: from here on its greenlets are followed, if gevent is loaded. Two loads once they are, and where
/// awaits are not measured; two look-ups in a dict until gevent is loaded.
#[inline]
pub(crate) fn follow_thread(py: Python<'_>) {
    // SAFETY: this thread's own.
    if is_measuring() && !unsafe { (*Thread::own()).follows_greenlets } {
        follow(py);
    }
}

/// A module's attribute, if the module is loaded. Runs no code of the program: modules and their dicts are asked directly.
fn loaded<'py>(module: &Bound<'py, PyString>, attribute: &str) -> Option<Bound<'py, PyAny>> {
    let py = module.py();
    // SAFETY: the GIL is held.
    let modules = unsafe { ffi::PyImport_GetModuleDict() };
    // SAFETY: null, or a reference that is the interpreter's.
    let modules = unsafe { Bound::from_borrowed_ptr_or_opt(py, modules) }?;
    let module = modules.cast_exact::<PyDict>().ok()?.get_item(module).ok()??;
    module.cast::<PyModule>().ok()?.dict().get_item(PyString::new(py, attribute)).ok()?
}

#[cold]
fn follow(py: Python<'_>) {
    let hub = loaded(names(py).gevent_hub.bind(py), "Hub").and_then(|hub| hub.cast_into::<PyType>().ok());
    let Some(hub) = hub.filter(|_| !is_foreign(own_tstate())) else { return };
    // SAFETY: this thread's own.
    unsafe { (*Thread::own()).follows_greenlets = true };
    if let Err(why) = set_trace(&hub) {
        host::report(Level::Warning, format!("the waits of gevent's greenlets are not measured: {why}"));
    }
}

/// Sets our function on the calling thread. What is called is written in C and runs no code of the program.
fn set_trace(hub: &Bound<'_, PyType>) -> Result<(), &'static str> {
    const OTHER: &str = "this greenlet library is of an unknown kind";
    let py = hub.py();
    let module = PyString::new(py, "greenlet._greenlet");
    let function = |name| loaded(&module, name).filter(|function| function.is_exact_instance_of::<PyCFunction>());
    let class = loaded(&module, "greenlet").and_then(|class| class.cast_into::<PyType>().ok()).ok_or(OTHER)?;
    let dead = getter(class.as_ptr().cast_const().cast(), c"dead").ok_or(OTHER)?;
    let (get, set) = function("gettrace").zip(function("settrace")).ok_or(OTHER)?;
    if !get.call0().is_ok_and(|before| before.is_none()) {
        return Err("greenlet.settrace is another's on this thread");
    }
    // SAFETY: the GIL of the main interpreter is held.
    let library = unsafe { &mut greenlets().library };
    if library.is_none() {
        *library = Some(Library { greenlet: class.unbind(), hub: hub.clone().unbind(), dead });
    }
    let ours = uncollected(py, || pyo3::wrap_pyfunction!(greenlet_switched, py)).map_err(|_| OTHER)?;
    match calls::call(&set, &ours) {
        Ok(_) => Ok(()),
        Err(_) => Err("greenlet.settrace failed"),
    }
}

/// What greenlet calls after each switch of a thread: `greenlets` are the one that was left and the one that goes on. Never raises.
#[pyfunction]
pub(crate) fn greenlet_switched(_event: &Bound<'_, PyAny>, greenlets: &Bound<'_, PyAny>) {
    let _ = guard(|| {
        if let Ok(pair) = greenlets.cast_exact::<PyTuple>()
            && let (Ok(left), Ok(resumed)) = (pair.get_borrowed_item(0), pair.get_borrowed_item(1))
        {
            switched(left.as_ptr(), resumed.as_ptr());
        }
        Ok(())
    });
}

fn switched(left: *mut PyObject, resumed: *mut PyObject) {
    let tstate = own_tstate();
    if !is_measuring() || is_foreign(tstate) {
        return;
    }
    // SAFETY: the GIL of the main interpreter is held, and nothing below comes here again.
    let Greenlets { library, suspended } = unsafe { greenlets() };
    // SAFETY: as above.
    let shared = unsafe { shared() };
    let (Some(library), Some((_, runtime))) = (library, shared.of) else { return };
    if runtime.is_finalizing() || !library.is_greenlet(left) || !library.is_greenlet(resumed) {
        return;
    }
    // SAFETY: this thread's own.
    let thread = unsafe { &mut *Thread::own() };
    let now = ticks();
    let left_flow = thread.flow();
    let known = suspended.get(&resumed.addr()).copied();
    // At once: a sample of this very instant has the new span already.
    thread.set_flow(known.map_or(0, |known| known.flow));
    if !library.is_hub(left) {
        thread.left_at = now;
        leave(suspended, left, library, (left_flow, now));
    }
    if library.is_hub(resumed) {
        return;
    }
    thread.check_poll(&shared.clock, &mut shared.rates);
    let Some(known) = known else {
        // SAFETY: the calling thread's own state.
        let own = unsafe { own_of(tstate, runtime) };
        shared.last_flow += u64::from(own.is_none());
        thread.set_flow(own.unwrap_or(shared.last_flow));
        return;
    };
    let met = Met { slot: 0, since: known.since, flow: current_flow(), is_concurrent: known.is_concurrent };
    if wants_span_times() {
        // SAFETY: the GIL is held, and the greenlet runs on this thread.
        unsafe { add_up_greenlet(thread, shared, tstate, (met, now)) };
    }
    let took = now.saturating_sub(met.since);
    let class = usize::from(met.is_concurrent);
    if thread.remaining[class].is_used_up(took, shared.rates[class].per_tick)
        // SAFETY: as above.
        && let Some(is_concurrent) = unsafe { consider_greenlet(thread, shared, tstate, (met, now)) }
        && let Some(known) = suspended.get_mut(&resumed.addr())
    {
        known.is_concurrent = is_concurrent;
    }
}

impl Library {
    fn is_greenlet(&self, object: *mut PyObject) -> bool {
        // SAFETY: an object that the caller holds, and a type.
        unsafe { ffi::PyObject_TypeCheck(object, self.greenlet.as_ptr().cast()) != 0 }
    }

    fn is_hub(&self, object: *mut PyObject) -> bool {
        // SAFETY: as above.
        unsafe { ffi::PyObject_TypeCheck(object, self.hub.as_ptr().cast()) != 0 }
    }

    /// Whether a greenlet is over.
    fn is_dead(&self, greenlet: *mut PyObject) -> bool {
        // SAFETY: a getter of its type in C, which gives a new reference to a bool.
        let dead: *mut PyObject = unsafe { (self.dead)(greenlet.cast_const().cast(), ptr::null_mut()) }.cast();
        // SAFETY: as above, and nobody's last one.
        unsafe { ffi::Py_XDECREF(dead) };
        // SAFETY: an object that is never freed.
        dead == unsafe { ffi::Py_True() }
    }
}

/// A greenlet is suspended, or over.
fn leave(suspended: &mut ByAddress, greenlet: *mut PyObject, library: &Library, (flow, now): (u64, u64)) {
    if library.is_dead(greenlet) {
        suspended.remove(&greenlet.addr());
    } else if let Some(known) = suspended.get_mut(&greenlet.addr()) {
        (known.since, known.flow) = (now, flow);
    } else if suspended.len() < MOST && suspended.try_reserve(1).is_ok() {
        suspended.insert(greenlet.addr(), Suspended { since: now, flow, is_concurrent: false });
    }
}

/// The number of the flow of a greenlet that goes on and was not seen to be suspended, 0 for that of the thread itself: its span's, where
/// it was suspended before anybody looked. `None`: it begins, or is in no span.
///
/// # Safety
/// As for [`CPython::walk_thread`], and no other number is the thread's.
unsafe fn own_of(tstate: Object, runtime: &CPython) -> Option<u64> {
    // SAFETY: the caller's promise.
    if unsafe { begins(tstate, runtime) } {
        return None;
    }
    // SAFETY: as above, and the GIL is held.
    match unsafe { flow_of_span(tstate, runtime) } {
        Some(own) if own == current_flow() => Some(0),
        own => own.filter(|own| (1..FIRST_OF_THREADS).contains(own)),
    }
}
