//! Other code in the process that wants the same signals, handlers or memory.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spanprof_core::{
    Config, Context, Frame, FrameId, FrameWriter, ProfileType, ProfileTypeId, Profiler, Runtime, SampleSignal,
    ThreadRecord, forked, sample_here,
};

use super::cases::{Case, skip};
use super::process::{fork, wait};
use super::support::{Addresses, assert_adds_up, burn, config, read};
use super::{LONG, assert_saw, finish, said, start};

pub(crate) const CASES: &[Case] = &[
    ("a_profiler_by_setitimer_beside_us", a_profiler_by_setitimer_beside_us),
    ("our_signal_is_taken_by_another_library", our_signal_is_taken_by_another_library),
    ("our_signal_is_reset_to_its_default", our_signal_is_reset_to_its_default),
    ("our_real_time_signal_is_reset_to_its_default", our_real_time_signal_is_reset_to_its_default),
    ("every_signal_is_reset_to_its_default", every_signal_is_reset_to_its_default),
    ("a_signal_shared_with_the_host_is_taken_and_given_back", a_signal_shared_with_the_host_is_taken_and_given_back),
    ("a_shared_signal_that_the_host_gives_back_ends_nothing", a_shared_signal_that_the_host_gives_back_ends_nothing),
    ("our_signal_is_blocked_in_a_thread", our_signal_is_blocked_in_a_thread),
    ("the_fault_handler_is_taken_by_another_library", the_fault_handler_is_taken_by_another_library),
    ("a_second_copy_of_the_engine", a_second_copy_of_the_engine),
    (
        "an_executable_at_one_place_has_libc_s_functions_as_its_own",
        an_executable_at_one_place_has_libc_s_functions_as_its_own,
    ),
    (
        "a_library_is_loaded_for_long_while_threads_take_samples",
        a_library_is_loaded_for_long_while_threads_take_samples,
    ),
    ("fork_while_a_profiler_starts_and_a_library_is_loaded", fork_while_a_profiler_starts_and_a_library_is_loaded),
    ("a_child_has_nothing_of_its_parent_s_claim", a_child_has_nothing_of_its_parent_s_claim),
    ("jemalloc", jemalloc),
];

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Sets what a signal does; returns what it did.
fn set_action(signal: i32, action: usize) -> usize {
    // SAFETY: a sigaction is plain bits.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = action;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: as above.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const new, &raw mut old) }, 0);
    old.sa_sigaction
}

/// What a signal does.
fn action(signal: i32) -> usize {
    // SAFETY: a sigaction is plain bits.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and `action` is valid.
    assert_eq!(unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) }, 0);
    action.sa_sigaction
}

static THEIRS: AtomicU64 = AtomicU64::new(0);

extern "C" fn their_handler(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    THEIRS.fetch_add(1, Ordering::Relaxed);
}

fn a_profiler_by_setitimer_beside_us() {
    let folder = tempfile::tempdir().unwrap();
    let handler: Handler = their_handler;
    set_action(libc::SIGPROF, handler as usize);
    let every = libc::timeval { tv_sec: 0, tv_usec: 4_000 };
    let times = libc::itimerval { it_interval: every, it_value: every };
    let profiler = start(folder.path());
    // SAFETY: a valid value; the old one is not asked for.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const times, std::ptr::null_mut()) };
    burn(Duration::from_millis(400));
    assert_saw(&finish(&profiler), Duration::from_millis(400));
    let theirs = THEIRS.load(Ordering::Relaxed);
    assert!(theirs > 20, "the other profiler had {theirs} signals");
}

/// The profiler samples with `ours`, which is set to `to`; then with `next`.
fn lose_signal(ours: i32, to: usize, next: i32) {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    burn(Duration::from_millis(100));
    assert!(profiler.flush(LONG));
    let handler = action(ours);
    assert!(![libc::SIG_DFL, libc::SIG_IGN, to].contains(&handler), "signal {ours} is not the profiler's");
    // Nothing is burnt from here to the profiler's next check, so no signal comes for whoever has it now.
    set_action(ours, to);
    assert!(profiler.flush(LONG));
    let messages = said(&profiler);
    assert!(messages.contains(&format!("signal {ours}; signal {next} is used now")), "{messages}");
    burn(Duration::from_millis(100));
    assert_saw(&finish(&profiler), Duration::from_millis(200));
    assert_eq!(action(ours), if ours == next { handler } else { to }, "their action was left alone");
    assert_eq!(action(next), handler);
}

