//! A host whose threads announce themselves: one that does not is found all the same, also where it came as another one went.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use spanprof_core::{Frame, FrameId, FrameWriter, Profiler, Runtime, ThreadRecord};
use support::{PATIENT, assert_adds_up, burn, config};

/// Kernel id of the thread that was sampled last.
static SAMPLED: AtomicI32 = AtomicI32::new(0);

#[derive(Debug)]
struct Announcing;

// SAFETY: `walk` makes a system call that is async-signal-safe, and pushes a constant.
unsafe impl Runtime for Announcing {
    fn announces_threads(&self) -> bool {
        true
    }

    unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        SAMPLED.store(tid(), Ordering::Relaxed);
        out.push(1);
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        ids.iter().map(|_| Some(Frame { function: Arc::from("walked"), ..Frame::default() })).collect()
    }
}

fn tid() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// Burns CPU until the calling thread is sampled.
fn burn_until_found() {
    while SAMPLED.load(Ordering::Relaxed) != tid() {
        burn(Duration::from_millis(5));
    }
}

#[test]
fn threads_that_announce_nothing_are_found() {
    // SAFETY: takes a number. Who waits in vain is ended.
    unsafe { libc::alarm(120) };
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(config(folder.path(), 1_000), &Announcing).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            burn_until_found();
            // Another one comes as this one goes, so that there are as many at the next sweep.
            scope.spawn(burn_until_found);
        });
    });
    assert!(profiler.stop(PATIENT));
    assert_adds_up(&profiler.stats());
}
