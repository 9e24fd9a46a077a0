//! A fiber is switched to, a thread begins or ends. The hooks are there while a profiler runs or spans are followed.

use std::sync::atomic::{AtomicBool, Ordering};

use magnus::Error;
use rb_sys::{ID, VALUE, rb_event_flag_t};
use spanprof_core::TagSetId;

use crate::errors::quietly;
use crate::events::fiber_waits;
#[cfg(ruby_gte_3_3)]
use crate::events::shared_threads;
use crate::span::{current, record, saved, tags};
use crate::stack::wall_clock;
use crate::value::{Gvl, NIL};

static ADDED: AtomicBool = AtomicBool::new(false);

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
        #[cfg(ruby_gte_3_3)]
        shared_threads::add();
    }
    Ok(())
}

/// Takes all hooks away.
pub(crate) fn remove() {
    if ADDED.swap(false, Ordering::Relaxed) {
        for hook in [on_fiber_switch as Hook, on_thread_begin, on_thread_end] {
            // SAFETY: a function; one that is not there is not found.
            unsafe { rb_sys::rb_remove_event_hook(Some(hook)) };
        }
        #[cfg(ruby_gte_3_3)]
        shared_threads::remove();
    }
}

type Hook = unsafe extern "C" fn(rb_event_flag_t, VALUE, VALUE, ID, VALUE);

unsafe extern "C" fn on_fiber_switch(_: rb_event_flag_t, _: VALUE, _: VALUE, _: ID, _: VALUE) {
    quietly(|| {
        // SAFETY: Ruby calls this with the GVL held.
        let gvl = unsafe { Gvl::held() };
        current::fiber_switched(gvl);
        tags::republish(gvl);
        fiber_waits::switched();
    });
}

unsafe extern "C" fn on_thread_begin(_: rb_event_flag_t, _: VALUE, _: VALUE, _: ID, _: VALUE) {
    quietly(|| {
        if current::follows() || tags::are_used() {
            forget_own();
        }
        spanprof_core::thread_started();
        wall_clock::attend_again();
    });
}

unsafe extern "C" fn on_thread_end(_: rb_event_flag_t, _: VALUE, _: VALUE, _: ID, _: VALUE) {
    quietly(forget_own);
}

/// A native thread may run another Ruby thread next.
fn forget_own() {
    if let Some(slot) = record::own_or_claim() {
        slot.clear();
        slot.set_tags(TagSetId::EMPTY);
        slot.forget_thread();
        saved::save(slot);
    }
}
