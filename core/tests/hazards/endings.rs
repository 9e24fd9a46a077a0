//! Stops that are held up, forks and starts beside them, and the end of the process: nothing samples that should not, and
//! the next profiler is not taken for the one before it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use spanprof_core::{
    Config, ErrorKind, Frame, FrameId, FrameWriter, Profiler, Runtime, Stats, TagSetId, ThreadRecord, describe_thread,
    forked, leave_parent_behind, thread_started, walk_frame_pointers,
};

use super::cases::Case;
use super::process::{fork, wait};
use super::support::{Addresses, burn, config};
use super::{LONG, assert_saw, finish, said, start};

pub(crate) const CASES: &[Case] = &[
    ("a_stop_that_is_held_up_leaves_no_timer_and_the_next_profiler_alone", a_stop_that_is_held_up),
    ("stop_then_fork_then_start", stop_then_fork_then_start),
    ("fork_while_another_thread_stops", fork_while_another_thread_stops),
    ("start_while_another_thread_stops", start_while_another_thread_stops),
    ("nothing_starts_after_the_end", nothing_starts_after_the_end),
    ("the_parent_s_profiler_in_a_child", the_parent_s_profiler_in_a_child),
    ("labels_of_threads_that_have_ended", labels_of_threads_that_have_ended),
    ("a_child_whose_last_thread_ends", a_child_whose_last_thread_ends),
    ("a_panic_of_the_host_s_runtime_ends_sampling_and_is_told", a_panic_of_the_host_s_runtime),
];

/// As [`Addresses`], but for a name it waits until it may: the profiler's thread is held up.
#[derive(Debug)]
struct Held;

static MAY_GO_ON: (Mutex<bool>, Condvar) = (Mutex::new(true), Condvar::new());
static IS_HELD: AtomicBool = AtomicBool::new(false);

fn let_go(go_on: bool) {
    *MAY_GO_ON.0.lock().unwrap() = go_on;
    MAY_GO_ON.1.notify_all();
}

// SAFETY: `walk` only calls `walk_frame_pointers`, which is made for the handler.
unsafe impl Runtime for Held {
    fn needs_safe_load(&self) -> bool {
        true
    }

    unsafe fn walk(&self, _: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: the handler passes its third argument.
        unsafe { walk_frame_pointers(ucontext, out) }
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        IS_HELD.store(true, Ordering::SeqCst);
        drop(MAY_GO_ON.1.wait_while(MAY_GO_ON.0.lock().unwrap(), |go_on| !*go_on).unwrap());
        ids.iter().map(|id| Some(Frame { function: Arc::from(format!("{id:#x}")), ..Frame::default() })).collect()
    }
}

/// A profiler whose thread is held up.
fn start_held(config: Config) -> Profiler {
    let_go(false);
    IS_HELD.store(false, Ordering::SeqCst);
    let profiler = Profiler::start(config, &Held).unwrap();
    while !IS_HELD.load(Ordering::SeqCst) {
        burn(Duration::from_millis(5));
    }
    profiler
}

fn timers() -> usize {
    std::fs::read_to_string("/proc/self/timers").unwrap().lines().filter(|line| line.starts_with("ID:")).count()
}

fn a_stop_that_is_held_up() {
    let folder = tempfile::tempdir().unwrap();
    let first = start_held(config(folder.path(), 1000));
    assert!(timers() > 0);
    let since = Instant::now();
    assert!(!first.stop(Duration::from_millis(100)));
    assert!(since.elapsed() < Duration::from_secs(5), "a stop is bounded: {:?}", since.elapsed());
    assert_eq!(timers(), 0);
    let taken = first.stats().taken;
    burn(Duration::from_millis(50));
    assert_eq!(first.stats().taken, taken, "nothing is sampled after a stop");

    let second = start(folder.path());
    burn(Duration::from_millis(30));
    assert_eq!(first.stats().taken, taken, "what the second one samples is not the first one's");
    let_go(true);
    // The first one's thread ends itself: it has nobody to wait for it.
    while std::fs::read_dir("/proc/self/task").unwrap().count() > 3 {
        burn(Duration::from_millis(5));
    }
    assert!(timers() > 0, "the late end of the first one took the second one's timers");
    burn(Duration::from_millis(50));
    let stats = finish(&second);
    assert_saw(&stats, Duration::from_millis(80));
    assert!(stats.dropped_ring.samples == 0, "{stats:?}");
}

/// Profiles in a forked child as a program does that knows nothing of its parent. 0: it saw its own CPU time.
fn profile_in_child(folder: &std::path::Path) -> i32 {
    let profiler = start(folder);
    assert!(!forked());
    let short = thread::spawn(|| {
        thread_started();
        burn(Duration::from_millis(30));
    });
    short.join().unwrap();
    let stats = finish(&profiler);
    assert_saw(&stats, Duration::from_millis(30));
    0
}

fn stop_then_fork_then_start() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    burn(Duration::from_millis(10));
    finish(&profiler);
    assert_eq!(wait(fork(|| profile_in_child(folder.path()))), 0);
    let child = fork(|| {
        assert!(forked());
        leave_parent_behind();
        i32::from(forked())
    });
    assert_eq!(wait(child), 0, "a child that is not to profile");
}

