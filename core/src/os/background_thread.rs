//! The profiler's own threads: they take none of the host's signals and are not sampled. A fault of theirs goes where the
//! host's faults go: the kernel would end the process without a word if it were blocked.

use std::ffi::c_int;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, mem, ptr, thread};

use super::clock;
use super::thread_id::tid;

static ENDED_CPU_NS: AtomicU64 = AtomicU64::new(0);
static TIDS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Starts a thread with every signal but faults blocked from its first instruction on; it is known as ours when this returns.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (known, is_known) = mpsc::channel();
    let blocked = BlockedSignals::new();
    let thread = thread::Builder::new().name(name.into()).stack_size(1 << 20).spawn(move || {
        let _listed = Listed::new();
        let _ = known.send(());
        body();
    });
    drop(blocked);
    let _ = is_known.recv();
    thread
}

/// A thread is known as ours as long as this lives, also while a panic unwinds it.
struct Listed(i32);

impl Listed {
    fn new() -> Self {
        let tid = tid();
        lock().push(tid);
        Self(tid)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut tids = lock();
        ENDED_CPU_NS.fetch_add(clock::thread_cpu_ns(self.0).unwrap_or(0), Ordering::Relaxed);
        tids.retain(|&other| other != self.0);
    }
}

/// Waits until the thread has ended, until `deadline` at most, and then leaves it to itself; false = it runs on.
pub(crate) fn join_until(thread: JoinHandle<()>, deadline: Instant) -> bool {
    // From here on it is ours to join or to detach.
    let thread = thread.into_pthread_t();
    loop {
        // SAFETY: a thread that was neither joined nor detached.
        match unsafe { libc::pthread_tryjoin_np(thread, ptr::null_mut()) } {
            0 => return true,
            libc::EBUSY if Instant::now() < deadline => thread::sleep(Duration::from_micros(200)),
            _ => {
                // SAFETY: as above, and nobody has its number after this.
                unsafe { libc::pthread_detach(thread) };
                return false;
            }
        }
    }
}

/// Kernel ids of the threads that run now.
pub(crate) fn tids() -> Vec<i32> {
    lock().clone()
}

/// CPU time that they and their predecessors used in this process, nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    let tids = lock();
    let running: u64 = tids.iter().copied().filter_map(clock::thread_cpu_ns).sum();
    running + ENDED_CPU_NS.load(Ordering::Relaxed)
}

/// In the child after fork none of them runs.
pub(crate) fn forget() {
    lock().clear();
    ENDED_CPU_NS.store(0, Ordering::Relaxed);
}

pub(crate) fn lock() -> std::sync::MutexGuard<'static, Vec<i32>> {
    TIDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread's own instructions raise.
const FAULTS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// All signals but faults blocked on the calling thread for as long as it lives; a thread inherits that when it is made.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub(crate) fn new() -> Self {
        // SAFETY: a sigset_t is plain bits, and sigfillset sets each of them.
        let mut all: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: `all` is a valid set to write to.
        unsafe { libc::sigfillset(&raw mut all) };
        for fault in FAULTS {
            // SAFETY: a valid set and a signal that exists.
            unsafe { libc::sigdelset(&raw mut all, fault) };
        }
        let mut before = all;
        // SAFETY: both sets are valid; only the calling thread's mask changes.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        Self(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the mask that `new` read.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// As long as this lives no handler of the program's runs on the calling thread, which could jump out of it (siglongjmp), and nobody cancels
/// the thread, which opening a file is enough for, and nothing at all where it is cancelled asynchronously: each would leave a lock held.
/// Async-signal-safe: what it changes are the thread's mask and a word of the thread's own.
pub(crate) struct StaysHere {
    cancels: c_int,
    _blocked: BlockedSignals,
}

impl StaysHere {
    pub(crate) fn new() -> Self {
        let mut cancels = 0;
        // SAFETY: a place for what there was. 1: PTHREAD_CANCEL_DISABLE, of glibc and musl.
        unsafe { pthread_setcancelstate(1, &raw mut cancels) };
        Self { cancels, _blocked: BlockedSignals::new() }
    }
}

impl Drop for StaysHere {
    fn drop(&mut self) {
        // SAFETY: what there was, which is one of the two states.
        unsafe { pthread_setcancelstate(self.cancels, ptr::null_mut()) };
    }
}

unsafe extern "C-unwind" {
    // May end the thread at once, where it was cancelled meanwhile.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}
