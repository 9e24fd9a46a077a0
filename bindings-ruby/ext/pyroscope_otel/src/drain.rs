//! Draining under the GVL: the engine's thread asks, Ruby comes by.
//!
//! From Ruby 3.3 on by a postponed job, which runs at the next instruction that looks for one. While no Ruby runs (all
//! threads sleep, or one is in a long call of C) nothing looks; so if two requests find no answer, and on older Rubies, where
//! asking for a job may race, at each request, the engine's thread wakes a Ruby thread of ours that is parked outside
//! the GVL. That it may be killed by a program (`Thread.list.each(&:kill)`) is seen and mended.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Module, RClass, Ruby, Value};
use rb_sys::VALUE;
use spanprof_core::DrainPermit;

use crate::errors::{is_thread_error, quietly};
use crate::messages::guard_is_lost;
use crate::stack::guard;
use crate::state::running;
use crate::symbols::functions;
use crate::value::{Gvl, NIL};

/// A request that nobody has answered.
static IS_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Callers of flush and stop, who wait for an answer.
static WAITERS: AtomicU32 = AtomicU32::new(0);
/// Somebody drains; a drain may run Ruby's jobs, hence another drain.
static DRAINS: AtomicBool = AtomicBool::new(false);
/// Faults came to us when they were last looked at.
static WAS_GUARDED: AtomicBool = AtomicBool::new(true);
/// It was told that they do not.
static GUARD_TOLD: AtomicBool = AtomicBool::new(false);

/// CPU time of draining and looking up names, which the program's threads do for us.
static DRAIN_NS: AtomicU64 = AtomicU64::new(0);

/// What parked threads sleep on: how often the bell rang. A count, as until the last one has ended there may be two, and
/// neither may take what was meant for the other: it would sleep for ever, and with it Ruby's exit, which waits for it.
static BELL: AtomicU32 = AtomicU32::new(0);
/// Which parked thread is the one; others end.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// It is there.
static IS_PARKED: AtomicBool = AtomicBool::new(false);

