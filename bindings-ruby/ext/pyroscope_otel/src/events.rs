//! Hooks into the interpreter's own events: a fiber is switched to, a thread begins or ends, a garbage collection
//! ends, and, where native threads are shared by Ruby's (RUBY_MN_THREADS=1), a thread goes on.
//!
//! They are there while a profiler runs or spans are followed, and none of them disturbs YJIT. None may raise or make an
//! object; the last is called with the scheduler's lock held.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use magnus::{Error, Ruby};
use rb_sys::{ID, VALUE, rb_event_flag_t};
use spanprof_core::{Context, TagSetId};

use crate::errors::quietly;
use crate::slot::{self, Slot};
use crate::unwind::{self, RUBY};
use crate::value::{Gvl, NIL};
use crate::{context, tags};

static ADDED: AtomicBool = AtomicBool::new(false);
static WATCHES_GC: AtomicBool = AtomicBool::new(false);

/// Hooks fibers and threads.
pub(crate) fn add() -> Result<(), Error> {
    if !ADDED.swap(true, Ordering::Relaxed) {
        magnus::rb_sys::protect(|| {
            // SAFETY: a function that stays, called by Ruby with these arguments.
            unsafe { rb_sys::rb_add_event_hook(Some(on_fiber_switch), rb_sys::RUBY_EVENT_FIBER_SWITCH, NIL) };
            // SAFETY: as above.
            unsafe { rb_sys::rb_add_event_hook(Some(on_thread_begin), rb_sys::RUBY_EVENT_THREAD_BEGIN, NIL) };
            // SAFETY: as above.
            unsafe { rb_sys::rb_add_event_hook(Some(on_thread_end), rb_sys::RUBY_EVENT_THREAD_END, NIL) };
            NIL
        })?;
        shared_threads::add();
    }
    Ok(())
}

/// The same, where tags are used without a profiler or spans.
pub(crate) fn add_for_tags(_ruby: &Ruby) -> Result<(), Error> {
    if crate::profiler::is_running() { add() } else { Ok(()) }
}

/// Takes all hooks away.
pub(crate) fn remove() {
    if ADDED.swap(false, Ordering::Relaxed) {
        for hook in [on_fiber_switch as Hook, on_thread_begin, on_thread_end] {
            // SAFETY: a function; one that is not there is not found.
            unsafe { rb_sys::rb_remove_event_hook(Some(hook)) };
        }
        shared_threads::remove();
    }
}

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

type Hook = unsafe extern "C" fn(rb_event_flag_t, VALUE, VALUE, ID, VALUE);

unsafe extern "C" fn on_fiber_switch(_: rb_event_flag_t, _: VALUE, _: VALUE, _: ID, _: VALUE) {
    quietly(|| {
        // SAFETY: Ruby calls this with the GVL held.
        let gvl = unsafe { Gvl::held() };
        context::fiber_switched(gvl);
        context::republish_tags(gvl);
    });
}

unsafe extern "C" fn on_thread_begin(_: rb_event_flag_t, _: VALUE, _: VALUE, _: ID, _: VALUE) {
    quietly(|| {
        if context::follows() || tags::are_used() {
            forget_own();
        }
        spanprof_core::thread_started();
        unwind::attend_again();
    });
}

unsafe extern "C" fn on_thread_end(_: rb_event_flag_t, _: VALUE, _: VALUE, _: ID, _: VALUE) {
    quietly(forget_own);
}

/// A native thread may run another Ruby thread next.
fn forget_own() {
    if let Some(slot) = slot::own_or_claim() {
        slot.clear();
        slot.set_tags(TagSetId::EMPTY);
        keep_with_thread(slot);
    }
}

/// A collection ends on this thread: what its handler could not look at meanwhile is one sample, of the stack that made it
/// necessary.
unsafe extern "C" fn on_gc_exit(_: VALUE, _: *mut c_void) {
    quietly(|| {
        let inside = slot::own().map_or(Context::NONE, Slot::context);
        // SAFETY: no signal handler, and no walk: the interpreter's own code runs. The span lies in this thread's slot, which
        // only this thread changes.
        unsafe { spanprof_core::sample_deferred(inside, |out| RUBY.walk_collecting(out)) }
    });
}

/// Notes what the slot says with the Ruby thread too, where another native thread may go on with it.
#[inline]
pub(crate) fn keep_with_thread(slot: &Slot) {
    shared_threads::keep(slot);
}

/// Whether native threads run many Ruby threads each.
pub(crate) fn shares_threads() -> bool {
    shared_threads::is_on()
}

/// Whether the calling thread's slot speaks for another Ruby thread than the one that runs: where native threads are shared,
/// between the interpreter's switch and our hook's. For handlers.
#[inline]
pub(crate) fn is_switching(running: impl FnOnce() -> Option<VALUE>) -> bool {
    shared_threads::is_switching(running)
}

/// Native threads that run many Ruby threads: what a slot says is kept with the Ruby thread and copied back when it goes on.
#[cfg(ruby_gte_3_3)]
mod shared_threads {
    use std::ffi::{c_int, c_void};
    use std::ptr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

