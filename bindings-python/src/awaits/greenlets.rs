//! Greenlets under gevent: how long one was suspended, taken where it goes on, on its own stack.
//!
//! greenlet calls one function of each thread's after every switch, if there is one (`greenlet.settrace`). Ours is set where the first span
//! of a thread begins once gevent is loaded, and stays. Others may take it off, and so does greenlet itself where an exception came of it,
//! as at the end of the stack (up to 3.11), so it is looked for again with some of the spans. When it is called, the greenlet that goes
//! on is current already, its context and its frames too.
//!
//! **A greenlet waits where it switches to gevent's hub**, whose greenlet runs the loop. One that switches to another greenlet calls it,
//! as `greenlet_spawn` of SQLAlchemy does: it is not suspended, and the other one goes on for it. So a greenlet that begins is a flow of its
//! own if the hub begins it, and of the same flow as the one that calls it otherwise.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple, PyType};
use spanprof_core::{Level, current_flow, host, wants_span_times};

use crate::awaits::clock::ticks;
use crate::awaits::known::{Getter, getter};
use crate::awaits::sample::{add_up_greenlet, consider_greenlet};
use crate::awaits::shared::shared;
use crate::awaits::slots::{AddressHasher, Met};
use crate::awaits::steps::{is_foreign, is_measuring, own_tstate};
use crate::awaits::thread::Thread;
use crate::calls::{self, uncollected};
use crate::errors::guard;
use crate::strings::names;

/// Spans of a thread between two looks for our function.
const SPANS_BETWEEN_CHECKS: u16 = 256;
/// Greenlets that are remembered at most; more are not seen.
const MOST: usize = 1 << 20;

/// What is asked of both libraries.
struct Library {
    greenlet: Py<PyType>,
    hub: Py<PyType>,
    /// `greenlet.dead`.
    dead: Getter,
    /// `greenlet.gettrace` and `settrace`, and what is set.
    get: Py<PyAny>,
    set: Py<PyAny>,
    switched: Py<PyAny>,
}

#[derive(Clone, Copy, Debug)]
struct Suspended {
    /// 0: it called another one.
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
/// awaits are not measured; a look-up in a dict until gevent is loaded.
#[inline]
pub(crate) fn follow_thread(py: Python<'_>) {
    if !is_measuring() {
        return;
    }
    // SAFETY: this thread's own, for the length of this call of a field.
    let spans = unsafe { &mut (*Thread::own()).spans_until_check };
    if *spans == 0 {
        follow(py);
    } else {
        *spans -= 1;
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
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    let hub = loaded(names(py).gevent_hub.bind(py), "Hub").and_then(|hub| hub.cast_into::<PyType>().ok());
    let Some(hub) = hub.filter(|_| !is_foreign(own_tstate())) else { return };
    // SAFETY: this thread's own.
    unsafe { (*Thread::own()).spans_until_check = SPANS_BETWEEN_CHECKS };
    if let Err(why) = set_trace(&hub)
        && !IS_REPORTED.swap(true, Ordering::Relaxed)
    {
        host::report(Level::Warning, format!("the waits of gevent's greenlets are not measured: {why}"));
    }
}

/// Sets our function on the calling thread, unless it is there. What is called is written in C and runs no code of the program; it may make
/// objects, so no collection may come.
fn set_trace(hub: &Bound<'_, PyType>) -> Result<(), &'static str> {
    let py = hub.py();
    // SAFETY: the GIL of the main interpreter is held, and the reference is over before greenlet is called.
    let known = unsafe { &mut greenlets().library };
    if known.is_none() {
        *known = Some(Library::find(hub).ok_or("this greenlet library is of an unknown kind")?);
    }
    let Some(Library { get, set, switched, .. }) = known else { return Ok(()) };
    let (get, set, switched) = (get.clone_ref(py), set.clone_ref(py), switched.clone_ref(py));
    let before = uncollected(py, || get.bind(py).call0()).map_err(|_| "greenlet.gettrace failed")?;
    // SAFETY: this thread's own.
    let was_set = unsafe { &mut (*Thread::own()).greenlets_were_followed };
    if before.is_none() {
        *was_set = true;
        let set = uncollected(py, || calls::call(set.bind(py), switched.bind(py)));
        set.map(|_| ()).map_err(|_| "greenlet.settrace failed")
    } else if *was_set || before.is(&switched) {
        // Who came after us calls us, as gevent's own does.
        Ok(())
    } else {
        Err("greenlet.settrace is another's on this thread")
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
    if is_foreign(tstate) {
        return;
    }
    if !is_measuring() {
        // Whose number it had is not known any more when that begins anew.
        // SAFETY: this thread's own.
        unsafe { (*Thread::own()).set_flow(0) };
        return;
    }
    // SAFETY: the GIL of the main interpreter is held, and nothing below comes here again.
    let Greenlets { library, suspended } = unsafe { greenlets() };
    // SAFETY: as above.
    let shared = unsafe { shared() };
    let (Some(library), Some((_, runtime))) = (library.as_ref(), shared.of) else { return };
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
    let (from_hub, to_hub) = (library.is_hub(left), library.is_hub(resumed));
    if !from_hub {
        thread.left_at = now;
        leave(suspended, left, library, (left_flow, if to_hub { now } else { 0 }));
    }
    if to_hub {
        return;
    }
    thread.check_poll(&shared.clock, &mut shared.rates);
    let Some(known) = known else {
        // It begins, or nobody saw it suspended: a new flow, as its number before is another one's now. Who is called works for its caller's.
        shared.last_flow += u64::from(from_hub);
        thread.set_flow(if from_hub { shared.last_flow } else { left_flow });
        return;
    };
    if known.since == 0 {
        return;
    }
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
    fn find(hub: &Bound<'_, PyType>) -> Option<Self> {
        let py = hub.py();
        let module = PyString::new(py, "greenlet._greenlet");
        let function = |name| loaded(&module, name).filter(|function| function.is_exact_instance_of::<PyCFunction>());
        let greenlet = loaded(&module, "greenlet")?.cast_into::<PyType>().ok()?;
        let dead = getter(greenlet.as_ptr().cast_const().cast(), c"dead")?;
        let switched = uncollected(py, || pyo3::wrap_pyfunction!(greenlet_switched, py)).ok()?;
        Some(Self {
            greenlet: greenlet.unbind(),
            hub: hub.clone().unbind(),
            dead,
            get: function("gettrace")?.unbind(),
            set: function("settrace")?.unbind(),
            switched: switched.into_any().unbind(),
        })
    }

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

/// A greenlet is left, suspended `since` then or calling another one, or over.
fn leave(suspended: &mut ByAddress, greenlet: *mut PyObject, library: &Library, (flow, since): (u64, u64)) {
    if library.is_dead(greenlet) {
        suspended.remove(&greenlet.addr());
    } else if let Some(known) = suspended.get_mut(&greenlet.addr()) {
        (known.since, known.flow) = (since, flow);
    } else if suspended.len() < MOST && suspended.try_reserve(1).is_ok() {
        suspended.insert(greenlet.addr(), Suspended { since, flow, is_concurrent: false });
    }
}
