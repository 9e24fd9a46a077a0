//! An allocator that ends the process when a signal handler of ours allocates or frees.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use spanprof_core::{Profiler, add_thread_tag, span_end, span_start, thread_started};
use support::{Addresses, PATIENT, assert_adds_up, burn, config};

/// The profiler's signal, once it is known.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Calls that were checked.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The kernel blocks a signal in its own handler. The profiler's own threads block all of them, SIGUSR2 too.
fn in_handler(signal: i32) -> bool {
    // SAFETY: a sigset_t is plain bits.
    let mut blocked: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and `blocked` is valid.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut blocked) };
    // SAFETY: a valid set and signals that exist.
    let is_blocked = |signal| unsafe { libc::sigismember(&raw const blocked, signal) } == 1;
    is_blocked(signal) && !is_blocked(libc::SIGUSR2)
}

fn check() {
    let signal = SIGNAL.load(Ordering::Relaxed);
    if signal != 0 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        if in_handler(signal) {
            let text = b"the signal handler allocated or freed memory\n";
            // SAFETY: a valid buffer; nothing here allocates.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            // SAFETY: takes nothing.
            unsafe { libc::abort() };
        }
    }
}

struct Watching;

// SAFETY: it is the system's allocator, with a check before.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        check();
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn our_signal() -> i32 {
    let has_handler = |signal: &i32| {
        // SAFETY: a sigaction is plain bits.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: nothing is changed, and `action` is valid.
        unsafe { libc::sigaction(*signal, std::ptr::null(), &raw mut action) };
        action.sa_sigaction != libc::SIG_DFL
    };
    std::iter::once(libc::SIGURG).chain(libc::SIGRTMIN() + 6..=libc::SIGRTMAX()).find(has_handler).unwrap()
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(config(folder.path(), 1000), &Addresses).unwrap();
    SIGNAL.store(our_signal(), Ordering::Relaxed);
    let threads: Vec<_> = (1..=4_u64)
        .map(|number| {
            let profiler = profiler.clone();
            std::thread::spawn(move || {
                thread_started();
                add_thread_tag("worker", &number.to_string());
                // At first so many, and then until the kernel's tick has met them often enough.
                let goes_on = |round: &u64| *round < 100 || profiler.stats().taken.samples <= 50;
                for round in (0..20_000).take_while(goes_on) {
                    span_start(1 + round, &format!("span {round}"));
                    burn(Duration::from_millis(1));
                    span_end();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(profiler.stop(PATIENT));
    let stats = profiler.stats();
    assert_adds_up(&stats);
    assert!(stats.taken.samples > 50 && CALLS.load(Ordering::Relaxed) > 1_000, "{stats:?}");
}
