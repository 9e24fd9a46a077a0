//! fork, exec, exit and the like, in the middle of everything.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use spanprof_core::{
    Config, Context, FrameWriter, ProfileTypeId, Profiler, TagSetId, TraceIdLabel, add_thread_tag, forked, sample_here,
    span_end, span_ended, span_start, thread_started,
};
use spanprof_faults::{Options, Reply, Server};

use super::cases::Case;
use super::support::{Addresses, burn, burn_until, config, read};
use super::{assert_saw, finish, start};

pub(crate) const CASES: &[Case] = &[
    ("fork_alone", fork_alone),
    ("fork_in_a_thread_under_load", fork_in_a_thread_under_load),
    ("fork_twice", fork_twice),
    ("fork_while_others_hold_locks", fork_while_others_hold_locks),
    ("spawn_and_system_under_load", spawn_and_system_under_load),
    ("exec_with_signals_pending", exec_with_signals_pending),
    ("daemonize", daemonize),
    ("a_daemon_that_closes_all_descriptors", a_daemon_that_closes_all_descriptors),
    ("tags_of_a_context_from_before_the_start", tags_of_a_context_from_before_the_start),
    ("exit_at_once_under_load", exit_at_once_under_load),
    ("exit_from_a_signal_handler", exit_from_a_signal_handler),
    ("abort_under_load", abort_under_load),
    ("kill_of_a_worker", kill_of_a_worker),
    ("stop_under_load", stop_under_load),
    ("a_thousand_starts_and_stops_leave_nothing", a_thousand_starts_and_stops_leave_nothing),
    ("late_signals_after_stop", late_signals_after_stop),
    ("a_thread_that_a_sweep_finds_while_it_ends_counts_once", a_thread_that_a_sweep_finds_while_it_ends_counts_once),
];

/// Threads in spans that burn CPU until they are told to end.
struct Load {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(threads: u64) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let thread = |number| {
            let end = Arc::clone(&end);
            std::thread::spawn(move || {
                thread_started();
                while !end.load(Ordering::Relaxed) {
                    span_start(number, "load");
                    burn(Duration::from_micros(100));
                    span_end();
                }
            })
        };
        Self { threads: (1..=threads).map(thread).collect(), end }
    }

    fn end(self) {
        self.end.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Runs `child` in a forked process, which ends by _exit with what it returns; 99 if it panicked.
pub(crate) fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child does what a host's child does, and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: a child that hangs ends.
            unsafe { libc::alarm(60) };
            let code = std::panic::catch_unwind(AssertUnwindSafe(child)).unwrap_or(99);
            // SAFETY: ends the child without the exit code of the parent's test.
            unsafe { libc::_exit(code) }
        }
        child => {
            assert!(child > 0, "fork");
            child
        }
    }
}

/// How a child ended: its exit code, or minus the signal that killed it.
pub(crate) fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the child is ours and `status` is valid.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// What a child does that goes on profiling. 0: it saw its own CPU time and nothing of its parent's.
fn work_in_child(parents: Profiler) -> i32 {
    assert!(forked());
    let profiler = parents.restart_in_child().unwrap();
    burn(Duration::from_millis(30));
    let stats = finish(&profiler);
    assert_saw(&stats, Duration::from_millis(30));
    assert!(stats.taken.weight < 300_000_000, "the parent's samples: {stats:?}");
    0
}

fn fork_alone() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    burn(Duration::from_millis(50));
    assert_eq!(wait(fork(|| 3)), 3, "a child that takes no notice");
    assert_eq!(wait(fork(|| work_in_child(profiler.clone()))), 0);
    assert!(!forked());
    assert_saw(&finish(&profiler), Duration::from_millis(50));
}

fn fork_in_a_thread_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    let load = Load::start(3);
    let forks = profiler.clone();
    let thread = std::thread::spawn(move || {
        for _ in 0..10 {
            assert_eq!(wait(fork(|| work_in_child(forks.clone()))), 0);
        }
    });
    thread.join().unwrap();
    load.end();
    finish(&profiler);
}

fn fork_twice() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    burn(Duration::from_millis(20));
    let child = fork(|| {
        let profiler = profiler.clone().restart_in_child().unwrap();
        burn(Duration::from_millis(20));
        let code = wait(fork(|| work_in_child(profiler.clone())));
        finish(&profiler);
        code
    });
    assert_eq!(wait(child), 0);
    // One in between that never profiles.
    let child = fork(|| wait(fork(|| work_in_child(profiler.clone()))));
    assert_eq!(wait(child), 0);
    finish(&profiler);
}

