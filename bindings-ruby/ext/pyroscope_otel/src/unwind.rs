//! The runtime, as the sampler sees it: what runs in the signal handler.
//!
//! Called there, beside what `core/src/sample/handler.rs` lists: `ruby_native_thread_p` (a thread-local read;
//! `pthread_getspecific` before Ruby 3.3), `rb_during_gc` and `rb_profile_frames` (they read only, the latter behind
//! `shim/guard.c`, which adds `__sigsetjmp` and `siglongjmp`), where native threads are shared `rb_thread_current` (behind
//! the same) and `rb_internal_thread_specific_get`, and for the stress test `sigaddset`. Nothing is walked while garbage is collected: a compacting
//! collection moves what frames refer to and takes SIGSEGV for itself.
//!
//! A frame is an object of Ruby's (`VALUE`), which may be freed or moved: see [`names`](crate::names).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rb_sys::VALUE;
use spanprof_core::{Context, Drain, Frame, FrameWriter, MAX_FRAMES, Runtime, ThreadRecord};

use crate::{drain, events, names, slot};

unsafe extern "C" {
    fn pyroscope_profile_frames(limit: c_int, frames: *mut VALUE, lines: *mut c_int) -> c_int;
}

/// Words that stand for no object: no object has so low an address.
pub(crate) const COLLECTING_WORD: u64 = 1;
pub(crate) const NATIVE_WORD: u64 = 2;
pub(crate) const NO_RUBY_FRAME_WORD: u64 = 3;
pub(crate) const UNREADABLE_WORD: u64 = 4;
/// The first word that does.
pub(crate) const FIRST_OBJECT_WORD: u64 = 512;

/// A word is an object's address, of which the lowest three bits are 0, and above it the line.
const ADDRESS_BITS: u32 = 45;
/// Higher lines are not told, and no word is one of the engine's own.
const MAX_LINE: u64 = (1 << (u64::BITS - ADDRESS_BITS)) - 2;

/// Which object a word stands for.
pub(crate) fn object_of(word: u64) -> VALUE {
    (word & ((1 << ADDRESS_BITS) - 1)) << 3
}

/// The line in a word, 0 if it is not known.
pub(crate) fn line_of(word: u64) -> u32 {
    (word >> ADDRESS_BITS) as u32
}

/// Where rb_profile_frames writes: too much for the 16 KiB of a Ruby thread's signal stack.
struct Scratch {
    is_taken: AtomicBool,
    frames: UnsafeCell<[VALUE; MAX_FRAMES]>,
    lines: UnsafeCell<[c_int; MAX_FRAMES]>,
}

// SAFETY: who sets `is_taken` uses the buffers alone until it clears it.
unsafe impl Sync for Scratch {}

/// More than there are processors, mostly: a handler has one for a microsecond.
static SCRATCH: [Scratch; 64] = [const {
    Scratch {
        is_taken: AtomicBool::new(false),
        frames: UnsafeCell::new([0; MAX_FRAMES]),
        lines: UnsafeCell::new([0; MAX_FRAMES]),
    }
}; 64];

/// Counts collections, see [`names`](crate::names).
pub(crate) static EPOCH: AtomicU32 = AtomicU32::new(0);
/// Walks that met memory which is not there.
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Whether faults come to us: no stack is read without.
static IS_GUARDED: AtomicBool = AtomicBool::new(false);
/// Timers count wall time.
pub(crate) static BY_WALL_TIME: AtomicBool = AtomicBool::new(false);
/// The interpreter is being taken down.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// The Ruby that runs this process.
#[derive(Debug)]
pub(crate) struct Interpreter;

/// The one there is.
pub(crate) static RUBY: Interpreter = Interpreter;

