//! Starts and stops come one after the other: while one thread waits without the GVL for the end of a profiler, no other begins
//! to start or stop one.
//!
//! Used with the GVL held. Whose it is says the process too: a forked child finds its parent's, whose thread does not exist
//! there, and takes no notice of it.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use magnus::Error;

use crate::value::NIL;

/// Waiting for others has an end: each of them takes a stop's time at most.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Which process it is under way in; 0: none.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// And on which of its threads, as the kernel numbers them: Ruby's objects move.
static THREAD: AtomicI64 = AtomicI64::new(0);
/// What others sleep on: how often one ended, or a sleeper was interrupted.
static BELL: AtomicU32 = AtomicU32::new(0);

/// A start or a stop, under way for as long as it lives.
#[derive(Debug)]
pub(crate) struct Transition(());

impl Transition {
    /// Begins one when those of other threads have ended; an error is what interrupted that. `None`: they do not end, or the
    /// calling thread is in one itself (a handler of `trap` runs within another).
    pub(crate) fn begin() -> Result<Option<Self>, Error> {
        let deadline = Instant::now() + TIMEOUT;
        // SAFETY: it only says which thread this is. By number, as glibc has no function for it before 2.30.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        while PROCESS.load(Ordering::Relaxed) == std::process::id() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || THREAD.load(Ordering::Relaxed) == thread {
                return Ok(None);
            }
            sleep(left)?;
        }
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        THREAD.store(thread, Ordering::Relaxed);
        Ok(Some(Self(())))
    }
}

impl Drop for Transition {
    fn drop(&mut self) {
        PROCESS.store(0, Ordering::Relaxed);
        ring();
    }
}

/// Until one ends, or something comes for this thread, which is the error then.
fn sleep(left: Duration) -> Result<(), Error> {
    // Before the GVL is let go, so no end is missed.
    let wait = Wait { heard: BELL.load(Ordering::Relaxed), left };
    magnus::rb_sys::protect(|| {
        let wait = (&raw const wait).cast_mut().cast();
        // SAFETY: both functions stay and call nothing of Ruby's; `wait` outlives the call, and has no destructor.
        unsafe { rb_sys::rb_thread_call_without_gvl(Some(listen), wait, Some(interrupt), ptr::null_mut()) };
        NIL
    })?;
    Ok(())
}

struct Wait {
    heard: u32,
    left: Duration,
}

unsafe extern "C" fn listen(wait: *mut c_void) -> *mut c_void {
    // SAFETY: `sleep` passes its own.
    let wait = unsafe { &*wait.cast::<Wait>() };
    let timeout =
        libc::timespec { tv_sec: wait.left.as_secs().cast_signed(), tv_nsec: i64::from(wait.left.subsec_nanos()) };
    // It comes back at once if the bell rang meanwhile, and may for no reason: who called looks again.
    futex(libc::FUTEX_WAIT, wait.heard, &raw const timeout);
    ptr::null_mut()
}

unsafe extern "C" fn interrupt(_: *mut c_void) {
    ring();
}

fn ring() {
    BELL.fetch_add(1, Ordering::Relaxed);
    futex(libc::FUTEX_WAKE, i32::MAX.unsigned_abs(), ptr::null());
}

fn futex(operation: i32, value: u32, timeout: *const libc::timespec) {
    // SAFETY: a static word, and a timeout that is there or null.
    unsafe { libc::syscall(libc::SYS_futex, BELL.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, timeout) };
}
