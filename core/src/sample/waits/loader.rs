//! ld.so's lock of its list of modules.
//!
//! Who opens or closes a module holds it, and who asks for the list by `dl_iterate_phdr`, also while it calls the program for each module.
//! That may wait for the interpreter's lock (Python's threadpoolctl asks so), which who looks up a function may hold, and who forks, for which
//! this folder's own lock is taken. So we take it only where it is free.
//!
//! glibc makes the other locks of ld.so anew in a forked child, and not this one: where another thread of the parent's held it, it is held
//! for ever, by nobody who is there. So a child looks at it, while it has one thread, and does not ask for modules where it is held. Where the
//! lock is glibc does not say: it stands after another one of its kind in `_rtld_global`, and whether it is the right one is seen by what it
//! counts (glibc 2.19 to 2.41, and by no name or place of its own). musl makes its own anew, and has no such variable.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::{mem, ptr};

use libc::dl_phdr_info;

use crate::os::thread_id::tid;
use crate::sample::elf::{Module, Name, word};

/// The beginning of a mutex of glibc's.
#[repr(C)]
struct Mutex {
    /// 0: nobody has it.
    lock: AtomicI32,
    count: AtomicI32,
    owner: AtomicI32,
    users: AtomicI32,
    kind: AtomicI32,
    spins: AtomicI32,
    list: [AtomicPtr<Mutex>; 2],
}

impl Mutex {
    /// Whether this may be a mutex that one thread may lock several times, locked or not.
    fn is_recursive(&self) -> bool {
        let Self { lock, count, owner, users, kind, spins, list } = self;
        let [lock, count, owner, users, kind, spins] =
            [lock, count, owner, users, kind, spins].map(|word| word.load(Ordering::Relaxed));
        let is_locked_or_not = (0..=2).contains(&lock) && count >= 0 && owner >= 0 && (0..=1).contains(&users);
        kind == libc::PTHREAD_MUTEX_RECURSIVE
            && is_locked_or_not
            && spins == 0
            && list.iter().all(|next| next.load(Ordering::Relaxed).is_null())
    }
}

/// Where the lock is, once that was looked for.
static LOCK: AtomicPtr<Mutex> = AtomicPtr::new(ptr::null_mut());
/// What stands there where the C library has none, and where it was not found.
static UNNEEDED: u64 = 0;
static UNKNOWN: u64 = 1;
/// It was seen to be the right one.
static IS_CERTAIN: AtomicBool = AtomicBool::new(false);
static IS_STUCK: AtomicBool = AtomicBool::new(false);

/// Where the lock is, in words.
enum Lock {
    Unneeded,
    /// Or not looked for yet.
    Unknown,
    At(*mut Mutex),
}

fn lock() -> Lock {
    match LOCK.load(Ordering::Relaxed) {
        lock if lock == marker(&UNNEEDED) => Lock::Unneeded,
        lock if lock.is_null() || lock == marker(&UNKNOWN) => Lock::Unknown,
        lock => Lock::At(lock),
    }
}

fn marker(marker: &'static u64) -> *mut Mutex {
    ptr::from_ref(marker).cast_mut().cast()
}

/// The beginning of `struct r_debug`, what ld.so tells debuggers.
#[repr(C)]
struct Debug {
    version: c_int,
    modules: *const c_void,
    breaks_at: usize,
    state: c_int,
    /// Where ld.so itself is loaded.
    base: usize,
}

/// Looks for the lock, once a process. It takes no lock but that of functions that are looked up.
pub(super) fn prepare() {
    if !LOCK.load(Ordering::Relaxed).is_null() {
        return;
    }
    // SAFETY: strings; any module may be asked at any time.
    let [debug, is_glibc] =
        [c"_r_debug", c"gnu_get_libc_version"].map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    // SAFETY: null, or ld.so's variable of this name.
    let base = unsafe { debug.cast::<Debug>().as_ref() }.map_or(0, |debug| debug.base);
    // SAFETY: null, or where ld.so is.
    let found = if base == 0 { None } else { unsafe { look_in(base) } };
    let nowhere = if is_glibc.is_null() { marker(&UNNEEDED) } else { marker(&UNKNOWN) };
    LOCK.store(found.unwrap_or(nowhere), Ordering::Relaxed);
}

/// Looks for the lock in the `_rtld_global` of ld.so.
///
/// # Safety
/// A file is loaded there, from its header on.
unsafe fn look_in(base: usize) -> Option<*mut Mutex> {
    // SAFETY: the caller's promise.
    let global = unsafe { Module::at(base) }?.find(&Name::new(c"_rtld_global"))?;
    let start = base + word(global.st_value);
    let one = size_of::<libc::pthread_mutex_t>();
    let places = start..(start + word(global.st_size)).saturating_sub(2 * one);
    let is_first = |place: &usize| {
        [*place, *place + one].iter().all(|place| {
            // SAFETY: within the variable, which others write word by word.
            unsafe { &*ptr::with_exposed_provenance::<Mutex>(*place) }.is_recursive()
        })
    };
    let first = places.step_by(mem::align_of::<Mutex>()).find(is_first)?;
    Some(ptr::with_exposed_provenance_mut(first + one))
}

