//! Draining under the GVL: the engine's thread asks, Ruby comes by.
//!
//! From Ruby 3.3 on by a postponed job, which runs at the next instruction that looks for one. While no Ruby runs (all
//! threads sleep, or one is in a long call of C) nothing looks; so if two requests find no answer, and on older Rubies, where
//! asking for a job may race, at each request, the engine's thread wakes a Ruby thread of ours that is parked outside
//! the GVL. That it may be killed by a program (`Thread.list.each(&:kill)`) is seen and mended.

pub(crate) mod bell;
#[cfg(ruby_gte_3_3)]
mod job;
pub(crate) mod parked;
pub(crate) mod rings;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Value};

use crate::errors::quietly;
use crate::messages::guard_is_lost;
use crate::stack::{guard, gvl, unwind};
use crate::value::NIL;

/// Callers of flush and stop, who wait for an answer.
static WAITERS: AtomicU32 = AtomicU32::new(0);
/// Faults came to us when that was last checked.
static WAS_GUARDED: AtomicBool = AtomicBool::new(true);
/// It was reported that they do not.
static GUARD_REPORTED: AtomicBool = AtomicBool::new(false);

/// Asks for a drain. Not under the GVL.
pub(crate) fn request() {
    if guard::has_ended() {
        return;
    }
    // Reported when it is so twice in a row, as that is reported once only; until then stacks are not read all the same.
    if guard::check_guard() {
        WAS_GUARDED.store(true, Ordering::Relaxed);
    } else if !WAS_GUARDED.swap(false, Ordering::Relaxed) && !GUARD_REPORTED.swap(true, Ordering::Relaxed) {
        guard_is_lost();
    }
    let is_unanswered = rings::IS_REQUESTED.swap(true, Ordering::Relaxed);
    let is_triggered = job::trigger();
    if is_unanswered || !is_triggered || WAITERS.load(Ordering::Relaxed) > 0 {
        bell::ring();
    }
}

/// While it lives, the parked thread answers at once.
#[derive(Debug)]
pub(crate) struct Waiter(());

impl Waiter {
    pub(crate) fn new() -> Self {
        WAITERS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        WAITERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When the extension loads.
pub(crate) fn init() {
    unsafe extern "C" fn at_exit(_: *mut rb_sys::ruby_vm_t) {
        guard::end();
    }
    // SAFETY: a function that stays; called with the GVL held.
    unsafe { rb_sys::ruby_vm_at_exit(Some(at_exit)) };
    job::init();
}

#[cfg(not(ruby_gte_3_3))]
mod job {
    pub(super) fn init() {}

    pub(super) fn trigger() -> bool {
        false
    }
}

/// Does `body` on a thread that is none of Ruby's, and drains on the calling one until it is done: where Ruby ends there is no
/// other. False if there can be no such thread.
pub(crate) fn serve(body: impl FnOnce() -> bool + Send + 'static) -> Result<bool, Error> {
    let is_done = Arc::new(AtomicBool::new(false));
    let done = is_done.clone();
    let mut heard = bell::heard();
    let served = std::thread::Builder::new().name("spanprof-stop".into()).spawn(move || {
        // Who waits would do so for ever if a panic came past here.
        let result = quietly(body);
        done.store(true, Ordering::Release);
        bell::ring();
        result
    });
    let Ok(served) = served else { return Ok(false) };
    // Pairs with the store above; who rings the bell has stored before.
    while !is_done.load(Ordering::Acquire) {
        rings::drain();
        let heard = &raw mut heard;
        magnus::rb_sys::protect(|| {
            // SAFETY: as for the parked thread.
            unsafe {
                rb_sys::rb_thread_call_without_gvl(Some(bell::sleep), heard.cast(), Some(bell::wake), ptr::null_mut())
            };
            NIL
        })?;
    }
    Ok(served.join().unwrap_or(false))
}

/// Whether Ruby has begun to end its threads. It waits for each, and would for ever for one that is made from then on.
pub(crate) fn threads_end() -> Result<bool, Error> {
    // SAFETY: called by Ruby.
    let main = unsafe { rb_sys::rb_thread_main() };
    // SAFETY: a Thread. The main one is dead first.
    let main = unsafe { Value::from_raw(main) };
    main.funcall::<_, _, bool>("alive?", ()).map(|is_alive| !is_alive)
}

/// In a forked child, which has no parked thread.
pub(crate) fn forget() {
    parked::forget();
    rings::forget();
    unwind::forget();
    gvl::forget();
    WAITERS.store(0, Ordering::Relaxed);
}
