//! What a kernel, a container or a disk does not grant.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spanprof_core::{
    Config, Drain, ErrorKind, Frame, FrameId, FrameWriter, Profiler, Runtime, TagSetId, ThreadRecord, span_end,
    span_start, thread_started, walk_frame_pointers,
};

use super::cases::{Case, skip};
use super::support::{Addresses, assert_adds_up, burn, burn_until, config, thread_cpu};
use super::{LONG, assert_saw, finish, said, start};

const PAGE: usize = 4096;

pub(crate) const CASES: &[Case] = &[
    ("no_pending_signals_are_left", no_pending_signals_are_left),
    ("the_last_pending_signals_are_the_program_s", the_last_pending_signals_are_the_program_s),
    ("no_files_are_left", no_files_are_left),
    ("little_address_space", little_address_space),
    ("a_program_out_of_memory", a_program_out_of_memory),
    ("rings_up_to_their_bound", rings_up_to_their_bound),
    ("a_host_that_does_not_drain", a_host_that_does_not_drain),
    ("a_small_alternate_stack", a_small_alternate_stack),
    ("an_alternate_stack_that_begins_with_its_guard", an_alternate_stack_that_begins_with_its_guard),
    ("more_sets_of_tags_than_there_is_room_for", more_sets_of_tags_than_there_is_room_for),
    ("seccomp_without_timers", seccomp_without_timers),
    ("seccomp_without_what_is_not_needed", seccomp_without_what_is_not_needed),
    ("no_proc", no_proc),
    ("a_folder_that_cannot_be_made", a_folder_that_cannot_be_made),
    ("a_file_may_not_grow", a_file_may_not_grow),
    ("a_full_disk", a_full_disk),
    ("a_container_with_a_tenth_of_a_processor", a_container_with_a_tenth_of_a_processor),
];

fn limit(resource: libc::__rlimit_resource_t, soft: u64) -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: valid to write to.
    unsafe { libc::getrlimit(resource, &raw mut limits) };
    let before = std::mem::replace(&mut limits.rlim_cur, soft.min(limits.rlim_max));
    // SAFETY: valid to read.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limits) }, 0);
    before
}

fn no_pending_signals_are_left() {
    let folder = tempfile::tempdir().unwrap();
    let before = limit(libc::RLIMIT_SIGPENDING, 0);
    let profiler = start(folder.path());
    span_start(1, "spans go on");
    burn(Duration::from_millis(50));
    span_end();
    // Twice, as a thread that ends while it is given a timer is not worth a word.
    assert!(profiler.flush(LONG) && wait_for_sweep(&profiler, |stats| stats.threads_without_timer > 0));
    let stats = profiler.stats();
    assert_eq!((stats.threads, stats.threads_unsampled), (0, stats.threads_without_timer), "{stats:?}");
    let messages = wait_for_message(&profiler, "pending");
    assert!(messages.contains("left to the program. Check ulimit -i"), "{messages}");
    limit(libc::RLIMIT_SIGPENDING, before);
    assert!(wait_for_sweep(&profiler, |stats| stats.threads_unsampled == 0), "it is tried again");
    burn(Duration::from_millis(100));
    assert_saw(&finish(&profiler), Duration::from_millis(100));
}

