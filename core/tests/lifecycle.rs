//! Start and stop any number of times, in a process and in its forked child.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use spanprof_core::{ErrorKind, Profiler, forked, span_end, span_start};
use support::{Addresses, PATIENT, assert_adds_up, burn, burn_until, config, read};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// One test, as there is one profiler a process.
#[test]
fn a_profiler_can_be_stopped_and_started_again_and_survives_fork() {
    let folder = tempfile::tempdir().unwrap();
    let first = Profiler::start(config(folder.path(), 1000), &Addresses).unwrap();
    let second = Profiler::start(config(folder.path(), 1000), &Addresses).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::AlreadyRunning);
    span_start(1, "before the fork");
    burn_until(|| first.stats().taken.samples > 0);
    assert!(first.flush(PATIENT));
    assert!(!read(folder.path()).is_empty(), "a flush writes what was sampled");
    burn(Duration::from_millis(20));

    // SAFETY: the child runs on this thread's copy and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| in_child(first.clone()))).is_ok();
            // SAFETY: ends the child without running the test harness's exit code.
            unsafe { libc::_exit(i32::from(!done)) };
        }
        child => {
            let mut status = 0;
            // SAFETY: `child` is ours and `status` is valid.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child's assertions held");
        }
    }
    assert!(!forked());
    span_end();
    assert!(first.stop(PATIENT));
    assert!(first.stop(PATIENT), "a second stop does nothing");
    let stats = first.stats();
    assert_eq!((stats.pending.samples, stats.uploaded), (0, stats.taken), "{stats:?}");

    // Others that came after it changed nothing of what it counted.
    for _ in 0..2 {
        let later = Profiler::start(config(folder.path(), 1000), &Addresses).unwrap();
        burn(Duration::from_millis(20));
        assert!(later.stop(PATIENT));
        assert_eq!(first.stats().taken, stats.taken);
        assert_adds_up(&first.stats());
    }

    // Warm up what libraries keep, then look for what we leave behind.
    for _ in 0..3 {
        Profiler::start(config(folder.path(), 100), &Addresses).unwrap().stop(PATIENT);
    }
    let before = (open_files(), threads());
    let maps = mappings();
    for _ in 0..50 {
        assert!(Profiler::start(config(folder.path(), 100), &Addresses).unwrap().stop(PATIENT));
    }
    assert_eq!(open_files(), before.0);
    assert!(
        threads() <= before.1 + 1,
        "{} threads, then {}: one that was joined may be listed for an instant",
        before.1,
        threads()
    );
    assert!(mappings() <= maps + 4, "{} mappings, then {}", maps, mappings());
}

fn in_child(parents: Profiler) {
    assert!(forked());
    let profiler = parents.restart_in_child().unwrap();
    assert!(!forked());
    burn(Duration::from_millis(100));
    span_end();
    assert!(profiler.stop(PATIENT));
    let stats = profiler.stats();
    assert!(stats.taken.weight >= 80_000_000, "the child is sampled: {stats:?}");
    assert!(stats.taken.weight < 140_000_000, "the parent's samples are not sent twice: {stats:?}");
    assert_eq!((stats.pending.samples, stats.uploaded), (0, stats.taken), "{stats:?}");
}
