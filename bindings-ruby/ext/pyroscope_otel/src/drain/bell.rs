//! What threads sleep on that are to drain.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often it rang. A count, as until the last parked thread has ended there may be two, and neither may take what was meant for the
/// other: it would sleep for ever, and with it Ruby's exit, which waits for it.
static BELL: AtomicU32 = AtomicU32::new(0);

/// How often it rang until now: what [`sleep`] is to be given.
pub(super) fn heard() -> u32 {
    BELL.load(Ordering::Acquire)
}

/// Until the bell rings again; `heard` is how often the caller has heard it.
pub(super) unsafe extern "C" fn sleep(heard: *mut c_void) -> *mut c_void {
    let heard = heard.cast::<u32>();
    // SAFETY: the caller passes its own number, which nobody else knows of.
    let before = unsafe { heard.read() };
    let mut now = BELL.load(Ordering::Acquire);
    while now == before {
        futex(libc::FUTEX_WAIT, before);
        now = BELL.load(Ordering::Acquire);
    }
    // SAFETY: as above.
    unsafe { heard.write(now) };
    ptr::null_mut()
}

/// Ends a [`sleep`] for Ruby.
pub(super) unsafe extern "C" fn wake(_: *mut c_void) {
    ring();
}

pub(crate) fn ring() {
    // Pairs with the loads of `heard` and `sleep`.
    BELL.fetch_add(1, Ordering::Release);
    futex(libc::FUTEX_WAKE, i32::MAX.unsigned_abs());
}

fn futex(operation: i32, value: u32) {
    // SAFETY: a static word, no timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            BELL.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            ptr::null::<libc::timespec>(),
        )
    };
}