// SAFETY: see the module's doc: the listed calls, no allocation, no lock (a flag is tried), and what may be missing is read
// behind the guard.
unsafe impl Runtime for Interpreter {
    #[inline]
    unsafe fn context(&self, _thread: &ThreadRecord, _ucontext: *const libc::ucontext_t) -> Context {
        slot::own().map_or(Context::NONE, slot::Slot::context)
    }

    #[inline]
    unsafe fn defers(&self, _thread: &ThreadRecord) -> bool {
        // Its own collection, which ends with `walk_collecting`, or another thread's while this one burns without the GVL:
        // then its stack stands still, and its next sample has it. Or the interpreter is just putting another Ruby thread on
        // this native one, whose slot does not speak for it yet.
        !has_ended() && is_ruby_thread() && (is_collecting() || events::is_switching(running_thread))
    }

    #[inline]
    unsafe fn walk(&self, _thread: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        if has_ended() {
            out.push(NO_RUBY_FRAME_WORD);
        } else if is_ruby_thread() {
            self.walk_own(out);
        } else {
            out.push(NATIVE_WORD);
            if BY_WALL_TIME.load(Ordering::Relaxed) && !ucontext.is_null() {
                // SAFETY: the kernel's, which this handler returns by; nobody else refers to it.
                leave_alone(unsafe { &mut *ucontext.cast_mut() });
            }
        }
    }

    fn tells_threads(&self) -> bool {
        // Where native threads are shared, a new one goes on with what another one began.
        !events::shares_threads()
    }

    fn epoch(&self) -> u32 {
        EPOCH.load(Ordering::Relaxed)
    }

    fn keeps_words(&self) -> bool {
        false
    }

    fn window_cut(&self) {
        names::window_cut();
    }

    fn resolve(&self, words: &[u64]) -> Vec<Option<Frame>> {
        names::resolve(words)
    }

    fn request_drain(&self) -> Drain {
        drain::request();
        Drain::Requested
    }
}

/// The interrupted thread takes no real-time signal until it is one of Ruby's.
///
/// Only where timers count wall time, for the stress test: Ruby's own timer thread sleeps 10 ms at a time, begins anew after
/// each signal, and at some thousand of them a second would never come to hand over the GVL.
#[cold]
fn leave_alone(interrupted: &mut libc::ucontext_t) {
    add_real_time(&mut interrupted.uc_sigmask);
}

/// A thread that signals found before it was one of Ruby's, or between two of its, takes them again. When it begins.
pub(crate) fn attend_again() {
    if BY_WALL_TIME.load(Ordering::Relaxed) {
        // SAFETY: a struct of numbers, which the next line sets.
        let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: a set of our own.
        unsafe { libc::sigemptyset(&raw mut signals) };
        add_real_time(&mut signals);
        // SAFETY: a set, and nobody asks for the one before.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut()) };
    }
}

fn add_real_time(signals: &mut libc::sigset_t) {
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        // SAFETY: a set of signals, and one of them.
        unsafe { libc::sigaddset(signals, signal) };
    }
}

#[inline]
fn is_ruby_thread() -> bool {
    // SAFETY: takes nothing and reads a thread-local.
    unsafe { rb_sys::ruby_native_thread_p() != 0 }
}

/// The Ruby thread that runs on this native one; `None`: none does, or it cannot be known.
fn running_thread() -> Option<VALUE> {
    unsafe extern "C" {
        fn pyroscope_thread_current() -> VALUE;
    }
    // SAFETY: takes nothing, and reads behind the guard.
    let thread = IS_GUARDED.load(Ordering::Relaxed).then(|| unsafe { pyroscope_thread_current() });
    thread.filter(|thread| *thread != 0)
}

#[inline]
fn is_collecting() -> bool {
    // SAFETY: takes nothing and reads a flag.
    unsafe { rb_sys::rb_during_gc() != 0 }
}

impl Interpreter {
    /// Pushes the stack of the calling thread, which collects garbage.
    pub(crate) fn walk_collecting(&self, out: &mut FrameWriter<'_>) {
        out.push(COLLECTING_WORD);
        self.walk_own(out);
    }

