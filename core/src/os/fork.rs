//! fork: the child has one thread, no timers, and whatever locks other threads held. So the engine's static locks are
//! held over the fork and found free in the child, which only marks that it is one, and looks at what it has to know before it has other
//! threads; a binding rebuilds the profiler from its own hook, where allocation is safe.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);
/// Forks between the first process that had the hooks and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The process that the hooks know of; 0 before they are installed.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// 1 in such a process, 0 in a child that they have not seen. Null where the kernel has no such pages.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The locks held while a fork is under way.
struct Held(UnsafeCell<Vec<Box<dyn Any>>>);

// SAFETY: only `before`, `in_parent` and `in_child` touch it; libc calls them one after the other on the forking thread,
// and the locks that `before` takes first keep a second forking thread out until they are released.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(Vec::new()));
type Locks = fn() -> Vec<Box<dyn Any>>;
/// What takes the locks, and what looks around in the child.
static HOOKS: std::sync::OnceLock<(Locks, fn())> = std::sync::OnceLock::new();

/// Whether this process was forked from one that profiles and has not started its own profiler yet. About 1 ns.
#[inline]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Whether this process was made by the system call itself, past libc and its hooks: it has none of the profiler's threads, and locks may be
/// held there for ever. A load; before Linux 4.14 a system call.
pub(crate) fn is_past_hooks() -> bool {
    // SAFETY: null, or a page that is never unmapped.
    if let Some(mark) = unsafe { MARK.load(Ordering::Acquire).as_ref() } {
        return mark.load(Ordering::Relaxed) == 0;
    }
    let known = PROCESS.load(Ordering::Relaxed);
    known != 0 && known != own_process()
}

/// This process is one that the hooks know of.
fn know_process() {
    PROCESS.store(own_process(), Ordering::Relaxed);
    // SAFETY: null, or a page that is never unmapped.
    if let Some(mark) = unsafe { MARK.load(Ordering::Acquire).as_ref() } {
        mark.store(1, Ordering::Relaxed);
    }
}

/// A page of which a child has zeros, however it was made. Unlike the process's id, of which two namespaces may have the same.
fn make_mark() {
    const SIZE: usize = 4096;
    // SAFETY: a new page of our own, and nobody else's address.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return;
    }
    // SAFETY: that page.
    if unsafe { libc::madvise(page, SIZE, libc::MADV_WIPEONFORK) } == 0 {
        let mark: *mut AtomicU32 = page.cast();
        // SAFETY: that page is aligned and mapped, and nobody else knows it yet, to whom zeros would be another process's.
        unsafe { &*mark }.store(1, Ordering::Relaxed);
        MARK.store(mark, Ordering::Release);
    } else {
        // SAFETY: that page, which nobody knows.
        unsafe { libc::munmap(page, SIZE) };
    }
}

fn own_process() -> i32 {
    // SAFETY: getpid takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// A number that is another one in a forked child, and stays when the child has dealt with it.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The child has dealt with it.
pub(crate) fn clear() {
    FORKED.store(false, Ordering::Relaxed);
}

/// Installs the hooks, once a process. `locks` takes all static locks, always in the same order; `look` is called in the child while it has
/// one thread.
pub(crate) fn install(locks: Locks, look: fn()) {
    // No Once: a child of a fork in its midst would wait for the end of it.
    if !INSTALLED.swap(true, Ordering::AcqRel) {
        let _ = HOOKS.set((locks, look));
        // SAFETY: the three functions have the type that libc wants and live for ever.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        // After the hooks, which set both in a child that another thread forks meanwhile.
        PROCESS.store(own_process(), Ordering::Relaxed);
        make_mark();
    }
}

extern "C" fn before() {
    let held = HOOKS.get().map_or_else(Vec::new, |(locks, _)| locks());
    // SAFETY: see `Held`; all locks are held now.
    unsafe { *HELD.0.get() = held };
}

extern "C" fn in_parent() {
    // SAFETY: see `Held`. Taken out first: the last lock released lets another fork in.
    let held = unsafe { std::mem::take(&mut *HELD.0.get()) };
    drop(held);
}

extern "C" fn in_child() {
    know_process();
    FORKED.store(true, Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if let Some((_, look)) = HOOKS.get() {
        look();
    }
    in_parent();
}
