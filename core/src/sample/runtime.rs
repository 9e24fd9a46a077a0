//! What a host language implements: how to read a thread's span, its stack, and what the frame ids of a stack mean.
//!
//! [`context`](Runtime::context) and [`walk`](Runtime::walk) run in a signal handler on the thread that is sampled;
//! everything else runs on the profiler's own thread.

use super::frames::{Frame, FrameId, FrameWriter};
use super::record::ThreadRecord;
use crate::context::current::Context;
use crate::context::span_times::SpanTimes;
use crate::wait_state::State;

/// What [`Runtime::repair`] says of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// The frames are right now; the extra words are done with.
    Ready,
    /// Ask again at the next drain, for a second at most.
    Later,
}

/// Whether rings may be read right away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// The profiler's thread reads them now.
    Now,
    /// The host was asked and will call [`Profiler::drain`](crate::Profiler::drain) under its own lock.
    Requested,
}

/// Which signal timers send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SampleSignal {
    /// SIGURG, or the first real-time signal from SIGRTMIN + 6 up, whichever nobody uses.
    #[default]
    Own,
    /// The first real-time signal from SIGRTMIN + 6 up that nobody uses: where programs take SIGURG for themselves.
    RealTime,
    /// One that the host uses already: its action's mask and flags are kept, and what is not a timer's of ours goes to
    /// the action found there. Where the module that has this action gives the signal its default back, it is ignored.
    Shared(i32),
}

/// Where a function that waited was called: the frame of the wrapper around it, which still stands. Its first word is the caller's rbp,
/// its second the address to which it returns, and the caller's rsp will be what follows it.
#[derive(Clone, Copy, Debug)]
pub struct WaitFrame(pub(crate) *const [u64; 2]);

impl WaitFrame {
    /// Of a wait whose wrapper has returned.
    pub(crate) const LEFT: Self = Self(std::ptr::null());

    /// The caller's registers as they will be: rip, rsp, rbp. `None`: the wrapper has returned. Async-signal-safe.
    ///
    /// # Safety
    /// Within the call of the [`Runtime`] that the frame was passed to.
    #[inline]
    pub unsafe fn registers(self) -> Option<[u64; 3]> {
        // SAFETY: null, or the wrapper's own frame, as the caller promises.
        let [bp, pc] = *unsafe { self.0.as_ref() }?;
        Some([pc, self.0.addr() as u64 + 16, bp])
    }
}

/// A wait for a lock or a condition that is over.
#[derive(Clone, Copy, Debug)]
pub struct LockWait {
    /// What was waited for.
    pub lock: u64,
    /// The mutex that is held now because of it, or 0.
    pub mutex: usize,
    /// Who called.
    pub caller: usize,
    /// How long it took.
    pub took_ns: u64,
    /// When it was over, by CLOCK_MONOTONIC.
    pub ended_ns: u64,
    /// Where the function that waited was called.
    pub frame: WaitFrame,
}

/// Proof that the host's lock is held, without which rings may not be read: see [`Runtime::request_drain`].
#[derive(Debug)]
pub struct DrainPermit(());

impl DrainPermit {
    /// Makes one.
    ///
    /// # Safety
    /// The caller holds whatever lock its runtime needs for `resolve` and `repair`, as long as the permit lives.
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// A host language, as the sampler sees it. One a process, alive for ever.
///
/// # Safety
/// `context` and `walk` are called in a signal handler on the thread they look at. They must obey the rules of
/// `sample/handler.rs`: no allocation, lock, log, panic, lazy initialisation, first touch of a thread-local, and no
/// libc call that the header there does not list; every load must be of memory that is mapped, or go through
/// [`safe_load`](crate::safe_load). The span that `context` returns must be valid until the handler returns.
pub unsafe trait Runtime: Send + Sync {
    /// Bytes of ring a thread gets: a power of two of at least 4,096.
    fn ring_bytes(&self) -> usize {
        16 * 1024
    }

    /// Whether the SIGSEGV and SIGBUS handlers of [`safe_load`](crate::safe_load) must be installed.
    fn needs_safe_load(&self) -> bool {
        false
    }

    /// How many bytes at the lower end of an alternate stack for signals cannot be used: a runtime's own may begin with a page that guards it.
    fn signal_stack_guard(&self) -> usize {
        0
    }

    /// The span and tags of the interrupted thread. Default: the core's slot, see [`span_start`](crate::span_start).
    ///
    /// # Safety
    /// Called by the handler, on the thread of `thread`; of a wait with a null `ucontext`.
    unsafe fn context(&self, thread: &ThreadRecord, _ucontext: *const libc::ucontext_t) -> Context {
        thread.slot_context()
    }

    /// Whether the interrupted thread's stack must not be looked at now (a garbage collection moves what it refers to):
    /// what the sample stands for goes to the thread's next one, or to [`sample_deferred`](crate::sample_deferred).
    ///
    /// # Safety
    /// Called by the handler, or on the thread itself when a wait is over.
    unsafe fn defers(&self, _thread: &ThreadRecord) -> bool {
        false
    }