    use rb_sys::{VALUE, rb_event_flag_t, rb_internal_thread_event_data_t, rb_internal_thread_event_hook_t};

    use crate::errors::quietly;
    use crate::slot::{self, Kept, Slot};

    static ON: AtomicBool = AtomicBool::new(false);
    static KEY: OnceLock<c_int> = OnceLock::new();
    static HOOK: AtomicPtr<rb_internal_thread_event_hook_t> = AtomicPtr::new(ptr::null_mut());

    pub(super) fn add() {
        if std::env::var_os("RUBY_MN_THREADS").is_none_or(|value| value != "1") {
            return;
        }
        // SAFETY: called with the GVL held; keys are never given back, and this one is made once.
        KEY.get_or_init(|| unsafe { rb_sys::rb_internal_thread_specific_key_create() });
        ON.store(true, Ordering::Relaxed);
        let events = rb_sys::RUBY_INTERNAL_THREAD_EVENT_RESUMED | rb_sys::RUBY_INTERNAL_THREAD_EVENT_EXITED;
        // SAFETY: a function that stays.
        let hook = unsafe { rb_sys::rb_internal_thread_add_event_hook(Some(on_event), events, ptr::null_mut()) };
        HOOK.store(hook, Ordering::Relaxed);
        // The calling thread may never be switched to.
        if let Some(slot) = slot::own_or_claim() {
            keep(slot);
        }
    }

    pub(super) fn is_on() -> bool {
        ON.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_switching(running: impl FnOnce() -> Option<VALUE>) -> bool {
        if !is_on() {
            return false;
        }
        let (Some(key), Some(thread)) = (KEY.get(), running()) else { return false };
        // SAFETY: async-signal-safe, says Ruby's documentation; the thread that runs and our own key.
        let kept = unsafe { rb_sys::rb_internal_thread_specific_get(thread, *key) }.cast::<Kept>();
        slot::own().map_or(!kept.is_null(), |slot| !slot.is_kept_with(kept))
    }

    pub(super) fn remove() {
        // The blocks stay with their threads until hooks are added again, and then are freed as those end.
        ON.store(false, Ordering::Relaxed);
        let hook = HOOK.swap(ptr::null_mut(), Ordering::Relaxed);
        if !hook.is_null() {
            // SAFETY: it was added and not removed yet.
            unsafe { rb_sys::rb_internal_thread_remove_event_hook(hook) };
        }
    }

    pub(super) fn keep(slot: &Slot) {
        let (true, Some(key)) = (ON.load(Ordering::Relaxed), KEY.get()) else { return };
        // SAFETY: called with the GVL held by a Ruby thread.
        let thread = unsafe { rb_sys::rb_thread_current() };
        // SAFETY: a thread and our own key.
        let known = unsafe { rb_sys::rb_internal_thread_specific_get(thread, *key) }.cast::<Kept>();
        // SAFETY: what this key holds came from the Box below.
        match unsafe { known.as_mut() } {
            Some(kept) => {
                slot.save(kept);
                slot.set_kept_with(kept);
            }
            None => {
                let mut kept = Box::new(Kept::default());
                slot.save(&mut kept);
                let kept = Box::into_raw(kept);
                // SAFETY: as above; freed when the thread ends.
                unsafe { rb_sys::rb_internal_thread_specific_set(thread, *key, kept.cast()) };
                slot.set_kept_with(kept);
            }
        }
    }

    unsafe extern "C" fn on_event(
        event: rb_event_flag_t,
        data: *const rb_internal_thread_event_data_t,
        _: *mut c_void,
    ) {
        quietly(|| {
            let Some(key) = KEY.get() else { return };
            // SAFETY: Ruby gives valid data.
            let thread = unsafe { (*data).thread };
            // SAFETY: a thread and our own key.
            let kept = unsafe { rb_sys::rb_internal_thread_specific_get(thread, *key) }.cast::<Kept>();
            if event == rb_sys::RUBY_INTERNAL_THREAD_EVENT_EXITED {
                // SAFETY: as above.
                unsafe { rb_sys::rb_internal_thread_specific_set(thread, *key, ptr::null_mut()) };
                if let Some(slot) = slot::own() {
                    slot.set_kept_with(ptr::null());
                }
                if !kept.is_null() {
                    // SAFETY: it came from a Box, and nobody else has it any more.
                    drop(unsafe { Box::from_raw(kept) });
                }
            } else if let Some(slot) = slot::own_or_claim() {
                // SAFETY: null, or what `keep` made.
                slot.restore(unsafe { kept.as_ref() });
            }
        });
    }
}

#[cfg(not(ruby_gte_3_3))]
mod shared_threads {
    pub(super) fn add() {}

    pub(super) fn is_on() -> bool {
        false
    }

    #[inline]
    pub(super) fn is_switching(_: impl FnOnce() -> Option<rb_sys::VALUE>) -> bool {
        false
    }

    pub(super) fn remove() {}

    #[inline]
    pub(super) fn keep(_: &crate::slot::Slot) {}
}
