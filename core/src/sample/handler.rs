//! The signal handler, and the one signal that all timers send.
//!
//! Rules, for this file and for all it calls (`os/{clock,futex,switches}`, `context/{span_slot,span_record,span_names}`, `sample/{record,
//! gate,ring,cursor,frames,safe_load,frame_pointer,waits/{block,claim,flow,wrappers}}`, a binding's `stack/`): no allocation, lock, log, panic, lazy
//! initialisation, first touch of a thread-local; errno is kept. System calls and libc functions used: `__errno_location` (reads a register),
//! `clock_gettime` (the kernel's in this process, `sample/kernel_clock`, as one that is preloaded may do anything, else libc's, async-signal-safe
//! by POSIX; a system call where a timer was late, and with wall time), `getrusage` (a system call, where a thread was kept from running), `futex` (a raw system call, when
//! a ring is half full), `process_vm_readv` (raw, where safe_load's handlers were replaced), what the doc of a
//! binding's `stack/` names.
//!
//! However long a walk takes, the program gets on: see [`ThreadRecord::begin_sample`].
//!
//! The thread's record is found by `sival`, record number and generation: a signal that comes late, after its record
//! was given to another thread or after the profiler stopped, finds another generation and does nothing.

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use super::frames::FrameWriter;
use super::record::{self, ThreadRecord};
use super::ring::{Era, Measure, Written};
use super::runtime::{Runtime, SampleSignal};
use super::safe_load::{self, WithoutFaults};
use super::shared_signal;
use super::threads;
use super::waits::claim;
use super::waits::own_record;
use crate::context::current::Context;
use crate::context::span_names::{self, WINDOW};
use crate::context::tags::TagSetId;
use crate::error::{Error, ErrorKind};
use crate::os::clock;
use crate::os::futex::Wake;
use crate::profile_type::ProfileTypeId;
use crate::wait_state::State;

/// Wakes the profiler's thread: a ring is half full, or somebody waits for a flush or a stop.
pub(crate) static WAKE: Wake = Wake::new();

static RUNTIME: AtomicPtr<&'static dyn Runtime> = AtomicPtr::new(ptr::null_mut());
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// The handler that a shared signal had before us, 0 for none; it takes three arguments.
static PREVIOUS: AtomicUsize = AtomicUsize::new(0);

/// What taking a sample may need of a stack, the walk included. With the kernel's frame above it, 2,184 bytes of an alternate stack
/// were seen to be used, and 1,902 by CoreCLR's walk without it. POSIX lets one be of 2,048 bytes: samples that have no room there are
/// counted as dropped. Code that is not optimized takes more.
const SAMPLE_BYTES: usize = if cfg!(debug_assertions) { 4_096 } else { 2_048 };

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

/// The runtime that is asked, once a profiler has started.
#[inline]
pub(super) fn runtime() -> Option<&'static dyn Runtime> {
    // SAFETY: null or leaked by `set_runtime`.
    unsafe { RUNTIME.load(Ordering::Acquire).as_ref() }.copied()
}

/// The signal that timers send, installed if it is not yet: the host's, or SIGURG unless the host has a use for it, or the
/// first real-time one from SIGRTMIN + 6 up, whichever nobody uses. It stays installed for ever and does nothing of its own while no profiler runs.
///
/// SIGURG is the only one whose default is to be ignored: a program, or its forked child, that puts all signals back to
/// their defaults loses samples until that is seen, where a real-time signal would end it. Who wants it for himself sets
/// a handler, and we move on. A real-time one that was taken from us is the last choice: who resets it once may do so again.
pub(crate) fn install(choice: SampleSignal) -> Result<i32, Error> {
    let lost = signal();
    if is_installed() {
        return Ok(lost);
    }
    if let SampleSignal::Shared(signal) = choice {
        return share(signal);
    }
    let real_time = (libc::SIGRTMIN() + 6..=libc::SIGRTMAX()).filter(|signal| *signal != lost);
    let urgent = Some(libc::SIGURG).filter(|_| choice == SampleSignal::Own);
    for signal in urgent.into_iter().chain(real_time).chain(Some(lost).filter(|lost| *lost != 0)) {
        if action(signal, None).is_some_and(|action| action.sa_sigaction == libc::SIG_DFL) {
            // SAFETY: a sigaction is plain bits; zero is an empty mask and no flags.
            let mut ours: libc::sigaction = unsafe { mem::zeroed() };
            ours.sa_mask = all_but_faults();
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
            ours.sa_sigaction = handler as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            action(signal, Some(&ours));
            SIGNAL.store(signal, Ordering::Release);
            safe_load::set_sampling_signal(signal);
            return Ok(signal);
        }
    }
    Err(Error::new(ErrorKind::System, "no signal is free (SIGRTMIN + 6 and up all have a handler)"))
}