/// Asks for a drain. Not under the GVL.
pub(crate) fn request() {
    if guard::has_ended() {
        return;
    }
    // Told when it is so twice in a row, as that is told once only; until then stacks are not read all the same.
    if guard::look_at_guard() {
        WAS_GUARDED.store(true, Ordering::Relaxed);
    } else if !WAS_GUARDED.swap(false, Ordering::Relaxed) && !GUARD_TOLD.swap(true, Ordering::Relaxed) {
        guard_is_lost();
    }
    let is_unanswered = IS_REQUESTED.swap(true, Ordering::Relaxed);
    let is_triggered = job::trigger();
    if is_unanswered || !is_triggered || WAITERS.load(Ordering::Relaxed) > 0 {
        ring_bell();
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

fn drain() {
    // SAFETY: called by Ruby.
    let gvl = unsafe { Gvl::held() };
    if IS_REQUESTED.load(Ordering::Relaxed) && !DRAINS.swap(true, Ordering::Relaxed) {
        let _end = EndOfDrain { began_ns: thread_cpu_ns() };
        IS_REQUESTED.store(false, Ordering::Relaxed);
        functions::turn_windows(gvl);
        if let Some(profiler) = running() {
            // SAFETY: the GVL is held until this returns.
            profiler.drain(&unsafe { DrainPermit::new() });
        }
    }
}

struct EndOfDrain {
    began_ns: u64,
}

impl Drop for EndOfDrain {
    fn drop(&mut self) {
        DRAIN_NS.fetch_add(thread_cpu_ns().saturating_sub(self.began_ns), Ordering::Relaxed);
        DRAINS.store(false, Ordering::Relaxed);
    }
}

/// CPU time that drains took in this process, nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    DRAIN_NS.load(Ordering::Relaxed)
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that each thread has, and a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
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

#[cfg(ruby_gte_3_3)]
mod job {
    use std::ffi::{c_uint, c_void};
    use std::ptr;
    use std::sync::OnceLock;

    use crate::errors::quietly;

    /// Of our job; `None`: Ruby's table is full, and the parked thread reads rings alone.
    static HANDLE: OnceLock<Option<c_uint>> = OnceLock::new();

    pub(super) fn init() {
        // SAFETY: a function that stays; called with the GVL held.
        let handle = unsafe { rb_sys::rb_postponed_job_preregister(0, Some(run), ptr::null_mut()) };
        HANDLE.get_or_init(|| (handle != c_uint::MAX).then_some(handle));
    }

    /// Whether a job will come.
    pub(super) fn trigger() -> bool {
        let Some(Some(handle)) = HANDLE.get() else { return false };
        // SAFETY: may be called from any thread, also without the GVL.
        unsafe { rb_sys::rb_postponed_job_trigger(*handle) };
        true
    }

    unsafe extern "C" fn run(_: *mut c_void) {
        quietly(super::drain);
    }
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
    let mut heard = BELL.load(Ordering::Acquire);
    let served = std::thread::Builder::new().name("spanprof-stop".into()).spawn(move || {
        // Who waits would do so for ever if a panic came past here.
        let result = quietly(body);
        done.store(true, Ordering::Release);
        ring_bell();
        result
    });
    let Ok(served) = served else { return Ok(false) };
    // Pairs with the store above; who rings the bell has stored before.
    while !is_done.load(Ordering::Acquire) {
        drain();
        let heard = &raw mut heard;
        magnus::rb_sys::protect(|| {
            // SAFETY: as in `stay`.
            unsafe { rb_sys::rb_thread_call_without_gvl(Some(sleep), heard.cast(), Some(wake), ptr::null_mut()) };
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

/// Sees to it that the parked thread is there.
pub(crate) fn park() -> Result<(), Error> {
    if IS_PARKED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let made = magnus::rb_sys::protect(|| {
        // SAFETY: a function that stays; its argument is a number.
        unsafe { rb_sys::rb_thread_create(Some(run), ptr::without_provenance_mut(generation as usize)) }
    });
    let described = made.and_then(|thread| {
        // SAFETY: a Thread that was just made.
        let thread = unsafe { Value::from_raw(thread) };
        thread.funcall::<_, _, Value>("name=", ("pyroscope",))?;
        thread.funcall::<_, _, Value>("report_on_exception=", (false,))?;
        leave_group(thread)
    });
    if described.is_err() {
        IS_PARKED.store(false, Ordering::Relaxed);
    }
    described
}

/// Whoever starts the profiler may wait for the threads of its group, which this one is in: it goes to the one that all begin in.
fn leave_group(thread: Value) -> Result<(), Error> {
    let groups: RClass = Ruby::get_with(thread).class_object().const_get("ThreadGroup")?;
    let first: Value = groups.const_get("Default")?;
    match first.funcall::<_, _, Value>("add", (thread,)) {
        // The group is enclosed: nobody leaves it.
        Err(error) if is_thread_error(&error) => Ok(()),
        added => added.map(drop),
    }
}

/// The same, if Ruby can make a thread.
pub(crate) fn park_if_possible() -> Result<(), Error> {
    match park() {
        Err(error) if is_thread_error(&error) => Ok(()),
        parked => parked,
    }
}

/// Ends the parked thread.
pub(crate) fn unpark() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    IS_PARKED.store(false, Ordering::Relaxed);
    ring_bell();
}

/// In a forked child, which has none.
pub(crate) fn forget() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    IS_PARKED.store(false, Ordering::Relaxed);
    IS_REQUESTED.store(false, Ordering::Relaxed);
    DRAINS.store(false, Ordering::Relaxed);
    DRAIN_NS.store(0, Ordering::Relaxed);
    WAITERS.store(0, Ordering::Relaxed);
}

unsafe extern "C" fn run(generation: *mut c_void) -> VALUE {
    let generation = generation.addr() as VALUE;
    // SAFETY: two functions that take the number; the second runs however the first is left, by a kill too.
    unsafe { rb_sys::rb_ensure(Some(unmask), generation, Some(left), generation) }
}

/// A thread inherits what its maker defers (`Thread.handle_interrupt`). Nothing is deferred here, or nobody could end this one.
unsafe extern "C" fn unmask(generation: VALUE) -> VALUE {
    // Nothing with a destructor lives here, as a kill jumps.
    // SAFETY: called by Ruby, with the GVL held, and the name ends.
    let id = |name: &CStr| unsafe { rb_sys::rb_intern(name.as_ptr()) };
    let (immediate, handle_interrupt) = (id(c"immediate"), id(c"handle_interrupt"));
    // SAFETY: as above, and Ruby has this number.
    let immediate = unsafe { rb_sys::rb_id2sym(immediate) };
    // SAFETY: Ruby's classes have been there since it started.
    let object = unsafe { rb_sys::rb_cObject };
    // SAFETY: as above.
    let thread = unsafe { rb_sys::rb_cThread };
    // SAFETY: as above.
    let mask = unsafe { rb_sys::rb_hash_new() };
    // SAFETY: as above, with a hash that nobody else knows.
    unsafe { rb_sys::rb_hash_aset(mask, object, immediate) };
    // SAFETY: as above, with one argument. The block takes the number, which Ruby looks at only to see that it is no object.
    unsafe { rb_sys::rb_block_call(thread, handle_interrupt, 1, &raw const mask, Some(stay_in_block), generation) }
}

unsafe extern "C" fn stay_in_block(_: VALUE, generation: VALUE, _: c_int, _: *const VALUE, _: VALUE) -> VALUE {
    // SAFETY: as the caller's.
    unsafe { stay(generation) }
}

fn number(generation: VALUE) -> u32 {
    u32::try_from(generation).unwrap_or(0)
}

unsafe extern "C" fn stay(generation: VALUE) -> VALUE {
    // Before the generation and the request are looked at: who changes them rings afterwards.
    let mut heard = BELL.load(Ordering::Acquire);
    while GENERATION.load(Ordering::Relaxed) == number(generation) {
        // The first time too: a bell that rang before this thread ran is not heard any more.
        quietly(drain);
        // SAFETY: both functions stay and call nothing of Ruby's; the number outlives the call. Nothing with a destructor
        // lives here, as a kill jumps.
        unsafe {
            rb_sys::rb_thread_call_without_gvl(Some(sleep), (&raw mut heard).cast(), Some(wake), ptr::null_mut())
        };
    }
    NIL
}

unsafe extern "C" fn left(generation: VALUE) -> VALUE {
    if GENERATION.load(Ordering::Relaxed) == number(generation) {
        IS_PARKED.store(false, Ordering::Relaxed);
    }
    NIL
}

/// Until the bell rings again; `heard` is how often the caller has heard it.
unsafe extern "C" fn sleep(heard: *mut c_void) -> *mut c_void {
    let heard = heard.cast::<u32>();
    // SAFETY: `stay` passes its number, which nobody else knows of.
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

unsafe extern "C" fn wake(_: *mut c_void) {
    ring_bell();
}

fn ring_bell() {
    // Pairs with the loads of `stay` and `sleep`.
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
