//! Walking the stack of the calling thread.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rb_sys::VALUE;
use spanprof_core::{FrameWriter, MAX_FRAMES, may_fault};

use crate::span::saved;
use crate::stack::collection::{is_collecting, is_ending_here};
use crate::stack::frame_id::{ADDRESS_BITS, COLLECTING, MAX_LINE, NATIVE, NO_RUBY_FRAME, UNREADABLE};
use crate::stack::guard::{IS_GUARDED, has_ended};
use crate::stack::wall_clock::{BY_WALL_TIME, leave_alone};

unsafe extern "C" {
    fn pyroscope_profile_frames(limit: c_int, frames: *mut VALUE, lines: *mut c_int) -> c_int;
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

/// Walks that met memory which is not there.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// The Ruby that runs this process.
#[derive(Debug)]
pub(crate) struct Interpreter;

impl Interpreter {
    /// Whether the calling thread's stack cannot be looked at now.
    #[inline]
    pub(crate) fn cannot_be_walked(&self) -> bool {
        // Its own collection, which ends with `walk_collecting`, or another thread's while this one burns without the GVL:
        // then its stack stands still, and its next sample has it. Or the interpreter is just putting another Ruby thread on
        // this native one, whose slot does not speak for it yet.
        !has_ended()
            && is_ruby_thread()
            && ((is_collecting() && !is_ending_here()) || saved::is_switching(running_thread))
    }

    /// Whether another fiber runs in the calling thread than the one that its slot speaks for: Ruby looks for interrupts after it has
    /// switched and before it tells us, so finalizers, handlers of signals and other threads may come between.
    #[inline]
    pub(crate) fn is_between_fibers(&self, known: VALUE) -> bool {
        unsafe extern "C" {
            fn pyroscope_fiber_current() -> VALUE;
        }
        if known == 0 || saved::is_on() || !self.is_walked_here() || !IS_GUARDED.load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: takes nothing, and reads behind the guard.
        unsafe { pyroscope_fiber_current() != known }
    }

    /// Whether the calling thread is one of Ruby's, while there is Ruby.
    #[inline]
    pub(crate) fn is_walked_here(&self) -> bool {
        !has_ended() && is_ruby_thread()
    }

    /// Pushes the stack of the thread that was interrupted.
    ///
    /// # Safety
    /// In a signal handler on that thread; `ucontext` is what the kernel gave it, or null.
    #[inline]
    pub(crate) unsafe fn walk_interrupted(&self, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        if has_ended() {
            out.push(NO_RUBY_FRAME);
        } else if is_ruby_thread() {
            // SAFETY: by the caller's contract.
            if ucontext.is_null() || unsafe { may_fault(ucontext) } {
                self.walk_own(out);
            } else {
                out.push(UNREADABLE);
            }
        } else {
            out.push(NATIVE);
            if BY_WALL_TIME.load(Ordering::Relaxed) && !ucontext.is_null() {
                // SAFETY: the kernel's, which this handler returns by; nobody else refers to it.
                leave_alone(unsafe { &mut *ucontext.cast_mut() });
            }
        }
    }

    /// Pushes the stack of the calling thread, which collects garbage.
    pub(crate) fn walk_collecting(&self, out: &mut FrameWriter<'_>) {
        out.push(COLLECTING);
        self.walk_own(out);
    }

    /// How many frames the calling thread has, `limit` at most, which is small.
    pub(crate) fn depth(&self, limit: u8) -> usize {
        let (mut frames, mut lines) = ([0; 8], [0; 8]);
        let limit = c_int::from(limit.min(8));
        // SAFETY: both have room for so many.
        let depth = unsafe { pyroscope_profile_frames(limit, frames.as_mut_ptr(), lines.as_mut_ptr()) };
        usize::try_from(depth).unwrap_or(0)
    }

    /// Pushes the Ruby stack of the calling thread, leaf first.
    ///
    /// Hot: 60 frames in about 0.3 µs.
    #[inline]
    pub(crate) fn walk_own(&self, out: &mut FrameWriter<'_>) {
        if !IS_GUARDED.load(Ordering::Relaxed) {
            out.push(UNREADABLE);
            return;
        }
        let free = SCRATCH.iter().find(|scratch| {
            // Acquire and Release pair: the last user's writes are done.
            !scratch.is_taken.load(Ordering::Relaxed) && !scratch.is_taken.swap(true, Ordering::Acquire)
        });
        let Some(scratch) = free else {
            out.push(UNREADABLE);
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
                out.push(NO_RUBY_FRAME);
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
                out.push(UNREADABLE);
            }
        }
        scratch.is_taken.store(false, Ordering::Release);
    }
}

/// In a forked child, where the walks of other threads do not go on.
pub(crate) fn forget() {
    for scratch in &SCRATCH {
        scratch.is_taken.store(false, Ordering::Relaxed);
    }
}

/// Walks that met memory which is not there, in this process and those that it was forked from.
pub(crate) fn fault_count() -> u64 {
    FAULTS.load(Ordering::Relaxed)
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
