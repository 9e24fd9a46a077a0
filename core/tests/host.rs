//! The one profiler of a process, as a language's package keeps it, from start to start and in a forked child.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use std::mem::ManuallyDrop;
use std::panic::AssertUnwindSafe;

use spanprof_core::{Config, Level, Message, Profiler, forked, host, leave_parent_behind};
use support::{Addresses, PATIENT, burn_until};

fn start() -> Profiler {
    let config = Config { application_name: "host".into(), server_address: "none".into(), ..Config::default() };
    Profiler::start(config, &Addresses).unwrap()
}

fn reported() -> Vec<(Level, String)> {
    host::take_messages().into_iter().map(|Message { level, text }| (level, text)).collect()
}

fn in_child(test: impl FnOnce()) {
    // SAFETY: the child runs on this thread's copy and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(AssertUnwindSafe(test)).is_ok();
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
}

/// One test, as there is one profiler a process.
#[test]
fn one_profiler_of_a_process_from_start_to_start_and_in_a_child() {
    messages_are_kept_in_order_until_they_are_taken();
    assert!(host::running().is_none());
    assert_eq!(host::last().taken.samples, 0, "zeros before the first one");

    let first = start();
    assert!(host::running().is_none(), "not before it may be used");
    host::set_running(first.clone());
    burn_until(|| host::running().unwrap().stats().taken.samples > 0);
    assert_eq!(host::last().taken.samples, 0, "what the last one counted is not what this one does");

    in_child(|| {
        assert!(forked() && host::running().is_none(), "the parent's does not run here");
        host::report(Level::Info, "kept in the child");
        assert_eq!(reported(), [(Level::Info, "kept in the child".to_owned())]);
        let parents = host::take_running().expect("the parent's, to be restarted");
        host::set_running(parents.restart_in_child().unwrap());
        assert!(!forked());
        let own = host::running().unwrap();
        assert!(own.stop(PATIENT));
        host::ended(&own);
        assert!(host::running().is_none());
    });
    in_child(|| {
        // One that is left alone is never dropped: its locks may be held.
        let _parents = ManuallyDrop::new(host::take_running());
        leave_parent_behind();
        assert!(!forked() && host::running().is_none());
        let own = start();
        host::set_running(own.clone());
        assert!(own.stop(PATIENT));
        host::ended(&own);
    });

    // Taken out after the stop: until then it is the one that is asked.
    assert!(first.stop(PATIENT));
    assert!(host::running().unwrap().is_stopping());
    host::ended(&first);
    assert!(host::running().is_none());
    let counted = host::last();
    assert_eq!(counted.taken, first.stats().taken);
    assert!(counted.taken.samples > 0);
    host::ended(&first);
    assert_eq!(host::last().taken, counted.taken, "a second stop changes nothing");

    // Taken out before the stop: the next one may be there when it is over.
    host::set_running(start());
    let second = host::take_running().unwrap();
    assert!(host::running().is_none());
    assert!(second.stop(PATIENT));
    host::set_running(start());
    host::set_last(Some(second.stats()));
    let third = host::running().unwrap();
    assert!(!third.is_stopping(), "the next one runs");
    assert!(third.stop(PATIENT));
    host::ended(&third);
    host::set_last(None);
    assert_eq!(host::last().taken.samples, 0);
}

fn messages_are_kept_in_order_until_they_are_taken() {
    assert!(!host::messages_wait() && reported().is_empty());
    host::report(Level::Warning, "one");
    host::keep([Message { level: Level::Info, text: "two".to_owned() }]);
    assert!(host::messages_wait());
    assert_eq!(reported(), [(Level::Warning, "one".to_owned()), (Level::Info, "two".to_owned())]);
    assert!(!host::messages_wait() && reported().is_empty());
    host::keep([]);
    assert!(!host::messages_wait(), "nothing was kept");

    let on = Config::default();
    assert!(!host::is_switched_off(&on) && reported().is_empty());
    for off in [Config { enabled: false, ..on.clone() }, Config { cpu_enabled: false, ..on }] {
        assert!(host::is_switched_off(&off));
        let text = "profiling is switched off by configuration or environment".to_owned();
        assert_eq!(reported(), [(Level::Info, text)]);
    }
    host::report_unsupported("a debug build");
    host::report_unsupported("a debug build");
    host::report_not_started("no timer");
    host::report_not_in_child("no thread");
    let warnings = [
        "no profiles are taken, spans go on working: a debug build",
        "no profiles are taken, spans go on working: no timer",
        "no profiles are taken in this forked process: no thread",
    ];
    assert_eq!(reported(), warnings.map(|text| (Level::Warning, text.to_owned())));
}
