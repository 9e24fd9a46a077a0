//! Waits of threads, which the engine measures where they call libc: what that needs in the interpreter, and whether it can be.

use std::ffi::{c_int, c_ulong};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use magnus::Error;
use rb_sys::VALUE;
use spanprof_core::Profiler;

use crate::drain::bell;
use crate::events::fiber_waits;
#[cfg(ruby_gte_3_3)]
use crate::events::ready;
use crate::span::saved;
use crate::stack::wall_clock::BY_WALL_TIME;
use crate::stack::{gvl, method};
use crate::value::id;
use crate::without_gvl::without_gvl;

/// What is read of methods is known, in this process or in one that it was forked from.
static LEARNED: AtomicBool = AtomicBool::new(false);
/// How often it is tried to see one.
const TRIES: u32 = 5;
/// How many milliseconds are waited for a thread of ours to let the GVL go, while others may have it, and to come for it, while none has.
/// On a machine that has other work a thread may be kept from the processor for some hundred.
const PATIENCE: [u32; 2] = [1_000, 100];

/// Measures waits, if that was asked for. Where they are not what they should be they are not measured, which is reported. An error:
/// what came for the calling thread meanwhile; they are measured all the same.
pub(crate) fn begin(profiler: &Profiler) -> Result<(), Error> {
    if !profiler.config().wall_time || BY_WALL_TIME.load(Ordering::Relaxed) {
        return Ok(());
    }
    if !spanprof_core::measures_waits() {
        return Ok(());
    }
    let learned = if LEARNED.load(Ordering::Relaxed) { Ok(()) } else { learn_methods() };
    if let Err(why) = learned.and_then(|()| prepare()) {
        profiler.measure_no_waits(why);
        return Ok(());
    }
    // Ruby says until when it waits before it does, and may be kept from the processor in between.
    if !(0..TRIES).any(|_| wait_a_millisecond() >= 900_000) {
        profiler.saw_no_wait();
        if !spanprof_core::measures_waits() {
            return Ok(());
        }
    }
    fiber_waits::measure(true);
    // Where nothing is seen yet nothing can be learnt.
    if gvl::is_unknown() && !spanprof_core::waits_began_pending() { learn_gvl() } else { Ok(()) }
}

/// Tells what is read of the method in which a thread waited. An error: why not.
fn learn_methods() -> Result<(), &'static str> {
    let interpreter = interpreter().ok_or("/proc/self/maps, which says where the interpreter is, cannot be read")?;
    // SAFETY: called with the GVL held; it lives as long as it stands here.
    let mutex = unsafe { rb_sys::rb_mutex_new() };
    // SAFETY: a data object.
    let mutex_type = unsafe { rb_sys::macros::RTYPEDDATA_TYPE(mutex) }.expose_provenance() as VALUE;
    #[expect(clippy::cast_possible_truncation, reason = "an address")]
    let words = ptr::with_exposed_provenance::<[VALUE; 5]>(mutex as usize);
    // SAFETY: objects have five words at least.
    let words = unsafe { *words };
    let word = (2..5).find(|word| words[*word] == mutex_type).and_then(|word| c_int::try_from(word).ok());
    method::learn(id, (mutex_type, word.unwrap_or_default()), &interpreter);
    LEARNED.store(true, Ordering::Relaxed);
    Ok(())
}

/// The range of the file that the interpreter is mapped from. ld.so is not asked: who holds its list of modules may wait for the GVL, or
/// have been left behind by a fork.
fn interpreter() -> Option<Range<usize>> {
    let inside = rb_sys::rb_profile_frames as *const () as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mapped = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        // Behind permissions and offset: device and inode.
        let file = (fields.nth(2)?, fields.next()?);
        Some((usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?, file))
    });
    let mapped: Vec<_> = mapped.collect();
    // One after the other, and no other mapping of that file.
    let own = mapped
        .chunk_by(|(_, one), (_, next)| one == next)
        .find(|own| own.iter().any(|(range, _)| range.contains(&inside)));
    own.and_then(|own| Some(own.first()?.0.start..own.last()?.0.end))
}

/// Takes out of the interpreter what [`begin`] put there.
pub(crate) fn end() {
    fiber_waits::measure(false);
    #[cfg(ruby_gte_3_3)]
    ready::ignore();
}

fn prepare() -> Result<(), &'static str> {
    if saved::is_on() {
        return Err("with RUBY_MN_THREADS=1 Ruby's threads wait by other means");
    }
    #[cfg(ruby_gte_3_3)]
    ready::watch().map_err(|_| "Ractors are there already, so Ruby does not tell when its threads are woken")?;
    Ok(())
}

/// Lets the parked thread wait for the GVL while this one holds it, which tells where the mutex of the GVL is. Where that takes too
/// long, the parked thread may learn it later; until then what waits for the GVL waits for a lock. An error: what interrupted it.
fn learn_gvl() -> Result<(), Error> {
    // It may be kept from the processor for longer than it is given, before it waits: then once more, with more time. On a busy machine the
    // fourth was not enough once.
    for hold in [1, 4, 16, 64, 250] {
        without_gvl(|| {
            for _ in 0..PATIENCE[0] {
                if gvl::is_away() {
                    break;
                }
                sleep(Duration::from_millis(1));
            }
        })?;
        // If it is away again, it is known what it waited for.
        if !gvl::is_unknown() || !gvl::is_away() {
            break;
        }
        bell::ring();
        for _ in 0..PATIENCE[1] {
            wait_a_millisecond();
            if !gvl::is_away() {
                for _ in 0..hold {
                    wait_a_millisecond();
                }
                break;
            }
        }
    }
    Ok(())
}

/// Ruby waits for what nobody signals. It keeps the GVL, so none of the program's code runs. Returns for how many nanoseconds that was seen.
fn wait_a_millisecond() -> u64 {
    type Condition = MaybeUninit<libc::pthread_cond_t>;
    type Mutex = MaybeUninit<libc::pthread_mutex_t>;
    unsafe extern "C" {
        fn rb_native_cond_initialize(condition: *mut Condition);
        fn rb_native_cond_destroy(condition: *mut Condition);
        fn rb_native_cond_timedwait(condition: *mut Condition, mutex: *mut Mutex, milliseconds: c_ulong);
        fn rb_native_mutex_initialize(mutex: *mut Mutex);
        fn rb_native_mutex_destroy(mutex: *mut Mutex);
        fn rb_native_mutex_lock(mutex: *mut Mutex);
        fn rb_native_mutex_unlock(mutex: *mut Mutex);
    }
    let (mut condition, mut mutex) = (Condition::uninit(), Mutex::uninit());
    let (condition, mutex) = (&raw mut condition, &raw mut mutex);
    // SAFETY: places of their own, on Linux of these sizes.
    unsafe { rb_native_cond_initialize(condition) };
    // SAFETY: as above.
    unsafe { rb_native_mutex_initialize(mutex) };
    // SAFETY: initialized above, as all that follow need.
    unsafe { rb_native_mutex_lock(mutex) };
    let before = spanprof_core::waited_ns();
    // SAFETY: locked by this thread.
    unsafe { rb_native_cond_timedwait(condition, mutex, 1) };
    let seen = spanprof_core::waited_ns() - before;
    // SAFETY: as above.
    unsafe { rb_native_mutex_unlock(mutex) };
    // SAFETY: nobody else knows of it.
    unsafe { rb_native_mutex_destroy(mutex) };
    // SAFETY: as above.
    unsafe { rb_native_cond_destroy(condition) };
    seen
}
