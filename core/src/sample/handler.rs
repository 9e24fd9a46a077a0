//! The signal handler, and the one signal that all timers send.
//!
//! Rules, for this file and for all it calls (`context/{span_slot,span_record,names}`, `sample/{threads,ring,safe_load,
//! frame_pointer,wake}`, a binding's `unwind.rs`): no allocation, lock, log, panic, lazy initialisation, first touch of
//! a thread-local; errno is kept. System calls and libc functions used: `__errno_location` (reads a register),
//! `clock_gettime` (async-signal-safe by POSIX, and no system call for CLOCK_MONOTONIC), `futex` (a raw system call, when
//! a ring is half full), `process_vm_readv` (raw, where safe_load's handlers were replaced), what the header of a
//! binding's `unwind.rs` names.
//!
//! The thread's record is found by `sival`, record number and generation: a signal that comes late, after its record
//! was given to another thread or after the profiler stopped, finds another generation and does nothing.

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use super::ring::Written;
use super::runtime::{FrameWriter, Runtime};
use super::threads::{self, ThreadRecord};
use super::wake::Wake;
use crate::clock;
use crate::context::names::{self, WINDOW};
use crate::context::tags::TagSetId;
use crate::error::{Error, ErrorKind};
use crate::profile::profile_type::ProfileTypeId;

/// Wakes the profiler's thread: a ring is half full, or somebody waits for a flush or a stop.
pub(crate) static WAKE: Wake = Wake::new();

static RUNTIME: AtomicPtr<&'static dyn Runtime> = AtomicPtr::new(ptr::null_mut());
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// siginfo_t of a timer's signal, as the kernel lays it out.
#[repr(C)]
struct TimerSignal {
    signo: i32,
    errno: i32,
    code: i32,
    _pad: i32,
    timer_id: i32,
    overrun: i32,
    value: u64,
}

const _: () = assert!(mem::offset_of!(TimerSignal, overrun) == 20 && mem::offset_of!(TimerSignal, value) == 24);
const _: () = assert!(size_of::<TimerSignal>() <= size_of::<libc::siginfo_t>());

/// Names the runtime that the handler asks. It stays for ever.
pub(crate) fn set_runtime(runtime: &'static dyn Runtime) {
    let known = RUNTIME.load(Ordering::Acquire);
    // SAFETY: not null, it came from Box::leak below.
    let is_known = !known.is_null() && ptr::addr_eq(unsafe { *known }, runtime);
    if !is_known {
        RUNTIME.store(Box::leak(Box::new(runtime)), Ordering::Release);
    }
}

/// The signal that timers send, installed if it is not yet: the first real-time one from SIGRTMIN + 6 up that nobody
/// uses. It stays installed for ever and does nothing while no profiler runs. One that was taken from us is the last
/// choice: who resets it once may do so again.
pub(crate) fn install() -> Result<i32, Error> {
    let lost = signal();
    if is_installed() {
        return Ok(lost);
    }
    let others = (libc::SIGRTMIN() + 6..=libc::SIGRTMAX()).filter(|signal| *signal != lost);
    for signal in others.chain(Some(lost).filter(|lost| *lost != 0)) {
        if action(signal, None).is_some_and(|action| action.sa_sigaction == libc::SIG_DFL) {
            // SAFETY: a sigaction is plain bits; zero is an empty mask and no flags.
            let mut ours: libc::sigaction = unsafe { mem::zeroed() };
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
            ours.sa_sigaction = handler as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            action(signal, Some(&ours));
            SIGNAL.store(signal, Ordering::Release);
            return Ok(signal);
        }
    }
    Err(Error::new(ErrorKind::System, "no real-time signal is free (SIGRTMIN + 6 and up all have a handler)"))
}

/// The signal in use, 0 before the first start.
pub(crate) fn signal() -> i32 {
    SIGNAL.load(Ordering::Acquire)
}

/// Whether our signal still has our handler.
pub(crate) fn is_installed() -> bool {
    let signal = signal();
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
    signal != 0 && action(signal, None).is_some_and(|action| action.sa_sigaction == handler as usize)
}

fn action(signal: i32, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: a sigaction is plain bits.
    let mut old: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: `new` is null or valid, `old` is valid.
    let done = unsafe { libc::sigaction(signal, new.map_or(ptr::null(), ptr::from_ref), &raw mut old) } == 0;
    done.then_some(old)
}

extern "C" fn on_signal(_signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: always valid; a register-relative address, no first touch.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    // SAFETY: an SA_SIGINFO handler gets a valid siginfo_t, and TimerSignal is not larger.
    let info = unsafe { &*info.cast::<TimerSignal>() };
    if info.code == libc::SI_TIMER
        && let Some(record) = threads::by_signal_value(info.value)
    {
        let since = clock::monotonic_ns();
        if record.enter(info.value) {
            // SAFETY: `enter` says that the record is this thread's and keeps its ring until `leave`.
            unsafe { sample(record, 1 + u64::from(info.overrun.max(0).cast_unsigned()), context.cast()) };
            record.count_time(clock::monotonic_ns().saturating_sub(since));
        }
        record.leave();
    }
    // SAFETY: as above.
    unsafe { *errno = kept };
}

/// Takes one sample of the calling thread that stands for `expiries` of its timer.
///
/// # Safety
/// In the handler, between `enter` and `leave` of this thread's own record.
#[inline]
unsafe fn sample(record: &ThreadRecord, expiries: u64, context: *const libc::ucontext_t) {
    let runtime = RUNTIME.load(Ordering::Acquire);
    if runtime.is_null() {
        return;
    }
    // SAFETY: not null, so it was leaked by `set_runtime`.
    let runtime = unsafe { *runtime };
    let weight = record.count_expiries(expiries);
    let window = WINDOW.load(Ordering::Relaxed);
    // SAFETY: we are in the handler, on the record's thread.
    let inside = unsafe { runtime.context(record, context) };
    let thread_tags: TagSetId = record.thread_tags();
    // SAFETY: as above.
    let walk = |out: &mut FrameWriter<'_>| unsafe { runtime.walk(record, context, out) };
    // SAFETY: this thread's ring, and the handler does not interrupt itself: its signal is masked meanwhile.
    let written = unsafe { record.ring().write(ProfileTypeId::TIMER, weight, inside, thread_tags, window, walk) };
    match written {
        Written::Yes { half_full } => {
            record.count_written(weight);
            // SAFETY: null or valid until the handler returns, as the runtime promises.
            if let Some(span) = unsafe { inside.span.as_ref() } {
                names::mark_sampled(span.span_id(), window);
            }
            if half_full {
                WAKE.wake();
            }
        }
        Written::Full => {
            record.count_dropped(weight);
            WAKE.wake();
        }
    }
}