fn fork_while_others_hold_locks() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    let end = Arc::new(AtomicBool::new(false));
    let repeat = |action: Box<dyn Fn() + Send>| {
        let end = Arc::clone(&end);
        std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                action();
            }
        })
    };
    let (stats, flush) = (profiler.clone(), profiler.clone());
    let threads = [
        repeat(Box::new(|| TagSetId::EMPTY.with(&[("a".to_owned(), "b".to_owned())]).release())),
        repeat(Box::new(|| span_ended(7, "name"))),
        repeat(Box::new(move || drop(stats.stats()))),
        repeat(Box::new(move || {
            flush.flush(Duration::from_millis(1));
        })),
        repeat(Box::new(|| std::thread::spawn(thread_started).join().unwrap())),
    ];
    for _ in 0..40 {
        let child = fork(|| {
            TagSetId::EMPTY.with(&[("in".to_owned(), "child".to_owned())]).release();
            span_ended(8, "child");
            work_in_child(profiler.clone())
        });
        assert_eq!(wait(child), 0);
    }
    end.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    finish(&profiler);
}

fn spawn_and_system_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    let load = Load::start(2);
    for _ in 0..30 {
        // The standard library uses posix_spawn, which is a vfork.
        assert!(Command::new("true").status().unwrap().success());
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::system(c"exit 3".as_ptr()) }, 3 << 8);
    }
    load.end();
    finish(&profiler);
    assert!(!forked(), "none of them is a child that goes on");
}

/// All signals, as a mask.
fn all_signals() -> libc::sigset_t {
    // SAFETY: a sigset_t is plain bits.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: valid to write to.
    unsafe { libc::sigfillset(&raw mut all) };
    all
}

fn mask(how: i32, set: &libc::sigset_t) {
    // SAFETY: a valid set; only this thread's mask changes.
    unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) };
}

fn exec_with_signals_pending() {
    for in_thread in [false, true] {
        let child = fork(|| {
            let folder = tempfile::tempdir().unwrap();
            let _profiler = start(folder.path());
            let become_another = || {
                mask(libc::SIG_BLOCK, &all_signals());
                burn(Duration::from_millis(50));
                let program = std::ffi::CString::new(std::env::current_exe().unwrap().to_str().unwrap()).unwrap();
                let arguments = [program.as_ptr(), c"--after-exec".as_ptr(), std::ptr::null()];
                // SAFETY: C strings, and a list that ends with null.
                unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
            };
            if in_thread {
                std::thread::scope(|scope| drop(scope.spawn(become_another).join()));
            } else {
                become_another();
            }
            1
        });
        assert_eq!(wait(child), 7, "in a thread: {in_thread}");
    }
}

/// The program after an exec: a signal that is still on its way would kill it now.
pub(crate) fn after_exec() -> ! {
    mask(libc::SIG_UNBLOCK, &all_signals());
    std::process::exit(7)
}

/// Has a daemon do this, a child's child in a session of its own; the descriptor is the one that its answer goes to, which is 0.
fn in_daemon(work: impl FnOnce(RawFd) -> i32) {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let child = fork(|| {
        // SAFETY: no pointers.
        unsafe { libc::setsid() };
        fork(|| {
            let kept = writer.as_raw_fd();
            // It may have no other descriptor any more.
            std::panic::set_hook(Box::new(move |panic| {
                let said = panic.to_string();
                // SAFETY: so many bytes, and a descriptor that stays open.
                unsafe { libc::write(kept, said.as_ptr().cast(), said.len()) };
            }));
            let code = work(kept);
            std::io::Write::write_all(&mut writer, &[u8::try_from(code).unwrap()]).unwrap();
            0
        });
        0
    });
    assert_eq!(wait(child), 0);
    drop(writer);
    let mut said = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut said).unwrap();
    assert!(said == [0], "the daemon profiled: {}", String::from_utf8_lossy(&said));
}

fn daemonize() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    in_daemon(|_| work_in_child(profiler.clone()));
    finish(&profiler);
}

/// The descriptors of this process that are sockets.
fn sockets() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.starts_with("socket:"))).count()
}