    /// Pushes the Ruby stack of the calling thread, leaf first.
    ///
    /// Hot: 60 frames in about 0.3 µs.
    #[inline]
    pub(crate) fn walk_own(&self, out: &mut FrameWriter<'_>) {
        if !IS_GUARDED.load(Ordering::Relaxed) {
            out.push(UNREADABLE_WORD);
            return;
        }
        let free = SCRATCH.iter().find(|scratch| {
            // Acquire and Release pair: the last user's writes are done.
            !scratch.is_taken.load(Ordering::Relaxed) && !scratch.is_taken.swap(true, Ordering::Acquire)
        });
        let Some(scratch) = free else {
            out.push(UNREADABLE_WORD);
            return;
        };
        // SAFETY: taken above, so no other reference exists.
        let frames = unsafe { &mut *scratch.frames.get() };
        // SAFETY: as above.
        let lines = unsafe { &mut *scratch.lines.get() };
        #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "512")]
        // SAFETY: both have room for so many.
        let depth = unsafe { pyroscope_profile_frames(MAX_FRAMES as c_int, frames.as_mut_ptr(), lines.as_mut_ptr()) };
        match usize::try_from(depth) {
            Ok(0) => {
                out.push(NO_RUBY_FRAME_WORD);
            }
            Ok(depth) => {
                for (frame, line) in frames.iter().zip(lines.iter()).take(depth) {
                    let line = u64::try_from(*line).map_or(0, |line| if line > MAX_LINE { 0 } else { line });
                    if !out.push((frame >> 3) & ((1 << ADDRESS_BITS) - 1) | line << ADDRESS_BITS) {
                        break;
                    }
                }
            }
            Err(_) => {
                FAULTS.fetch_add(1, Ordering::Relaxed);
                out.push(UNREADABLE_WORD);
            }
        }
        scratch.is_taken.store(false, Ordering::Release);
    }
}

/// Walks that met memory which is not there, in this process and those that it was forked from.
pub(crate) fn fault_count() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// Installs the guard.
pub(crate) fn install_guard() {
    unsafe extern "C" {
        fn pyroscope_install_guard();
    }
    // SAFETY: called with the GVL held, so by one thread at a time.
    unsafe { pyroscope_install_guard() };
    look_at_guard();
}

/// The interpreter ends: nothing of it is looked at any more.
pub(crate) fn end() {
    HAS_ENDED.store(true, Ordering::Relaxed);
    IS_GUARDED.store(false, Ordering::Relaxed);
}

/// Whether it has ended.
pub(crate) fn has_ended() -> bool {
    HAS_ENDED.load(Ordering::Relaxed)
}

/// Looks whether faults still come to us; from then on stacks are read only if they do. Returns that.
///
/// A collection that compacts has the handlers for itself meanwhile. That is no time to look, and stacks are not read then.
pub(crate) fn look_at_guard() -> bool {
    unsafe extern "C" {
        fn pyroscope_is_guarded() -> c_int;
    }
    // SAFETY: takes nothing and only asks the kernel.
    let look = || unsafe { pyroscope_is_guarded() } != 0;
    let mut is_guarded = look();
    // Twice, as a collection may end, or begin, between the two questions.
    for _ in 0..2 {
        if !is_guarded && is_collecting() {
            return IS_GUARDED.load(Ordering::Relaxed);
        }
        is_guarded = is_guarded || look();
    }
    IS_GUARDED.store(is_guarded && !has_ended(), Ordering::Relaxed);
    is_guarded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_address_and_line_apart() {
        let object: VALUE = 0x7fff_ffff_fff8;
        let word = object >> 3 | MAX_LINE << ADDRESS_BITS;
        assert_eq!((object_of(word), u64::from(line_of(word))), (object, MAX_LINE));
        assert!(word < u64::MAX - 16, "the engine's own words");
    }
}