/// The lock, or nothing where there is none. Who has it asks for modules without waiting.
#[derive(Debug)]
pub(super) struct Held(*mut Mutex);

impl Drop for Held {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: ld.so's, which stays, and this thread locked it.
            unsafe { libc::pthread_mutex_unlock(self.0.cast()) };
        }
    }
}

/// Takes the lock where nobody else has it. Waits for nobody. Not where a fork may leave a child with it: this folder's own lock is held.
pub(super) fn try_hold() -> Option<Held> {
    if is_stuck() {
        return None;
    }
    let lock = match lock() {
        Lock::Unneeded => return Some(Held(ptr::null_mut())),
        Lock::Unknown => return None,
        Lock::At(lock) => lock,
    };
    // SAFETY: ld.so's, which stays.
    if unsafe { libc::pthread_mutex_trylock(lock.cast()) } != 0 {
        return None;
    }
    let held = Held(lock);
    if !IS_CERTAIN.load(Ordering::Relaxed) {
        // SAFETY: as above.
        let locked = unsafe { &(*lock).count }.load(Ordering::Relaxed);
        let mut counted = 0;
        // SAFETY: the callback takes the place that is passed.
        unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut counted).cast()) };
        if counted != locked + 1 {
            LOCK.store(marker(&UNKNOWN), Ordering::Relaxed);
            return None;
        }
        IS_CERTAIN.store(true, Ordering::Relaxed);
    }
    Some(held)
}

/// How often this thread holds the lock: once more than before, if it is the right one.
unsafe extern "C" fn count(_: *mut dl_phdr_info, _: usize, counted: *mut c_void) -> c_int {
    if let Lock::At(lock) = lock() {
        // SAFETY: ld.so's, which stays.
        let Mutex { count, owner, .. } = unsafe { &*lock };
        if owner.load(Ordering::Relaxed) == tid() {
            // SAFETY: what `try_hold` passes.
            unsafe { *counted.cast() = count.load(Ordering::Relaxed) };
        }
    }
    1
}

/// Whether nobody ever asks for modules here: the lock is held for ever, by who is not in this forked child, or was not found.
pub(super) fn is_stuck() -> bool {
    IS_STUCK.load(Ordering::Relaxed) || matches!(lock(), Lock::Unknown)
}

/// In a forked child, before it has a second thread.
pub(crate) fn look() {
    let is_held = |lock: *mut Mutex| {
        // SAFETY: ld.so's, which stays.
        unsafe { &*lock }.lock.load(Ordering::Relaxed) != 0
    };
    IS_STUCK.store(matches!(lock(), Lock::At(lock) if is_held(lock)), Ordering::Relaxed);
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_where_ld_so_was_called_to_run_the_program() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let loader =
            maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|file| file.contains("/ld-")).unwrap();
        let tests = concat!(module_path!(), "::the_lock_is_").split_once("::").unwrap().1;
        let run = std::process::Command::new(loader).arg(std::env::current_exe().unwrap()).arg(tests).output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("2 passed"), "{said}");
    }

    #[test]
    fn the_lock_is_taken_where_nobody_else_has_it() {
        unsafe extern "C" fn tries(_: *mut dl_phdr_info, _: usize, tried: *mut c_void) -> c_int {
            let try_here = || try_hold().is_some();
            let elsewhere = std::thread::scope(|scope| scope.spawn(try_here).join().unwrap());
            // SAFETY: the place that is passed below.
            unsafe { *tried.cast() = [try_here(), elsewhere] };
            1
        }
        prepare();
        let mut tried = [false; 2];
        // SAFETY: the callback takes what is passed.
        unsafe { libc::dl_iterate_phdr(Some(tries), (&raw mut tried).cast()) };
        assert_eq!(tried, [true, false]);
        std::thread::scope(|scope| assert!(scope.spawn(|| try_hold().is_some()).join().unwrap(), "it was given back"));
    }

    #[test]
    fn the_lock_is_held_by_who_asks_for_modules() {
        unsafe extern "C" fn owner(_: *mut dl_phdr_info, _: usize, owner: *mut c_void) -> c_int {
            let Lock::At(lock) = lock() else { return 1 };
            // SAFETY: ld.so's, which stays.
            let has = unsafe { &*lock }.owner.load(Ordering::Relaxed);
            // SAFETY: the place that is passed below.
            unsafe { *owner.cast() = has };
            1
        }
        prepare();
        let mut found = 0;
        // SAFETY: the callback takes what is passed.
        unsafe { libc::dl_iterate_phdr(Some(owner), (&raw mut found).cast()) };
        assert_eq!(found, tid());
    }
}