/// Uploads, closes all descriptors but `kept`, has files of its own in their place, and uploads again. 0: those are as they were.
fn work_past_closed_descriptors(parents: Profiler, kept: RawFd) -> i32 {
    let profiler = parents.restart_in_child().unwrap();
    let inherited = sockets();
    burn_until(|| profiler.stats().taken.samples > 0);
    assert!(profiler.flush(super::LONG));
    assert!(profiler.stats().profiles_uploaded > 0);
    assert_eq!(sockets(), inherited, "no connection is kept between uploads");

    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open: Vec<i32> = open.map(|file| file.file_name().to_str().unwrap().parse().unwrap()).collect();
    for file in open.into_iter().filter(|file| *file != kept) {
        // SAFETY: no pointers; what is closed belongs to nobody who is left. One of them was the list's, and is closed.
        unsafe { libc::close(file) };
    }
    let folder = tempfile::tempdir().unwrap();
    let own: Vec<_> = (0..64).map(|number| folder.path().join(number.to_string())).collect();
    let open: Vec<_> = own.iter().map(|path| std::fs::File::create(path).unwrap()).collect();
    burn(Duration::from_millis(30));
    let stats = finish(&profiler);
    assert_eq!((stats.uploaded, stats.retries), (stats.taken, 0), "{stats:?}");
    drop(open);
    assert!(
        own.iter().all(|path| std::fs::read(path).unwrap().is_empty()),
        "somebody wrote into a file of the daemon's"
    );
    0
}

fn a_daemon_that_closes_all_descriptors() {
    let server = Server::start(Vec::new(), Reply::Ok, Options::default());
    let server_address = format!("127.0.0.1:{}", server.port);
    let config = Config { server_address, trace_id: TraceIdLabel::Always, ..config("/".as_ref(), 1000) };
    let profiler = Profiler::start(config, &Addresses).unwrap();
    in_daemon(|pipe| work_past_closed_descriptors(profiler.clone(), pipe));
    finish(&profiler);
}

fn tags_of_a_context_from_before_the_start() {
    let tags = |value: &str| [("step".to_owned(), value.to_owned())];
    let early = TagSetId::EMPTY.with(&tags("early"));
    assert!(!add_thread_tag("thread", "early"), "no profiler runs");
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    // Others come and go meanwhile, and take the places of those that nobody holds.
    for number in 0..5_000 {
        TagSetId::EMPTY.with(&tags(&number.to_string())).release();
    }
    let context = Context { tags: early, ..Context::NONE };
    let walk = |out: &mut FrameWriter<'_>| {
        out.push(7);
    };
    // SAFETY: on this thread, outside handlers, and without a span.
    assert!(unsafe { sample_here(ProfileTypeId::TIMER, 1, 1, context, walk) });
    finish(&profiler);
    early.release();
    let samples = read(folder.path());
    let ours: Vec<_> = samples.iter().filter(|sample| sample.stack == ["0x7"]).collect();
    assert_eq!(ours.len(), 1, "{samples:?}");
    assert_eq!(ours[0].labels.get("step").map(String::as_str), Some("early"));
    assert_eq!(ours[0].labels.get("thread"), None);
}

fn exit_at_once_under_load() {
    let child = fork(|| {
        let folder = tempfile::tempdir().unwrap();
        let _profiler = start(folder.path());
        let _load = Load::start(4);
        burn(Duration::from_millis(30));
        5
    });
    assert_eq!(wait(child), 5);
}

fn exit_from_a_signal_handler() {
    extern "C" fn leave(_: i32) {
        // SAFETY: no pointers. That it is not safe in a handler does not keep programs from doing it.
        unsafe { libc::exit(6) }
    }
    for _ in 0..5 {
        let child = fork(|| {
            let folder = tempfile::tempdir().unwrap();
            let _profiler = start(folder.path());
            let handler: extern "C" fn(i32) = leave;
            // SAFETY: a function of the type that signal wants.
            unsafe { libc::signal(libc::SIGUSR1, handler as usize) };
            let _load = Load::start(2);
            burn(Duration::from_millis(20));
            // SAFETY: no pointers.
            unsafe { libc::raise(libc::SIGUSR1) };
            1
        });
        assert_eq!(wait(child), 6);
    }
}

fn abort_under_load() {
    let child = fork(|| {
        // That it is aborted is no finding, and a core would lie in the checkout.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: valid to read.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) }, 0);
        let folder = tempfile::tempdir().unwrap();
        let _profiler = start(folder.path());
        let _load = Load::start(2);
        burn(Duration::from_millis(20));
        std::process::abort()
    });
    assert_eq!(wait(child), -libc::SIGABRT);
}