fn our_signal_is_taken_by_another_library() {
    let handler: Handler = their_handler;
    lose_signal(libc::SIGURG, handler as usize, libc::SIGRTMIN() + 6);
}

fn our_signal_is_reset_to_its_default() {
    lose_signal(libc::SIGURG, libc::SIG_DFL, libc::SIGURG);
}

fn our_real_time_signal_is_reset_to_its_default() {
    let handler: Handler = their_handler;
    set_action(libc::SIGURG, handler as usize);
    lose_signal(libc::SIGRTMIN() + 6, libc::SIG_DFL, libc::SIGRTMIN() + 7);
}

/// What a program does that daemonizes, or a child before it executes another program: all of them, and on it goes.
fn every_signal_is_reset_to_its_default() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    burn(Duration::from_millis(100));
    let reset_and_burn = || {
        for signal in (1..32).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
            if ![libc::SIGKILL, libc::SIGSTOP].contains(&signal) {
                set_action(signal, libc::SIG_DFL);
            }
        }
        burn(Duration::from_millis(100));
        0
    };
    for _ in 0..3 {
        let in_child = || {
            assert!(forked());
            let own = profiler.clone().restart_in_child().unwrap();
            burn(Duration::from_millis(20));
            reset_and_burn();
            i32::from(!own.stop(LONG))
        };
        assert_eq!(wait(fork(in_child)), 0);
        reset_and_burn();
    }
    assert!(profiler.flush(LONG));
    burn(Duration::from_millis(100));
    finish(&profiler);
    assert_ne!(action(libc::SIGURG), libc::SIG_DFL, "taken again");
}

/// A host that lets the profiler have a signal of its own, and no other.
#[derive(Debug)]
struct Sharing;

// SAFETY: `walk` pushes nothing.
unsafe impl Runtime for Sharing {
    fn signal(&self) -> SampleSignal {
        SampleSignal::Shared(libc::SIGRTMIN())
    }

    unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, _: &mut FrameWriter<'_>) {}

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        vec![None; ids.len()]
    }
}

fn a_signal_shared_with_the_host_is_taken_and_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let event =
        ProfileType { name: "event", sample_types: &[("events", "count")], period_type: ("event", "count"), period: 1 };
    // SAFETY: on this thread, outside handlers.
    let happens = || unsafe { sample_here(ProfileTypeId(1), 1, 1, Context::NONE, |_| ()) };
    let handler: Handler = their_handler;
    set_action(libc::SIGRTMIN(), handler as usize);
    let config = Config { profile_types: vec![event], ..config(folder.path(), 1000) };
    let profiler = Profiler::start(config, &Sharing).unwrap();
    burn(Duration::from_millis(100));
    assert!(profiler.flush(LONG));
    assert_eq!(profiler.ended(), None);

    let ours = set_action(libc::SIGRTMIN(), handler as usize);
    assert!(profiler.flush(LONG));
    let why =
        format!("the action of signal {}, which the runtime and the profiler share, was replaced", libc::SIGRTMIN());
    assert_eq!(
        (profiler.ended(), said(&profiler)),
        (Some(why.clone()), format!("Sampling by timers has ended: {why}.\n"))
    );
    let before = profiler.stats().taken;
    burn(Duration::from_millis(50));
    assert!(happens(), "events go on");
    assert!(profiler.flush(LONG));
    let taken = profiler.stats().taken;
    assert_eq!((taken.samples, taken.weight), (before.samples + 1, before.weight + 1));
    assert_eq!(said(&profiler), "", "once is enough");

    set_action(libc::SIGRTMIN(), ours);
    assert!(profiler.flush(LONG));
    assert_eq!(profiler.ended(), None);
    burn(Duration::from_millis(100));
    assert_saw(&finish(&profiler), Duration::from_millis(200));
}