fn the_last_pending_signals_are_the_program_s() {
    let folder = tempfile::tempdir().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let used = status.lines().find_map(|line| line.strip_prefix("SigQ:")).unwrap().trim().split('/').next().unwrap();
    let limit = limit(libc::RLIMIT_SIGPENDING, used.parse::<u64>().unwrap() + 40);
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let ends = std::sync::Arc::new(std::sync::Mutex::new(ends));
    let wait = || {
        let ends = std::sync::Arc::clone(&ends);
        std::thread::spawn(move || {
            spanprof_core::thread_started();
            let _ = ends.lock().unwrap().recv();
        })
    };
    let early: Vec<_> = (0..30).map(|_| wait()).collect();
    let profiler = start(folder.path());
    let late: Vec<_> = (0..30).map(|_| wait()).collect();
    assert!(profiler.flush(LONG) && wait_for_sweep(&profiler, |stats| stats.threads_without_timer > 0));
    // SAFETY: a sigset_t is plain bits.
    let mut one: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid set and a signal that exists.
    unsafe { libc::sigaddset(&raw mut one, libc::SIGRTMIN()) };
    // SAFETY: a valid set; only this thread's mask changes.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const one, std::ptr::null_mut()) };
    // SAFETY: takes nothing and cannot fail.
    let itself = unsafe { libc::pthread_self() };
    for number in 0..10 {
        // SAFETY: a signal that is blocked stays pending.
        let send = || unsafe { libc::pthread_kill(itself, libc::SIGRTMIN()) };
        // Where another process of this user took some meanwhile, timers are given back within a moment.
        assert!(wait_for_sweep(&profiler, |_| send() == 0), "signal {number} of the program");
    }
    drop(end);
    early.into_iter().chain(late).for_each(|thread| thread.join().unwrap());
    self::limit(libc::RLIMIT_SIGPENDING, limit);
    finish(&profiler);
}

/// Burns until the profiler has looked for threads and `done` says so.
fn wait_for_sweep(profiler: &Profiler, done: impl Fn(&spanprof_core::Stats) -> bool) -> bool {
    (0..200).any(|_| {
        burn(Duration::from_millis(20));
        done(&profiler.stats())
    })
}

/// What is said once it contains `words`.
fn wait_for_message(profiler: &Profiler, words: &str) -> String {
    let mut messages = String::new();
    for _ in 0..200 {
        messages += &said(profiler);
        if messages.contains(words) {
            break;
        }
        burn(Duration::from_millis(20));
    }
    messages
}

fn no_files_are_left() {
    let folder = tempfile::tempdir().unwrap();
    let before = limit(libc::RLIMIT_NOFILE, 3);
    let profiler = start(folder.path());
    burn(Duration::from_millis(100));
    let messages = wait_for_message(&profiler, "/proc/self/task");
    assert!(messages.contains("Too many open files"), "{messages}");
    assert!(profiler.flush(LONG));
    let refused = profiler.stats().refused;
    assert!(refused.weight > 0, "a file that cannot be opened is counted");
    limit(libc::RLIMIT_NOFILE, before);
    burn(Duration::from_millis(50));
    let stats = finish(&profiler);
    assert_saw(&stats, Duration::from_millis(150));
    assert!(stats.uploaded.weight > 0, "it goes on once there are files again: {stats:?}");
}

fn little_address_space() {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used: u64 = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    let folder = tempfile::tempdir().unwrap();
    // Room for no thread; and for our two and little else.
    for (room, starts) in [(256 << 10, false), (16 << 20, true)] {
        let before = limit(libc::RLIMIT_AS, used + room);
        let started = Profiler::start(config(folder.path(), 1000), &Addresses);
        match started {
            Ok(profiler) => {
                burn(Duration::from_millis(50));
                limit(libc::RLIMIT_AS, before);
                finish(&profiler);
            }
            Err(error) => {
                limit(libc::RLIMIT_AS, before);
                assert!(!starts, "{error}");
                assert_eq!(error.kind(), ErrorKind::System, "{error}");
            }
        }
    }
    let profiler = start(folder.path());
    burn(Duration::from_millis(50));
    assert_saw(&finish(&profiler), Duration::from_millis(50));
}

/// A host with rings as large as it says, which are read by the profiler's thread or not at all, and stacks for signals with a guard.
struct Rings {
    bytes: usize,
    are_read: AtomicBool,
    /// With how much of a guard alternate stacks for signals begin.
    guard: usize,
}

// SAFETY: `walk` only calls `walk_frame_pointers`, which is made for the handler.
unsafe impl Runtime for Rings {
    fn ring_bytes(&self) -> usize {
        self.bytes
    }

    fn signal_stack_guard(&self) -> usize {
        self.guard
    }