fn kill_of_a_worker() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    for _ in 0..3 {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let worker = fork(|| {
            let profiler = profiler.clone().restart_in_child().unwrap();
            loop {
                burn(Duration::from_millis(5));
                profiler.flush(Duration::from_secs(1));
                std::io::Write::write_all(&mut &writer, b".").unwrap();
            }
        });
        std::io::Read::read_exact(&mut reader, &mut [0; 20]).unwrap();
        // SAFETY: our own child.
        unsafe { libc::kill(worker, libc::SIGKILL) };
        assert_eq!(wait(worker), -libc::SIGKILL);
    }
    burn(Duration::from_millis(30));
    assert_saw(&finish(&profiler), Duration::from_millis(30));
    // What it was just writing has a name that says so.
    for file in std::fs::read_dir(folder.path()).unwrap().flatten() {
        if file.file_name().to_string_lossy().starts_with('.') {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
    assert!(!read(folder.path()).is_empty(), "no profile is half written");
}

fn stop_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let load = Load::start(8);
    for _ in 0..10 {
        let profiler = start(folder.path());
        burn(Duration::from_millis(20));
        let stats = finish(&profiler);
        assert_saw(&stats, Duration::from_millis(20));
        let later = {
            burn(Duration::from_millis(10));
            profiler.stats()
        };
        assert_eq!(later.taken, stats.taken, "nothing is sampled after stop");
    }
    load.end();
}

fn a_thousand_starts_and_stops_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let round = || {
        let nowhere = spanprof_core::Config { server_address: "none".to_owned(), ..config(folder.path(), 1000) };
        let profiler = Profiler::start(nowhere, &Addresses).unwrap();
        finish(&profiler);
    };
    let lines = |file: &str| std::fs::read_to_string(file).map_or(0, |text| text.lines().count());
    let entries = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let count = || {
        let timers = lines("/proc/self/timers");
        (entries("/proc/self/fd"), entries("/proc/self/task"), timers, lines("/proc/self/maps"))
    };
    (0..50).for_each(|_| round());
    let before = count();
    (0..1000).for_each(|_| round());
    let after = count();
    assert_eq!((after.0, after.2), (before.0, before.2), "files, timers");
    assert!(
        after.1 <= before.1 + 1,
        "{} threads, then {}: one that was joined may be listed for an instant",
        before.1,
        after.1
    );
    assert!(after.3 <= before.3 + 2, "{} mappings, then {}", before.3, after.3);
}

fn late_signals_after_stop() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(folder.path());
    mask(libc::SIG_BLOCK, &all_signals());
    burn(Duration::from_millis(50));
    finish(&first);
    mask(libc::SIG_UNBLOCK, &all_signals());
    burn(Duration::from_millis(10));
    // Those of the first profiler come while the second one runs.
    let second = start(folder.path());
    mask(libc::SIG_BLOCK, &all_signals());
    burn(Duration::from_millis(50));
    finish(&second);
    let third = start(folder.path());
    mask(libc::SIG_UNBLOCK, &all_signals());
    let stats = finish(&third);
    assert!(stats.taken.weight < 40_000_000, "signals of another profiler were counted: {stats:?}");
}

/// Holds up the end of its thread, after the profiler was told of it.
struct Lingering(RefCell<Option<(Sender<()>, Receiver<()>)>>);

impl Drop for Lingering {
    fn drop(&mut self) {
        if let Some((ending, end)) = self.0.take() {
            ending.send(()).unwrap();
            end.recv().unwrap();
        }
    }
}

thread_local! {
    static LINGERING: Lingering = const { Lingering(RefCell::new(None)) };
}

fn a_thread_that_a_sweep_finds_while_it_ends_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    let ((ending, is_ending), (end, may_end)) = (channel(), channel());
    let ends = thread::spawn(move || {
        // Destructors run in the opposite order, so this one comes after the profiler's.
        LINGERING.with(|lingering| lingering.0.replace(Some((ending, may_end))));
        thread_started();
        burn(Duration::from_millis(400));
    });
    is_ending.recv().unwrap();
    // A thread that does not announce itself has been found: so has been the one that ends.
    let known = profiler.stats().threads;
    let (stop, may_stop) = channel::<()>();
    let waits = thread::spawn(move || may_stop.recv());
    while profiler.stats().threads == known {
        thread::yield_now();
    }
    end.send(()).unwrap();
    ends.join().unwrap();
    stop.send(()).unwrap();
    waits.join().unwrap().unwrap();
    finish(&profiler);
    let twice = read(folder.path()).into_iter().filter(|sample| sample.stack == ["(thread starting)"]);
    let twice: i64 = twice.map(|sample| sample.value).sum();
    assert!(twice < 200_000_000, "{twice} ns of (thread starting)");
}