/// As CoreCLR 8 does before it ends a process that crashes, while other threads' timers run.
fn a_shared_signal_that_the_host_gives_back_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (handler, signal) = (their_handler as Handler, libc::SIGRTMIN());
    set_action(signal, handler as usize);
    let profiler = Profiler::start(config(folder.path(), 1000), &Sharing).unwrap();
    burn(Duration::from_millis(100));
    set_action(signal, libc::SIG_DFL);
    burn(Duration::from_millis(100));
    assert_eq!(action(signal), libc::SIG_IGN);
    // A child that is about to become another program, which would ignore it too.
    let in_child = || {
        set_action(signal, libc::SIG_DFL);
        i32::from(action(signal) != libc::SIG_DFL)
    };
    assert_eq!(wait(fork(in_child)), 0);
    set_action(libc::SIGUSR2, libc::SIG_DFL);
    assert_eq!(action(libc::SIGUSR2), libc::SIG_DFL, "another one");
    assert!(profiler.stop(LONG));
}

fn our_signal_is_blocked_in_a_thread() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    let thread = std::thread::spawn(|| {
        spanprof_core::thread_started();
        // SAFETY: a sigset_t is plain bits.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: valid to write to.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: a valid set; only this thread's mask changes.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) };
        burn(Duration::from_millis(200));
    });
    thread.join().unwrap();
    assert_saw(&finish(&profiler), Duration::from_millis(200));
}

fn the_fault_handler_is_taken_by_another_library() {
    extern "C" fn die(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: ends the process, as a crash reporter does.
        unsafe { libc::_exit(9) }
    }
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    let nothing: *const u64 = std::ptr::without_provenance(0xdead_0000);
    assert_eq!(spanprof_core::safe_load(nothing), None);
    let handler: Handler = die;
    let ours = set_action(libc::SIGSEGV, handler as usize);
    set_action(libc::SIGSEGV, ours);
    assert!(profiler.flush(LONG), "a check of the handlers comes with it");
    assert!(!said(&profiler).contains("SIGSEGV"), "somebody borrowed it");
    set_action(libc::SIGSEGV, handler as usize);
    assert!(profiler.flush(LONG));
    // Not of the first check, when it may be borrowed; one of each second's may have come before.
    assert!(profiler.flush(LONG) && said(&profiler).contains("SIGSEGV"));
    let word = 7_u64;
    assert_eq!(spanprof_core::safe_load(nothing), None, "the other handler would have ended the process");
    assert_eq!(spanprof_core::safe_load(&raw const word), Some(7));
    assert_eq!(spanprof_core::safe_load_u32((&raw const word).cast()), Some(7));
    burn(Duration::from_millis(100));
    assert_saw(&finish(&profiler), Duration::from_millis(100));
}

fn engine_copy() -> std::ffi::CString {
    let library = std::env::current_exe().unwrap();
    let library = library.parent().unwrap().join("../examples/libengine_copy.so");
    let Ok(path) = library.canonicalize() else {
        skip("examples/libengine_copy.so was not built (cargo test builds it)")
    };
    std::ffi::CString::new(path.to_str().unwrap()).unwrap()
}

/// A library that is just being loaded, with the dynamic linker's lock.
struct Library {
    loads: std::thread::JoinHandle<()>,
    go_on: i32,
}

impl Library {
    /// For as long as it was not told to go on. Threads of Rust's that start meanwhile wait for it.
    fn load() -> Self {
        let path = engine_copy();
        let (mut told, mut go_on) = ([0; 2], [0; 2]);
        for pipe in [&mut told, &mut go_on] {
            // SAFETY: room for two descriptors.
            assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        }
        // SAFETY: no other thread reads or writes the environment.
        unsafe { std::env::set_var("ENGINE_COPY_LOADED", format!("{} {}", told[1], go_on[0])) };
        // SAFETY: a C string.
        let load = move || assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
        let loads = std::thread::spawn(load);
        let mut byte = 0_u8;
        // SAFETY: a byte of ours.
        assert_eq!(unsafe { libc::read(told[0], (&raw mut byte).cast(), 1) }, 1);
        Self { loads, go_on: go_on[1] }
    }

    fn go_on(&self) {
        // SAFETY: a byte of a string.
        assert_eq!(unsafe { libc::write(self.go_on, c"x".as_ptr().cast(), 1) }, 1);
    }
}

/// How far threads are, told without locks, whose first use by a thread may wait too.
static STEP: AtomicU32 = AtomicU32::new(0);