    unsafe fn walk(&self, _: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: the handler passes its third argument.
        unsafe { walk_frame_pointers(ucontext, out) }
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        ids.iter().map(|_| Some(Frame::default())).collect()
    }

    fn request_drain(&self) -> Drain {
        if self.are_read.load(Ordering::Relaxed) { Drain::Now } else { Drain::Requested }
    }
}

/// Whose every stack is a new one, so that its windows grow.
#[derive(Debug)]
struct EverOther;

// SAFETY: the walk reads nothing.
unsafe impl Runtime for EverOther {
    unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let first = NEXT.fetch_add(100, Ordering::Relaxed);
        for id in first..first + 100 {
            out.push(id);
        }
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        ids.iter().map(|id| Some(Frame { function: format!("f{id}").into(), ..Frame::default() })).collect()
    }
}

/// As Python's MemoryError and Ruby's NoMemoryError let one: each malloc fails, the program waits, frees, and goes on.
fn a_program_out_of_memory() {
    // SAFETY: before there is a second thread. One arena, as MALLOC_ARENA_MAX=1 has it, so no other has room for us.
    assert_eq!(unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) }, 1);
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(config(folder.path(), 1000), &EverOther).unwrap();
    burn(Duration::from_millis(300));
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let before = limit(libc::RLIMIT_AS, pages * 4096 + (32 << 20));
    for _ in 0..3 {
        // A list of all the memory there is, in which each block has the address of the next.
        let mut held: *mut libc::c_void = std::ptr::null_mut();
        let mut size = 16 << 20;
        while size >= 16 {
            // SAFETY: asks for memory.
            let block = unsafe { libc::malloc(size) };
            if block.is_null() {
                size /= 2;
            } else {
                // SAFETY: it is ours, aligned, and has room for an address.
                unsafe { block.cast::<*mut libc::c_void>().write(held) };
                held = block;
            }
        }
        burn(Duration::from_millis(700));
        while !held.is_null() {
            // SAFETY: written above.
            let next = unsafe { held.cast::<*mut libc::c_void>().read() };
            // SAFETY: of malloc, and not used any more.
            unsafe { libc::free(held) };
            held = next;
        }
        burn(Duration::from_millis(200));
    }
    limit(libc::RLIMIT_AS, before);
    assert!(profiler.flush(LONG));
    let messages = said(&profiler);
    assert!(messages.contains(", as the program had used up its memory."), "{messages}");
    let before = profiler.stats();
    burn(Duration::from_millis(300));
    let stats = finish(&profiler);
    assert!(stats.dropped_window.samples > 0, "{stats:?}");
    assert_eq!(stats.dropped_window, before.dropped_window, "there is memory again");
    assert!(stats.encoded.samples > before.encoded.samples, "{stats:?}");
}

fn rings_up_to_their_bound() {
    static LARGE: Rings = Rings { bytes: 16 << 20, are_read: AtomicBool::new(true), guard: 0 };
    static BUSY: AtomicBool = AtomicBool::new(true);
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(config(folder.path(), 1000), &LARGE).unwrap();
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let threads: Vec<_> = (0..6)
        .map(|_| {
            let wait = Arc::clone(&wait);
            std::thread::spawn(move || {
                thread_started();
                while BUSY.load(Ordering::Relaxed) {
                    burn(Duration::from_millis(5));
                }
                // Until all are let go.
                let _ = wait.lock().unwrap().recv();
                burn(Duration::from_millis(30));
                thread_cpu()
            })
        })
        .collect();
    // Four of seven have a ring.
    wait_for_message(&profiler, ", as all rings together may take 64 MiB");
    BUSY.store(false, Ordering::Relaxed);
    assert!(wait_for_sweep(&profiler, |stats| stats.threads == 7), "quiet threads gave their rings away");
    drop(release);
    let burnt: Duration = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let stats = finish(&profiler);
    assert_saw(&stats, burnt + thread_cpu());
}