/// The signals that wait while our handler runs: one of the program's might jump out of it (siglongjmp), and that by which libc cancels a
/// thread at once would unwind it. Not those of faults, which a walk may meet.
fn all_but_faults() -> libc::sigset_t {
    const FAULTS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
    // SAFETY: plain bits. sigfillset leaves out libc's own.
    let mut mask: libc::sigset_t = unsafe { mem::transmute([u8::MAX; size_of::<libc::sigset_t>()]) };
    for fault in FAULTS {
        // SAFETY: as above.
        unsafe { libc::sigdelset(&raw mut mask, fault) };
    }
    mask
}

/// Puts our handler before the one that a signal has, with its mask and flags.
fn share(signal: i32) -> Result<i32, Error> {
    // Whoever came after us may call us for what is not his: to call him in turn would never end.
    if SIGNAL.load(Ordering::Acquire) == signal {
        return Err(Error::new(
            ErrorKind::System,
            format!("the action of signal {signal}, which the runtime and the profiler share, was replaced"),
        ));
    }
    let Some(mut shared) = action(signal, None) else {
        return Err(Error::new(ErrorKind::System, format!("the action of signal {signal} cannot be read")));
    };
    let is_handler = shared.sa_sigaction != libc::SIG_DFL && shared.sa_sigaction != libc::SIG_IGN;
    if is_handler && shared.sa_flags & libc::SA_SIGINFO == 0 {
        let why = format!("signal {signal} has a handler of the old kind, which cannot be shared");
        return Err(Error::new(ErrorKind::System, why));
    }
    PREVIOUS.store(if is_handler { shared.sa_sigaction } else { 0 }, Ordering::Release);
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
    shared.sa_sigaction = handler as usize;
    shared.sa_flags |= libc::SA_SIGINFO | libc::SA_RESTART;
    action(signal, Some(&shared));
    SIGNAL.store(signal, Ordering::Release);
    safe_load::set_sampling_signal(signal);
    if is_handler {
        shared_signal::keep(signal, PREVIOUS.load(Ordering::Acquire));
    }
    Ok(signal)
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

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: an SA_SIGINFO handler gets a valid siginfo_t, and TimerSignal is not larger.
    let timer = unsafe { &*info.cast::<TimerSignal>() };
    match record::by_signal_value(timer.value) {
        Some(record) if timer.code == libc::SI_TIMER => {
            // SAFETY: the third argument of a handler, and an address on its stack.
            let room = unsafe { safe_load::room_below((&raw const timer).addr(), context.cast()) };
            on_timer(record, timer, context, room);
        }
        _ => {
            let previous = PREVIOUS.load(Ordering::Acquire);
            if previous != 0 {
                // SAFETY: it was the action of this signal, with SA_SIGINFO.
                let previous: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { mem::transmute(previous) };
                previous(signal, info, context);
            }
        }
    }
}

/// On its own, so that [`on_signal`] needs little of a stack.
#[inline(never)]
fn on_timer(record: &ThreadRecord, timer: &TimerSignal, context: *mut libc::c_void, room: usize) {
    // SAFETY: always valid; a register-relative address, no first touch.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    let since = clock::monotonic_ns();
    if record.enter(timer.value) {
        let walks = record.begin_sample(since);
        let expiries = match record.is_reminded() {
            true => record.told_by_clock(clock::read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)),
            false => 1 + u64::from(timer.overrun.max(0).cast_unsigned()),
        };
        // SAFETY: `enter` says that the record is this thread's and keeps its ring until `leave`.
        unsafe { sample(record, since, expiries, context.cast(), walks, room) };
        record.end_sample(since, clock::monotonic_ns());
    }
    record.leave();
    // SAFETY: as above.
    unsafe { *errno = kept };
}