fn reach(step: u32) -> bool {
    let until = Instant::now() + LONG;
    while STEP.load(Ordering::SeqCst) != step && Instant::now() < until {
        std::thread::yield_now();
    }
    STEP.load(Ordering::SeqCst) == step
}

/// Takes a sample of the calling thread with this for a stack. Three attempts, as the profiler's thread may be at the registry.
fn takes_sample(frame: FrameId) -> bool {
    (0..3).any(|_| {
        let walk = |out: &mut FrameWriter<'_>| {
            out.push(frame);
        };
        // SAFETY: on this thread, outside handlers, and without a span.
        let is_taken = unsafe { sample_here(ProfileTypeId::TIMER, 1, 1, Context::NONE, walk) };
        let until = Instant::now() + Duration::from_millis(1);
        while !is_taken && Instant::now() < until {}
        is_taken
    })
}

/// The dynamic linker's lock is another thread's, for which one that takes a sample must not wait: its host may wait for it, and what is loaded
/// for the host.
fn a_library_is_loaded_for_long_while_threads_take_samples() {
    const STARTED: u32 = 1;
    const TAKES: u32 = 2;
    const TAKEN: u32 = 3;
    const TAKEN_BY_ANOTHER: u32 = 4;
    // Not one of Rust's, which waits for the dynamic linker as it starts.
    extern "C" fn younger(is_taken: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: a flag of whoever made this thread, and waits for it.
        let is_taken = unsafe { &*is_taken.cast::<AtomicBool>() };
        is_taken.store(takes_sample(8), Ordering::SeqCst);
        STEP.store(TAKEN_BY_ANOTHER, Ordering::SeqCst);
        std::ptr::null_mut()
    }
    let folder = tempfile::tempdir().unwrap();
    // Older than the profiler, which it never told of itself.
    let older = std::thread::spawn(move || {
        STEP.store(STARTED, Ordering::SeqCst);
        assert!(reach(TAKES));
        let is_taken = takes_sample(7);
        STEP.store(TAKEN, Ordering::SeqCst);
        is_taken
    });
    assert!(reach(STARTED));
    let profiler = start(folder.path());
    let library = Library::load();
    STEP.store(TAKES, Ordering::SeqCst);
    let mut waits_for_nobody = reach(TAKEN);
    let mut thread: libc::pthread_t = 0;
    let is_taken = AtomicBool::new(false);
    let flag = (&raw const is_taken).cast_mut().cast();
    // SAFETY: the flag lives until the thread has ended.
    assert_eq!(unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), younger, flag) }, 0);
    waits_for_nobody &= reach(TAKEN_BY_ANOTHER);
    library.go_on();
    library.loads.join().unwrap();
    // SAFETY: a thread that nobody has joined.
    assert_eq!(unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }, 0);
    assert!(waits_for_nobody, "a sample came when the library was loaded");
    assert!(older.join().unwrap(), "a sample of a thread that the profiler found");
    assert!(is_taken.into_inner(), "a sample of a thread that it had not found yet");
    finish(&profiler);
    let samples = read(folder.path());
    for stack in ["0x7", "0x8"] {
        assert_eq!(samples.iter().filter(|sample| sample.stack == [stack]).count(), 1, "{samples:?}");
    }
}

/// A profiler's start makes threads, which wait as they begin for whoever loads a library. Who forks does not wait for that.
fn fork_while_a_profiler_starts_and_a_library_is_loaded() {
    const READY: u32 = 1;
    const STARTS: u32 = 2;
    const FORKED: u32 = 3;
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 1000);
    let tasks = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let starts = std::thread::spawn(move || {
        STEP.store(READY, Ordering::SeqCst);
        assert!(reach(STARTS));
        Profiler::start(config, &Addresses).unwrap()
    });
    // It must not wait for whoever loads the library: so it has begun before, and takes nothing that waits by a thread-local.
    static WATCHES: AtomicBool = AtomicBool::new(false);
    static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);
    let watches = std::thread::spawn(move || {
        WATCHES.store(true, Ordering::SeqCst);
        let library = loop {
            match LIBRARY.lock().unwrap().take() {
                Some(library) => break library,
                None => std::thread::yield_now(),
            }
        };
        let has_forked = reach(FORKED);
        library.go_on();
        library.loads.join().unwrap();
        has_forked
    });
    assert!(reach(READY));
    while !WATCHES.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let library = Library::load();
    *LIBRARY.lock().unwrap() = Some(library);
    let before = tasks();
    STEP.store(STARTS, Ordering::SeqCst);
    while tasks() == before {
        std::thread::yield_now();
    }
    let child = fork(|| i32::from(!forked()));
    STEP.store(FORKED, Ordering::SeqCst);
    assert!(watches.join().unwrap(), "the fork waited for the start");
    assert_eq!(wait(child), 0);
    let profiler = starts.join().unwrap();
    burn(Duration::from_millis(50));
    assert_saw(&finish(&profiler), Duration::from_millis(50));
}