fn a_host_that_does_not_drain() {
    static UNREAD: Rings = Rings { bytes: 4096, are_read: AtomicBool::new(false), guard: 0 };
    let folder = tempfile::tempdir().unwrap();
    // All of it is lost before one upload, which says so once: unless the machine is so busy that this takes longer than a window.
    let config = Config { upload_interval: Duration::from_secs(600), ..config(folder.path(), 1000) };
    let profiler = Profiler::start(config, &UNREAD).unwrap();
    let began = thread_cpu();
    // A second, and more where the kernel's tick meets this thread so seldom that all of its samples have room.
    for number in
        (1..=4_000_u64).take_while(|number| *number <= 200 || profiler.stats().dropped_ring.weight <= 100_000_000)
    {
        span_start(number, "a name of its own");
        burn(Duration::from_millis(5));
        span_end();
    }
    let burnt = thread_cpu() - began;
    UNREAD.are_read.store(true, Ordering::Relaxed);
    let stats = finish(&profiler);
    assert_saw(&stats, burnt);
    assert!(stats.dropped_ring.weight > 100_000_000, "{stats:?}");
    let messages = said(&profiler);
    let lost = messages.split_once("Samples lost: ").and_then(|(_, rest)| rest.split_once(", as the rings"));
    let lost: u64 = lost.unwrap_or_default().0.parse().unwrap_or_default();
    // Where this thread waited long for a processor, a window ended meanwhile and told of what was lost by then.
    let is_whole =
        if stats.windows == 1 { lost == stats.dropped_ring.samples } else { lost <= stats.dropped_ring.samples };
    assert!(lost > 0 && is_whole, "{messages}{stats:?}");
}

/// Calls `f` on a thread with an alternate signal stack of `bytes`, with nothing below it that could be written. `guard`: so much of
/// what cannot be written is said to be its beginning.
fn on_stack<T: Send + 'static>(bytes: usize, guard: usize, f: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(move || {
        let size = PAGE + bytes.next_multiple_of(PAGE);
        // SAFETY: memory of our own, wherever the kernel finds it.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: its first page, which nobody uses.
        assert_eq!(unsafe { libc::mprotect(memory, PAGE, libc::PROT_NONE) }, 0);
        let ours = libc::stack_t { ss_sp: memory.wrapping_byte_add(PAGE - guard), ss_flags: 0, ss_size: bytes + guard };
        // SAFETY: a stack_t is plain bits.
        let mut before: libc::stack_t = unsafe { std::mem::zeroed() };
        // SAFETY: both are valid, and the memory is there until the stack is another one again.
        assert_eq!(unsafe { libc::sigaltstack(&raw const ours, &raw mut before) }, 0);
        let result = f();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) }, 0);
        // SAFETY: nothing looks at it any more.
        assert_eq!(unsafe { libc::munmap(memory, size) }, 0);
        result
    })
    .join()
    .unwrap()
}

/// Burns on such a thread until 100 ms were taken there or lost; tells how much it was.
fn burn_on_stack(profiler: &Profiler, bytes: usize, guard: usize) -> Duration {
    let profiler = profiler.clone();
    on_stack(bytes, guard, move || {
        thread_started();
        burn_until(|| profiler.stats().taken.weight >= 100_000_000)
    })
}

/// What the kernel puts on an alternate stack to handle a signal. It asks for more (AT_MINSIGSTKSZ): also for registers that a program
/// must ask for first (AMX, 8 KiB).
fn kernel_frame() -> usize {
    static FRAME: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn on_signal(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid ucontext to an SA_SIGINFO handler.
        let stack = unsafe { (*context.cast::<libc::ucontext_t>()).uc_stack };
        let top = stack.ss_sp.addr() + stack.ss_size;
        FRAME.store(top - info.addr().min(context.addr()), Ordering::Relaxed);
    }
    // SAFETY: a sigaction is plain bits.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: it is valid, and its handler stores a number.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) }, 0);
    // SAFETY: it goes to this thread, which handles it.
    on_stack(least_stack() + 8192, 0, || assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0));
    FRAME.load(Ordering::Relaxed)
}

