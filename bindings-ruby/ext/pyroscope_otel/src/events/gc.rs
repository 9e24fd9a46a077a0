//! A garbage collection ends.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use magnus::Error;
use rb_sys::{VALUE, rb_event_flag_t};
use spanprof_core::Context;

use crate::errors::quietly;
use crate::span::record;
use crate::stack::collection;
use crate::stack::unwind::Interpreter;
use crate::value::NIL;

static WATCHES_GC: AtomicBool = AtomicBool::new(false);

/// Hooks the ends of garbage collections, or takes the hook away.
pub(crate) fn watch_gc(on: bool) -> Result<(), Error> {
    static TRACE_POINT: OnceLock<VALUE> = OnceLock::new();
    if WATCHES_GC.load(Ordering::Relaxed) == on {
        return Ok(());
    }
    let point = match TRACE_POINT.get() {
        Some(known) => *known,
        None => {
            let made = trace_point(rb_sys::RUBY_INTERNAL_EVENT_GC_EXIT, on_gc_exit)?;
            *TRACE_POINT.get_or_init(|| made)
        }
    };
    let change = if on { rb_sys::rb_tracepoint_enable } else { rb_sys::rb_tracepoint_disable };
    // SAFETY: a TracePoint, which is registered with the collector.
    magnus::rb_sys::protect(|| unsafe { change(point) })?;
    WATCHES_GC.store(on, Ordering::Relaxed);
    Ok(())
}

type OnEvent = unsafe extern "C" fn(VALUE, *mut c_void);

fn trace_point(event: rb_event_flag_t, hook: OnEvent) -> Result<VALUE, Error> {
    let place: &'static mut VALUE = Box::leak(Box::new(NIL));
    // SAFETY: the address stays, as it is leaked.
    unsafe { rb_sys::rb_gc_register_address(place) };
    *place = magnus::rb_sys::protect(|| {
        // SAFETY: a function that stays; events of the interpreter's inside give it no argument that could die.
        unsafe { rb_sys::rb_tracepoint_new(0, event, Some(hook), ptr::null_mut()) }
    })?;
    Ok(*place)
}

/// A collection ends on this thread: what its handler could not look at meanwhile is one sample, of the stack that made it
/// necessary.
unsafe extern "C" fn on_gc_exit(_: VALUE, _: *mut c_void) {
    quietly(|| {
        let inside = record::own().map_or(Context::NONE, record::Slot::context);
        // SAFETY: no signal handler, and no walk: the interpreter's own code runs. The span lies in this thread's slot, which
        // only this thread changes.
        unsafe { spanprof_core::sample_deferred(inside, |out| Interpreter.walk_collecting(out)) };
        // SAFETY: as above.
        collection::ending_here(|| unsafe { spanprof_core::sample_pending_waits() });
    });
}