fn a_second_copy_of_the_engine() {
    let path = engine_copy();
    // SAFETY: a C string.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null());
    // SAFETY: the library is open and the name a C string.
    let symbol = unsafe { libc::dlsym(handle, c"engine_copy_start".as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: the example declares the function like this.
    let start_copy = unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> i32>(symbol) };
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    assert_eq!(start_copy(), 1, "the second copy says that another one samples");
    burn(Duration::from_millis(100));
    let stats = finish(&profiler);
    assert_saw(&stats, Duration::from_millis(100));
    assert_eq!(start_copy(), 0, "and it works once the first has stopped");
    let error = spanprof_core::Profiler::start(super::config(folder.path(), 100), &super::Addresses).unwrap_err();
    assert!(error.message().contains("another copy"), "{error}");
}

/// An executable that can only be at one place, and takes the address of a function by which libc is found: that is a stub of its own.
fn an_executable_at_one_place_has_libc_s_functions_as_its_own() {
    const HOST: &str = r#"
        #include <dlfcn.h>
        #include <gnu/libc-version.h>
        typedef const char *(*version)(void);
        /* In code, and not seen through: the linker leaves an address in data to ld.so, and a call needs none. */
        __attribute__((noinline, noclone)) version address(int count) { return count == 2 ? gnu_get_libc_version : 0; }
        int main(int count, char **arguments) {
            version function = address(count);
            void *copy = function && function()[0] ? dlopen(arguments[1], RTLD_NOW) : 0;
            int (*start)(void) = copy ? (int (*)(void))dlsym(copy, "engine_copy_start") : 0;
            int (*measures)(void) = copy ? (int (*)(void))dlsym(copy, "engine_copy_measures_waits") : 0;
            return !start || !measures ? 10 : start() != 0 ? 11 : measures() != 1 ? 12 : 0;
        }
    "#;
    let (library, folder) = (engine_copy(), tempfile::tempdir().unwrap());
    let (source, host) = (folder.path().join("host.c"), folder.path().join("host"));
    std::fs::write(&source, HOST).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-O0", "-fno-pie", "-no-pie", "-o"]).arg(&host).arg(&source).args(["-ldl"]);
    match compiler.output() {
        Err(error) => skip(&format!("no C compiler here (Debian: apt-get install gcc): {error}")),
        Ok(said) => assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr)),
    }
    let ended = std::process::Command::new(host).arg(library.to_str().unwrap()).status().unwrap();
    assert!(ended.success(), "{ended}");
}

fn a_child_has_nothing_of_its_parent_s_claim() {
    let has_page = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("/memfd:spanprof-engine-");
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    assert!(has_page());
    // Or one that gets the number of a process it comes from would take itself for sampled.
    assert_eq!(wait(fork(|| i32::from(has_page()))), 0);
    finish(&profiler);
    assert!(!has_page());
}

fn jemalloc() {
    let places = ["x86_64-linux-gnu", "aarch64-linux-gnu"].map(|arch| format!("/usr/lib/{arch}/libjemalloc.so.2"));
    let Some(library) = places.iter().find(|path| std::path::Path::new(path).exists()) else {
        skip("no libjemalloc.so.2 here (Debian: apt-get install libjemalloc2)")
    };
    for case in ["stop_under_load", "fork_in_a_thread_under_load"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--case", case]).env("LD_PRELOAD", library).output().unwrap();
        let status = output.status;
        assert!(status.success(), "{case}: {status} {:?}: {output:?}", status.signal());
    }
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    assert!(profiler.stop(LONG));
    assert_adds_up(&profiler.stats());
}