/// What the kernel asks for, with all registers of this processor.
fn least_stack() -> usize {
    // SAFETY: takes no pointer.
    usize::try_from(unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) }).unwrap()
}

fn an_alternate_stack_that_begins_with_its_guard() {
    static GUARDED: Rings = Rings { bytes: 64 << 10, are_read: AtomicBool::new(true), guard: PAGE };
    let folder = tempfile::tempdir().unwrap();
    // It would be enough with the guard, and is not without.
    let profiler = Profiler::start(config(folder.path(), 1000), &GUARDED).unwrap();
    burn_on_stack(&profiler, kernel_frame() + 1024, PAGE);
    let stats = finish(&profiler);
    assert!(stats.dropped_ring.weight >= 80_000_000, "{stats:?}");
}

fn a_small_alternate_stack() {
    let folder = tempfile::tempdir().unwrap();
    // POSIX's least, or what has room for a signal of this kernel's, but not for a sample.
    let small = (kernel_frame() + 1024).max(2048);
    let profiler = start(folder.path());
    burn_on_stack(&profiler, small, 0);
    let stats = finish(&profiler);
    assert!(stats.dropped_ring.weight >= 80_000_000, "{stats:?}");
    let messages = said(&profiler);
    let lost = format!("Samples lost: {}, as the alternate signal stacks", stats.dropped_ring.samples);
    assert!(messages.contains(&lost) && !messages.contains("rings"), "{messages}");

    let profiler = start(folder.path());
    let burnt = burn_on_stack(&profiler, least_stack() + 8192, 0);
    let stats = finish(&profiler);
    assert_eq!(stats.dropped_ring.samples, 0, "{stats:?}");
    assert_saw(&stats, burnt);
    assert_eq!(said(&profiler), "");
}

fn more_sets_of_tags_than_there_is_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    let set = |number: u32| TagSetId::EMPTY.with(&[("id".to_owned(), number.to_string())]);
    let held: Vec<TagSetId> = (0..20_000).map(set).collect();
    burn(Duration::from_millis(20));
    assert_eq!(held.iter().filter(|set| **set != TagSetId::EMPTY).count(), 1024);
    held.into_iter().for_each(TagSetId::release);
    let stats = finish(&profiler);
    assert_eq!(stats.tag_sets_lost, 20_000 - 1024);
    let messages = said(&profiler);
    assert!(messages.contains("More than 1024 sets of tags") && messages.contains("18976"), "{messages}");
}

/// Makes system calls fail with EPERM, for this process from now on.
fn forbid(calls: &[libc::c_long]) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code.try_into().unwrap(), jt: 0, jf: 0, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for call in calls {
        let number = u32::try_from(*call).unwrap();
        let is_other = libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number) };
        let errno = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
        filter.extend([is_other, statement(libc::BPF_RET | libc::BPF_K, errno)]);
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len().try_into().unwrap(), filter: filter.as_mut_ptr() };
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program is valid and copied by the kernel.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if done != 0 {
        skip(&format!("seccomp is not to be had: {}", std::io::Error::last_os_error()));
    }
}

fn seccomp_without_timers() {
    forbid(&[libc::SYS_timer_create]);
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    span_start(1, "spans go on");
    let messages = wait_for_message(&profiler, "timer_create");
    assert!(messages.contains("Operation not permitted") && messages.contains("seccomp"), "{messages}");
    span_end();
    let stats = profiler.stats();
    assert!(stats.threads == 0 && stats.threads_without_timer > 0, "{stats:?}");
    finish(&profiler);
}

fn seccomp_without_what_is_not_needed() {
    let unused = [libc::SYS_rt_tgsigqueueinfo, libc::SYS_process_vm_readv, libc::SYS_ptrace, libc::SYS_memfd_create];
    forbid(&[&unused[..], &[libc::SYS_perf_event_open, libc::SYS_bpf]].concat());
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    assert_eq!(spanprof_core::safe_load(std::ptr::without_provenance(8)), None);
    burn(Duration::from_millis(100));
    assert_saw(&finish(&profiler), Duration::from_millis(100));
}