fn fork_while_another_thread_stops() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start_held(config(folder.path(), 1000));
    thread::scope(|scope| {
        let stops = scope.spawn(|| profiler.stop(LONG));
        while timers() > 0 {
            thread::yield_now();
        }
        let child = fork(|| {
            let_go(true);
            profile_in_child(folder.path())
        });
        assert_eq!(wait(child), 0);
        let_go(true);
        assert!(stops.join().unwrap());
    });
}

fn start_while_another_thread_stops() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = start_held(config(folder, 1000));
    let again = Profiler::start(config(folder, 1000), &Addresses).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyRunning, "nobody stops it yet");
    thread::scope(|scope| {
        let stops = scope.spawn(|| first.stop(LONG));
        while timers() > 0 {
            thread::yield_now();
        }
        let (tell, told) = channel();
        let starts = scope.spawn(move || {
            // SAFETY: takes nothing and cannot fail.
            tell.send(unsafe { libc::gettid() }).unwrap();
            Profiler::start(config(folder, 1000), &Addresses)
        });
        // It waits, or it is over.
        let status = format!("/proc/self/task/{}/stat", told.recv().unwrap());
        while std::fs::read_to_string(&status).is_ok_and(|status| !status.contains(") S ")) {
            thread::yield_now();
        }
        let_go(true);
        assert!(stops.join().unwrap());
        let second = starts.join().unwrap().unwrap();
        burn(Duration::from_millis(30));
        assert_saw(&finish(&second), Duration::from_millis(30));
    });
}

fn nothing_starts_after_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    burn(Duration::from_millis(30));
    assert!(Profiler::end_process(LONG));
    assert_eq!(timers(), 0);
    assert_saw(&finish(&profiler), Duration::from_millis(30));
    let late = Profiler::start(config(folder.path(), 1000), &Addresses).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Disabled, "{late}");
    assert!(Profiler::end_process(LONG), "a second time is nothing");
}

fn the_parent_s_profiler_in_a_child() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start_held(config(folder.path(), 1000));
    let child = fork(|| {
        // A thread that does not exist here holds locks of it.
        assert!(!profiler.flush(LONG) && !profiler.stop(LONG));
        assert_eq!((profiler.stats(), profiler.ended(), profiler.take_messages()), (Stats::default(), None, vec![]));
        0
    });
    assert_eq!(wait(child), 0);
    let_go(true);
    finish(&profiler);
}

fn labels_of_threads_that_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let profiler =
        Profiler::start(Config { report_thread_name: true, ..config(folder.path(), 100) }, &Addresses).unwrap();
    let label = |value: usize| vec![("thread_name".to_owned(), format!("worker {value}"))];
    let ended = thread::spawn(|| {
        thread_started();
        // SAFETY: takes nothing and cannot fail.
        unsafe { libc::gettid() }
    });
    let ended = ended.join().unwrap();
    for value in 0..20_000 {
        describe_thread(ended, label(value));
    }
    // SAFETY: takes nothing and cannot fail.
    let own = unsafe { libc::gettid() };
    for value in 0..5_000 {
        describe_thread(own, label(value));
    }
    assert_ne!(TagSetId::EMPTY.with(&label(1)), TagSetId::EMPTY);
    let stats = finish(&profiler);
    assert_eq!(stats.tag_sets_lost, 0, "{stats:?}");
}

fn a_child_whose_last_thread_ends() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    burn(Duration::from_millis(30));
    let child = fork(|| {
        drop(profiler.clone().restart_in_child().unwrap());
        burn(Duration::from_millis(30));
        // SAFETY: ends this thread alone, as the end of a thread's function does.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        1
    });
    assert_eq!(wait(child), 0);
    finish(&profiler);
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(files.len() >= 2, "the child's last samples are there: {files:?}");
}

/// Panics when it is asked for a name.
#[derive(Debug)]
struct Panicking;

// SAFETY: `walk` only calls `walk_frame_pointers`, which is made for the handler.
unsafe impl Runtime for Panicking {
    fn needs_safe_load(&self) -> bool {
        true
    }

    unsafe fn walk(&self, _: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: the handler passes its third argument.
        unsafe { walk_frame_pointers(ucontext, out) }
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        assert!(ids.is_empty(), "no names today");
        Vec::new()
    }
}

fn a_panic_of_the_host_s_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(config(folder.path(), 1000), &Panicking).unwrap();
    while profiler.ended().is_none() {
        burn(Duration::from_millis(5));
    }
    assert!(profiler.ended().unwrap().ends_with("no names today"), "{:?}", profiler.ended());
    // Who waits for that thread waits for nothing, and what it had is told as lost.
    let since = Instant::now();
    profiler.flush(LONG);
    assert!(since.elapsed() < LONG);
    assert_eq!(timers(), 0);
    let stats = profiler.stats();
    assert!(stats.taken.samples > 0 && stats.dropped_window == stats.taken, "{stats:?}");
    assert!(said(&profiler).contains("Sampling by timers has ended: "));
    assert_eq!(finish(&profiler).taken, stats.taken);
    let next = start(folder.path());
    burn(Duration::from_millis(50));
    assert_saw(&finish(&next), Duration::from_millis(50));
}