/// Takes one sample of the calling thread that stands for `expiries` of its timer; with its stack if it `walks`.
///
/// # Safety
/// In the handler, between `enter` and `leave` of this thread's own record.
#[inline]
unsafe fn sample(
    record: &ThreadRecord,
    now_ns: u64,
    expiries: u64,
    context: *const libc::ucontext_t,
    walks: bool,
    room: usize,
) {
    let Some(runtime) = runtime() else { return };
    // SAFETY: we are in the handler, on the record's thread.
    if record.is_busy() || unsafe { runtime.defers(record) } {
        record.defer(expiries);
        return;
    }
    let value = record.count_expiries(expiries + record.take_deferred());
    if value == 0 {
        return;
    }
    let room = room.saturating_sub(runtime.signal_stack_guard());
    if room < SAMPLE_BYTES {
        record.count_cramped(value);
        return;
    }
    // SAFETY: as above.
    let _loads = unsafe { WithoutFaults::where_needed(context, room.saturating_sub(SAMPLE_BYTES)) };
    // SAFETY: as above.
    let inside = unsafe { runtime.context(record, context) };
    let walk = |out: &mut FrameWriter<'_>| {
        if walks {
            // SAFETY: as above.
            unsafe { runtime.walk(record, context, out) };
        }
    };
    // SAFETY: as above.
    let state = if unsafe { runtime.is_collecting(record) } { State::Gc } else { State::Cpu };
    let claim = claim::take(record, inside, now_ns);
    let measure = Measure { profile_type: ProfileTypeId::TIMER, state, count: 1, claim, value };
    // SAFETY: this thread's ring, and the handler does not interrupt itself: its signal is masked meanwhile.
    unsafe { write(record, runtime, measure, inside, walk) };
}