/// A mount namespace of our own, with memory for a file system at `place`.
fn mount(place: &std::ffi::CStr, options: &std::ffi::CStr) {
    // SAFETY: numbers only. One thread runs.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
    let (none, all) = (c"none".as_ptr(), libc::MS_REC | libc::MS_PRIVATE);
    // SAFETY: C strings or null.
    unsafe { libc::mount(none, c"/".as_ptr(), std::ptr::null(), all, std::ptr::null()) };
    let tmpfs = c"tmpfs".as_ptr();
    // SAFETY: C strings.
    if !unshared || unsafe { libc::mount(tmpfs, place.as_ptr(), tmpfs, 0, options.as_ptr().cast()) } != 0 {
        skip(&format!("no mount namespace is to be had: {}", std::io::Error::last_os_error()));
    }
}

fn no_proc() {
    let folder = tempfile::tempdir().unwrap();
    mount(c"/proc", c"size=16k");
    let profiler = start(folder.path());
    burn(Duration::from_millis(100));
    let thread = std::thread::spawn(|| {
        thread_started();
        burn(Duration::from_millis(100));
    });
    thread.join().unwrap();
    let messages = wait_for_message(&profiler, "/proc/self/task");
    assert!(messages.contains("cannot be read"), "{messages}");
    assert_saw(&finish(&profiler), Duration::from_millis(200));
}

/// Sampling into `address` ends with everything refused, and a message with these words.
fn cannot_be_written(address: String, words: &str) {
    let profiler =
        Profiler::start(Config { server_address: address, ..config("/".as_ref(), 1000) }, &Addresses).unwrap();
    burn(Duration::from_millis(50));
    assert!(!profiler.stop(LONG), "nothing was delivered");
    let stats = profiler.stats();
    assert_adds_up(&stats);
    assert_eq!((stats.refused, stats.profiles_refused), (stats.taken, stats.refused_address), "{stats:?}");
    let messages = said(&profiler);
    assert!(messages.contains(words) && messages.contains("server_address"), "{messages}");
}

fn a_folder_that_cannot_be_made() {
    // Not even root may.
    cannot_be_written("file:///proc/profiles".to_owned(), "/proc/profiles");
    cannot_be_written("file:///dev/null/profiles".to_owned(), "Not a directory");
}

fn a_file_may_not_grow() {
    let folder = tempfile::tempdir().unwrap();
    // A write past it sends SIGXFSZ, which ends a process that does not know it.
    limit(libc::RLIMIT_FSIZE, 64);
    cannot_be_written(format!("file://{}", folder.path().display()), "too large");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing half written is left");
}

fn a_full_disk() {
    mount(c"/mnt", c"size=4k");
    std::fs::write("/mnt/full", vec![1; 4096]).unwrap();
    cannot_be_written("file:///mnt".to_owned(), "No space left");
    assert_eq!(std::fs::read_dir("/mnt").unwrap().count(), 1, "nothing half written is left");
}

fn a_container_with_a_tenth_of_a_processor() {
    let group = format!("/sys/fs/cgroup/cpu/spanprof-test-{}", std::process::id());
    let write = |file: &str, text: &str| std::fs::write(format!("{group}/{file}"), text);
    let made = std::fs::create_dir(&group)
        .and_then(|()| write("cpu.cfs_period_us", "100000"))
        .and_then(|()| write("cpu.cfs_quota_us", "10000"))
        .and_then(|()| write("cgroup.procs", &std::process::id().to_string()));
    if let Err(error) = made {
        drop(std::fs::remove_dir(&group));
        skip(&format!("no cgroup of our own is to be had: {error}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let profiler = start(folder.path());
    let before = thread_cpu();
    burn(Duration::from_millis(300));
    let burnt = thread_cpu() - before;
    let stats = finish(&profiler);
    std::fs::write("/sys/fs/cgroup/cpu/cgroup.procs", std::process::id().to_string()).unwrap();
    std::fs::remove_dir(&group).unwrap();
    assert_saw(&stats, burnt);
}
