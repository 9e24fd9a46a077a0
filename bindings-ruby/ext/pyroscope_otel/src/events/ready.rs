//! A thread is woken by another one: from then on it waits for the GVL. Only while waits are measured.
//!
//! Called without the GVL and with the lock of Ruby's scheduler held: nothing of Ruby's is called but what reads or writes a word.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use magnus::Error;
use rb_sys::{rb_event_flag_t, rb_internal_thread_event_data_t, rb_internal_thread_event_hook_t};
use spanprof_core::monotonic_ns;

use crate::errors::quietly;
use crate::span::record::{self, Slot};
use crate::value::NIL;

static HOOK: AtomicPtr<rb_internal_thread_event_hook_t> = AtomicPtr::new(ptr::null_mut());
/// Under which a Ruby thread has its slot, which is static.
static KEY: OnceLock<c_int> = OnceLock::new();

/// Notes from here on when threads are woken. An error: there are Ractors already.
pub(crate) fn watch() -> Result<(), Error> {
    if KEY.get().is_none() {
        let mut key = 0;
        magnus::rb_sys::protect(|| {
            // SAFETY: called with the GVL held; keys are never given back, and this one is made once.
            key = unsafe { rb_sys::rb_internal_thread_specific_key_create() };
            NIL
        })?;
        let _ = KEY.set(key);
    }
    if HOOK.load(Ordering::Relaxed).is_null() {
        let events = rb_sys::RUBY_INTERNAL_THREAD_EVENT_SUSPENDED | rb_sys::RUBY_INTERNAL_THREAD_EVENT_READY;
        // SAFETY: a function that stays.
        let hook = unsafe { rb_sys::rb_internal_thread_add_event_hook(Some(on_event), events, ptr::null_mut()) };
        HOOK.store(hook, Ordering::Relaxed);
    }
    Ok(())
}

/// No more.
pub(crate) fn ignore() {
    let hook = HOOK.swap(ptr::null_mut(), Ordering::Relaxed);
    if !hook.is_null() {
        // SAFETY: it was added and not removed yet.
        unsafe { rb_sys::rb_internal_thread_remove_event_hook(hook) };
    }
}

unsafe extern "C" fn on_event(event: rb_event_flag_t, data: *const rb_internal_thread_event_data_t, _: *mut c_void) {
    quietly(|| {
        let Some(key) = KEY.get() else { return };
        // SAFETY: Ruby gives valid data.
        let thread = unsafe { (*data).thread };
        let own = record::own();
        if event == rb_sys::RUBY_INTERNAL_THREAD_EVENT_SUSPENDED {
            // On the thread itself, which other threads may wake from now on.
            if let Some(slot) = own.filter(|slot| !slot.is_known_to(thread)) {
                slot.set_known_to(thread);
                // SAFETY: the thread that this event is about, and our own key.
                unsafe { rb_sys::rb_internal_thread_specific_set(thread, *key, ptr::from_ref(slot).cast_mut().cast()) };
            }
            return;
        }
        // Who comes by itself, as most do, waits for the GVL alone, and needs no time.
        if own.is_some_and(|own| own.is_known_to(thread)) {
            return;
        }
        // SAFETY: as above.
        let slot = unsafe { rb_sys::rb_internal_thread_specific_get(thread, *key) }.cast::<Slot>();
        if !slot.is_null() && !own.is_some_and(|own| ptr::eq(own, slot)) {
            // SAFETY: slots are static.
            unsafe { (*slot).set_ready_ns(monotonic_ns()) };
        }
    });
}
