//! Waits of threads, which the engine measures where they call libc: what that needs in the interpreter, and whether it can be.

use std::ffi::{c_ulong, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use spanprof_core::Profiler;

use crate::drain::bell;
use crate::events::fiber_waits;
#[cfg(ruby_gte_3_3)]
use crate::events::ready;
use crate::span::kept;
use crate::stack::wall_clock::BY_WALL_TIME;
use crate::stack::{gvl, method};

/// How many milliseconds are waited for a thread of ours to let the GVL go, and to come for it.
const PATIENCE: u32 = 20;

/// Measures waits, if that was asked for. Where they are not what they should be they are not measured, which is reported.
pub(crate) fn begin(profiler: &Profiler) {
    if !profiler.config().wall_time || BY_WALL_TIME.load(Ordering::Relaxed) {
        return;
    }
    method::learn();
    match prepare() {
        Ok(()) => fiber_waits::measure(true),
        Err(why) => profiler.measure_no_waits(why),
    }
}

/// Takes out of the interpreter what [`begin`] put there.
pub(crate) fn end() {
    fiber_waits::measure(false);
    #[cfg(ruby_gte_3_3)]
    ready::ignore();
}

fn prepare() -> Result<(), &'static str> {
    if kept::is_on() {
        return Err("with RUBY_MN_THREADS=1 Ruby's threads wait by other means");
    }
    #[cfg(ruby_gte_3_3)]
    ready::watch().map_err(|_| "Ractors are there already, so Ruby does not tell when its threads are woken")?;
    let before = spanprof_core::waited_ns();
    wait_a_millisecond();
    if spanprof_core::waited_ns() - before < 900_000 {
        return Err("a wait of a millisecond was not seen as one");
    }
    if gvl::is_unknown() {
        learn_gvl();
    }
    Ok(())
}

/// Lets the parked thread wait for the GVL while this one holds it, which tells where the mutex of the GVL is. Where that takes too
/// long, the parked thread may learn it later; until then what waits for the GVL waits for a lock.
fn learn_gvl() {
    unsafe extern "C" fn let_it_begin(_: *mut c_void) -> *mut c_void {
        for _ in 0..PATIENCE {
            if gvl::is_away() {
                break;
            }
            sleep(Duration::from_millis(1));
        }
        ptr::null_mut()
    }
    // SAFETY: the function calls nothing of Ruby's. This call raises nothing.
    unsafe { rb_sys::rb_thread_call_without_gvl2(Some(let_it_begin), ptr::null_mut(), None, ptr::null_mut()) };
    if gvl::is_away() {
        bell::ring();
        for _ in 0..PATIENCE {
            wait_a_millisecond();
            if !gvl::is_away() {
                wait_a_millisecond();
                break;
            }
        }
    }
}

/// Ruby waits for what nobody signals. It keeps the GVL, so none of the program's code runs.
fn wait_a_millisecond() {
    type Condition = MaybeUninit<libc::pthread_cond_t>;
    type Mutex = MaybeUninit<libc::pthread_mutex_t>;
    unsafe extern "C" {
        fn rb_native_cond_initialize(condition: *mut Condition);
        fn rb_native_cond_destroy(condition: *mut Condition);
        fn rb_native_cond_timedwait(condition: *mut Condition, mutex: *mut Mutex, milliseconds: c_ulong);
        fn rb_native_mutex_initialize(mutex: *mut Mutex);
        fn rb_native_mutex_destroy(mutex: *mut Mutex);
        fn rb_native_mutex_lock(mutex: *mut Mutex);
        fn rb_native_mutex_unlock(mutex: *mut Mutex);
    }
    let (mut condition, mut mutex) = (Condition::uninit(), Mutex::uninit());
    let (condition, mutex) = (&raw mut condition, &raw mut mutex);
    // SAFETY: places of their own, on Linux of these sizes.
    unsafe { rb_native_cond_initialize(condition) };
    // SAFETY: as above.
    unsafe { rb_native_mutex_initialize(mutex) };
    // SAFETY: initialized above, as all that follow need.
    unsafe { rb_native_mutex_lock(mutex) };
    // SAFETY: locked by this thread.
    unsafe { rb_native_cond_timedwait(condition, mutex, 1) };
    // SAFETY: as above.
    unsafe { rb_native_mutex_unlock(mutex) };
    // SAFETY: nobody else knows of it.
    unsafe { rb_native_mutex_destroy(mutex) };
    // SAFETY: as above.
    unsafe { rb_native_cond_destroy(condition) };
}
