//! A Ruby thread goes on or ends, where native threads run many of them (RUBY_MN_THREADS=1).

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rb_sys::{rb_event_flag_t, rb_internal_thread_event_data_t, rb_internal_thread_event_hook_t};

use crate::errors::quietly;
use crate::span::{record, saved};

static HOOK: AtomicPtr<rb_internal_thread_event_hook_t> = AtomicPtr::new(ptr::null_mut());

pub(super) fn add() {
    if std::env::var_os("RUBY_MN_THREADS").is_none_or(|value| value != "1") {
        return;
    }
    saved::begin();
    let events = rb_sys::RUBY_INTERNAL_THREAD_EVENT_RESUMED | rb_sys::RUBY_INTERNAL_THREAD_EVENT_EXITED;
    // SAFETY: a function that stays.
    let hook = unsafe { rb_sys::rb_internal_thread_add_event_hook(Some(on_event), events, ptr::null_mut()) };
    HOOK.store(hook, Ordering::Relaxed);
    // The calling thread may never be switched to.
    if let Some(slot) = record::own_or_claim() {
        saved::save(slot);
    }
}

pub(super) fn remove() {
    saved::end();
    let hook = HOOK.swap(ptr::null_mut(), Ordering::Relaxed);
    if !hook.is_null() {
        // SAFETY: it was added and not removed yet.
        unsafe { rb_sys::rb_internal_thread_remove_event_hook(hook) };
    }
}

unsafe extern "C" fn on_event(event: rb_event_flag_t, data: *const rb_internal_thread_event_data_t, _: *mut c_void) {
    quietly(|| {
        // SAFETY: Ruby gives valid data.
        let thread = unsafe { (*data).thread };
        if event == rb_sys::RUBY_INTERNAL_THREAD_EVENT_EXITED {
            // SAFETY: the thread that this event is about.
            unsafe { saved::forget(thread) };
        } else {
            // SAFETY: as above.
            unsafe { saved::restore(thread) };
        }
    });
}
