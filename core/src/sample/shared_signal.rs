//! A signal of the host's that timers send too, where the host gives it back.
//!
//! A real-time signal without a handler ends the process. CoreCLR 8 takes its handlers away an instant before it ends a process that
//! crashes, and a timer of another thread would end that by signal 34: another exit status, and no core file. So the module that had the
//! handler calls us where it calls `sigaction`, and what would have no handler from then on is ignored.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::{mem, ptr};

use super::elf::Module;
use super::slot;

/// libc's own function; 0 until [`keep`] has asked.
static REAL: AtomicUsize = AtomicUsize::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// A child that is about to become another program hands it the signals that are ignored, so it gets what it asks for.
static PROCESS: AtomicI32 = AtomicI32::new(0);

type Sigaction = unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32;

/// From now on the module that this handler is in cannot leave this signal without one. Where it calls `sigaction` in another way than by
/// a slot of its own, it can.
pub(super) fn keep(signal: i32, handler: usize) {
    // SAFETY: plain bits.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    // SAFETY: any address may be asked for.
    unsafe { libc::dladdr(ptr::with_exposed_provenance(handler), &raw mut info) };
    // SAFETY: 0, or where ld.so loaded the module that has the handler, which stays as long as that may be called.
    let Some(module) = (unsafe { Module::at(info.dli_fbase.addr()) }) else { return };
    // SAFETY: a string; any module may be asked at any time.
    let real = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"sigaction".as_ptr()) }.addr();
    if real == 0 {
        return;
    }
    REAL.store(real, Ordering::Relaxed);
    // SAFETY: no arguments.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    SIGNAL.store(signal, Ordering::Relaxed);
    let ours: Sigaction = sigaction;
    let mut memory = None;
    for slot in module.slots().filter(|slot| slot.name == c"sigaction") {
        // Another library's wrapper, or ld.so's stub, stays.
        slot::write(slot.address, real, ours as usize, module.read_only.contains(&slot.address), &mut memory);
    }
}

/// Called in place of libc's, also in signal handlers: loads, and at most one system call more.
unsafe extern "C" fn sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32 {
    // SAFETY: stored before any slot has led here.
    let real: Sigaction = unsafe { mem::transmute(REAL.load(Ordering::Relaxed)) };
    // SAFETY: null or valid, as the caller promises.
    let asked = unsafe { new.as_ref() }.filter(|new| new.sa_sigaction == libc::SIG_DFL);
    let ignored = asked.map(|new| libc::sigaction { sa_sigaction: libc::SIG_IGN, ..*new });
    let is_left = signal == SIGNAL.load(Ordering::Relaxed) && is_own_process();
    let new = ignored.as_ref().filter(|_| is_left).map_or(new, ptr::from_ref);
    // SAFETY: the caller's arguments, or what is here.
    unsafe { real(signal, new, old) }
}

fn is_own_process() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::getpid() == PROCESS.load(Ordering::Relaxed) }
}