    /// Whether the interrupted thread runs the host's garbage collector.
    ///
    /// # Safety
    /// Called by the handler, on the thread of `thread`.
    unsafe fn is_collecting(&self, _thread: &ThreadRecord) -> bool {
        false
    }

    /// Whether each thread that runs the host's code announces itself by [`thread_started`](crate::thread_started). Then the
    /// list of threads is read when their number has changed, and once a second, not on each tick.
    fn announces_threads(&self) -> bool {
        false
    }

    /// A number that moves on when frame ids may begin to mean something else: a garbage collection. Read by the handler.
    fn epoch(&self) -> u32 {
        0
    }

    /// Whether the engine may remember what frame ids mean from window to window.
    fn caches_frames(&self) -> bool {
        true
    }

    /// A window was rotated: what was drained in the one before it is not asked for any longer. Not under the host's lock.
    fn window_rotated(&self) {}

    /// Which signal timers send.
    fn signal(&self) -> SampleSignal {
        SampleSignal::Own
    }

    /// Whether waits can be measured: `context` and `walk` can be called with a null `ucontext`, on a thread that is in a call
    /// of libc, whatever it holds.
    fn measures_waits(&self) -> bool {
        false
    }

    /// Whether a wait was for the lock of the interpreter: where the lock is that was waited for, and who called.
    ///
    /// Obeys the rules of the handler.
    fn is_interpreter_lock(&self, _lock: u64, _caller: usize) -> bool {
        false
    }

    /// How much of a wait, at its end, was for the interpreter's lock: what it took at most. The rules are those of
    /// [`is_interpreter_lock`](Self::is_interpreter_lock), which the default asks.
    fn interpreter_lock_ns(&self, wait: &LockWait) -> u64 {
        if self.is_interpreter_lock(wait.lock, wait.caller) { wait.took_ns } else { 0 }
    }

    /// What waits for the interpreter's lock are called.
    fn interpreter_lock(&self) -> State {
        State::Gil
    }

    /// The mutex that a thread unlocks when it has got the interpreter's lock again, and before it runs any code of the program:
    /// until then a wait is kept at whose end the runtime [`defers`](Self::defers). Null: not known, and the wait is dropped; in exact sums
    /// it has the state of its call.
    fn interpreter_mutex(&self) -> *const () {
        std::ptr::null()
    }

    /// What a wait of a thread in a span was, where the runtime knows better than the call. The rules are the handler's.
    fn wait_state(&self, state: State, _caller: usize) -> State {
        state
    }

    /// For exact sums: what of a wait of a thread, which is just over, is its span's own, and its state, where the runtime knows better
    /// than the call and the record's flow do. The rules are the handler's.
    fn own_wait(&self, _times: &SpanTimes, (state, ns): (State, u64), _frame: WaitFrame) -> (State, u64) {
        (state, ns)
    }

    /// Pushes the stack of the interrupted thread, leaf first. A frame id means one place in code until the end of the window
    /// after the one in which it is drained. The 4,096 highest are the core's own.
    ///
    /// # Safety
    /// Called by the handler (`ucontext` is the interrupted state), or on the thread itself with a null `ucontext`.
    unsafe fn walk(&self, thread: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>);

    /// Pushes the stack of a wait, the caller of the function that waited first.
    ///
    /// # Safety
    /// Called on the thread itself, within the call if `frame` is there.
    unsafe fn walk_caller(&self, thread: &ThreadRecord, _frame: WaitFrame, out: &mut FrameWriter<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.walk(thread, std::ptr::null(), out) };
    }

    /// Mends the first frames of a sample by its extra words, where that cannot be done in the handler, and the state of a wait where
    /// its stack tells more of it than the call did.
    fn repair(&self, _frames: &mut Vec<FrameId>, _extra: &[u64], _state: &mut State) -> Repair {
        Repair::Ready
    }

    /// Says what `ids`, not seen before in this cache's life, mean: one entry each, `None` = not known yet, ask again.
    /// Called with the host's lock where [`request_drain`](Self::request_drain) asks for it, and with no lock of ours.
    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>>;

    /// Called on each tick before rings are read. A host that can only do that under its own lock asks for it here.
    fn request_drain(&self) -> Drain {
        Drain::Now
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Frame id n is function "fn"; ids from 1,000 on are not known yet.
    #[derive(Debug)]
    pub(crate) struct Numbered;

    // SAFETY: `walk` does nothing.
    unsafe impl Runtime for Numbered {
        unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, _: &mut FrameWriter<'_>) {}

        fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
            let frame = |id: &FrameId| Frame { function: format!("f{id}").into(), ..Frame::default() };
            ids.iter().map(|id| (*id < 1_000).then(|| frame(id))).collect()
        }
    }

    /// Its samples are never mended.
    #[derive(Debug)]
    pub(crate) struct NeverReady;

    // SAFETY: `walk` does nothing.
    unsafe impl Runtime for NeverReady {
        unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, _: &mut FrameWriter<'_>) {}

        fn repair(&self, _: &mut Vec<FrameId>, _: &[u64], _: &mut State) -> Repair {
            Repair::Later
        }

        fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
            ids.iter().map(|_| None).collect()
        }
    }
}