/// Writes a sample into a thread's ring and counts it; false = there was no room.
///
/// # Safety
/// On the record's thread, between `enter` and `leave`, and by one writer at a time: the handler, or somebody who made
/// the record busy. The span of `inside` is null or valid.
#[inline]
pub(super) unsafe fn write(
    record: &ThreadRecord,
    runtime: &dyn Runtime,
    measure: Measure,
    inside: Context,
    walk: impl Fn(&mut FrameWriter<'_>),
) -> bool {
    let era = Era { window: WINDOW.load(Ordering::Relaxed), epoch: runtime.epoch() };
    let thread_tags: TagSetId = record.thread_tags();
    // SAFETY: as the caller promises.
    let written = unsafe { record.ring().write(measure, inside, thread_tags, era, walk) };
    match written {
        Written::Yes { half_full } => {
            record.count_written(measure.value);
            // SAFETY: null or valid, as the caller promises.
            if let Some(span) = unsafe { inside.span.as_ref() } {
                span_names::mark_sampled(span.span_id(), era.window);
            }
            if half_full {
                WAKE.wake();
            }
            true
        }
        Written::Full => {
            record.count_dropped(measure.value);
            WAKE.wake();
            false
        }
    }
}

/// Writes an entry that is no sample and is not counted, but stands for a claim of so many nanoseconds on the thread's time in the run
/// queue; false: there was no room, and it is lost.
///
/// # Safety
/// As for [`write`].
pub(super) unsafe fn write_claim(
    record: &ThreadRecord,
    runtime: &dyn Runtime,
    claimed_ns: u64,
    inside: Context,
    walk: impl Fn(&mut FrameWriter<'_>),
) -> bool {
    let measure =
        Measure { profile_type: ProfileTypeId::TIMER, state: State::RunQueue, count: 1, claim: 0, value: claimed_ns };
    let era = Era { window: WINDOW.load(Ordering::Relaxed), epoch: runtime.epoch() };
    // SAFETY: as the caller promises.
    let Written::Yes { half_full } = (unsafe { record.ring().write(measure, inside, record.thread_tags(), era, walk) })
    else {
        return false;
    };
    // SAFETY: null or valid, as the caller promises.
    if let Some(span) = unsafe { inside.span.as_ref() } {
        span_names::mark_sampled(span.span_id(), era.window);
    }
    if half_full {
        WAKE.wake();
    }
    true
}

/// Takes a sample of the calling thread outside a handler: an allocation, a wait, an exception.
///
/// `value` is in the unit of the profile type, `count` says how many things the sample stands for (see
/// [`ProfileType::sample_types`](crate::ProfileType)). `walk` pushes the stack, leaf first, and may be called twice. A
/// timer's signal that comes meanwhile is deferred. 15 to 20 ns with warm caches, and the walk; a thread's first sample maps a ring. Nobody
/// is waited for: where the thread has no record yet, and another one has the registry just then, the sample is dropped. False: no
/// profiler runs, or the sample was dropped, and counted.
///
/// # Safety
/// Not from a signal handler, and not within `walk`. The span of `context` is null or valid until this returns.
pub unsafe fn sample_here(
    profile_type: ProfileTypeId,
    value: u64,
    count: u16,
    context: Context,
    walk: impl Fn(&mut FrameWriter<'_>),
) -> bool {
    // SAFETY: as the caller promises.
    unsafe { sample_state_here(profile_type, State::Cpu, value, count, context, walk) }
}

/// As [`sample_here`], of wall time that went to `state`.
///
/// # Safety
/// As for [`sample_here`].
pub(super) unsafe fn sample_state_here(
    profile_type: ProfileTypeId,
    state: State,
    value: u64,
    count: u16,
    context: Context,
    walk: impl Fn(&mut FrameWriter<'_>),
) -> bool {
    let measure = |_: &ThreadRecord| Some(Measure { profile_type, state, count, claim: 0, value });
    // SAFETY: as the caller promises.
    unsafe { write_here(measure, context, walk) }.unwrap_or_else(|| threads::drop_here(value))
}

/// Takes a sample of the calling thread with the CPU time that its handlers deferred during a garbage collection
/// ([`Runtime::defers`](crate::Runtime::defers)); nothing if there is none, which costs about 5 ns. False as above.
///
/// # Safety
/// As for [`sample_here`].
pub unsafe fn sample_deferred(context: Context, walk: impl Fn(&mut FrameWriter<'_>)) -> bool {
    let measure = |record: &ThreadRecord| {
        let value = record.count_expiries(record.take_deferred());
        if value == 0 {
            return None;
        }
        let claim = claim::take(record, context, clock::monotonic_ns());
        Some(Measure { profile_type: ProfileTypeId::TIMER, state: State::Gc, count: 1, claim, value })
    };
    // SAFETY: as the caller promises.
    unsafe { write_here(measure, context, walk) }.unwrap_or(false)
}

/// Writes what `measure` says into the calling thread's ring; `None` = it has none, or there was nothing to write.
///
/// # Safety
/// As for [`sample_here`].
unsafe fn write_here(
    measure: impl FnOnce(&ThreadRecord) -> Option<Measure>,
    context: Context,
    walk: impl Fn(&mut FrameWriter<'_>),
) -> Option<bool> {
    let runtime = runtime()?;
    let (record, value) = own_record::own()?;
    let mut written = None;
    if record.enter(value) {
        record.set_busy(true);
        if let Some(measure) = measure(record) {
            // SAFETY: entered, and busy keeps this thread's handler out.
            written = Some(unsafe { write(record, runtime, measure, context, walk) });
        }
        record.set_busy(false);
    }
    record.leave();
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_is_cancelled_within_the_handler_and_faults_are_met() {
        let mask = all_but_faults();
        // 32: SIGCANCEL of glibc, 33: that of musl.
        // SAFETY: a valid set.
        let waits = |signal| unsafe { libc::sigismember(&raw const mask, signal) } == 1;
        assert!([32, 33, libc::SIGALRM, libc::SIGRTMAX()].into_iter().all(waits));
        assert!(![libc::SIGSEGV, libc::SIGBUS].into_iter().any(waits));
    }
}
