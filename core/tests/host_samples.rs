//! A host whose stacks cannot always be walked, whose frame ids are collected, which has a lock, a signal and events of its own.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use spanprof_core::{
    Config, Context, Drain, DrainPermit, Frame, FrameId, FrameWriter, ProfileType, ProfileTypeId, Profiler, Runtime,
    SampleSignal, ThreadRecord, for_each_pending_frame, sample_deferred, sample_here,
};
use support::{PATIENT, Sample, assert_adds_up, burn, burn_until, config, read};

static COLLECTING: AtomicBool = AtomicBool::new(false);
static EPOCH: AtomicU32 = AtomicU32::new(0);
static DRAIN_ASKED: AtomicBool = AtomicBool::new(false);
static RESOLVED: AtomicUsize = AtomicUsize::new(0);
static FOREIGN: AtomicI32 = AtomicI32::new(0);

const RUNNING: u64 = 1;
const COLLECTION: u64 = 2;
const ALLOCATION: u64 = 3;
const MEMORY: ProfileTypeId = ProfileTypeId(1);
/// What a sum may be off by, as a timer is looked at by the tick.
const TICKS: Duration = Duration::from_millis(20);
/// For which the ring is busy.
const BUSY: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Collected;

// SAFETY: `walk` pushes a constant; the rest reads atomics.
unsafe impl Runtime for Collected {
    unsafe fn defers(&self, _: &ThreadRecord) -> bool {
        COLLECTING.load(Ordering::Relaxed)
    }

    fn epoch(&self) -> u32 {
        EPOCH.load(Ordering::Relaxed)
    }

    fn caches_frames(&self) -> bool {
        false
    }

    fn signal(&self) -> SampleSignal {
        SampleSignal::Shared(libc::SIGRTMIN())
    }

    unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        out.push(RUNNING);
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        RESOLVED.fetch_add(ids.len(), Ordering::Relaxed);
        ids.iter().map(|id| Some(Frame { function: Arc::from(format!("f{id}")), ..Frame::default() })).collect()
    }

    fn request_drain(&self) -> Drain {
        DRAIN_ASKED.store(true, Ordering::Release);
        Drain::Requested
    }
}

extern "C" fn on_foreign(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    FOREIGN.fetch_add(1, Ordering::Relaxed);
}

/// Drains by permit, as often as it is asked to, until `action` is done on another thread.
fn draining<T: Send>(profiler: &Profiler, action: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let action = scope.spawn(action);
        while !action.is_finished() {
            drain(profiler);
            thread::yield_now();
        }
        action.join().unwrap()
    })
}

fn drain(profiler: &Profiler) {
    if DRAIN_ASKED.swap(false, Ordering::Acquire) {
        // SAFETY: only this thread drains; it is the lock.
        profiler.drain(&unsafe { DrainPermit::new() });
    }
}

fn pending() -> BTreeSet<u64> {
    let mut ids = BTreeSet::new();
    // SAFETY: only this thread drains, and it does not now.
    unsafe { for_each_pending_frame(|id| ids.extend([id])) };
    ids
}

/// A walk that finds one frame.
fn stack_of(id: FrameId) -> impl Fn(&mut FrameWriter<'_>) {
    move |out| assert!(out.push(id))
}

fn memory() -> ProfileType {
    ProfileType {
        name: "memory",
        sample_types: &[("alloc_samples", "count"), ("alloc_size", "bytes")],
        period_type: ("space", "bytes"),
        period: 1,
    }
}

fn sum(samples: &[Sample], function: &str, sample_type: &str) -> i64 {
    let of = samples.iter().filter(|sample| sample.stack == [function]);
    of.filter_map(|sample| sample.values.get(sample_type)).sum()
}

#[test]
fn what_a_host_defers_and_what_it_samples_itself_is_in_the_profiles() {
    // SAFETY: a sigaction is plain bits.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_foreign;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the action is valid; its handler only counts.
    assert_eq!(unsafe { libc::sigaction(libc::SIGRTMIN(), &raw const action, std::ptr::null_mut()) }, 0);
    let folder = tempfile::tempdir().unwrap();
    let config = Config { profile_types: vec![memory()], ..config(folder.path(), 1000) };

    // A collection: nothing is walked, and its end samples what it burnt. It began before the first sample may come.
    COLLECTING.store(true, Ordering::Relaxed);
    let profiler = Profiler::start(config.clone(), &Collected).unwrap();
    let in_collection = burn_until(|| profiler.stats().deferred > 50);
    assert!(!pending().contains(&RUNNING), "no stack was walked");
    // SAFETY: on this thread, outside handlers.
    assert!(unsafe { sample_deferred(Context::NONE, stack_of(COLLECTION)) });
    // SAFETY: as above. Only what came since is left.
    let left = (0..10).take_while(|_| unsafe { sample_deferred(Context::NONE, stack_of(COLLECTION)) }).count();
    assert!(left < 10, "something is left for ever");
    COLLECTING.store(false, Ordering::Relaxed);
    EPOCH.fetch_add(1, Ordering::Relaxed);

    // An allocation whose walk takes so long that the timer comes in between.
    let walk = |out: &mut FrameWriter<'_>| {
        burn(BUSY);
        out.push(ALLOCATION);
    };
    // SAFETY: as above.
    assert!(unsafe { sample_here(MEMORY, 4096, 3, Context::NONE, walk) });
    let before = burn_until(|| pending().contains(&RUNNING));
    assert!(pending().is_superset(&[RUNNING, COLLECTION, ALLOCATION].into()), "{:?}", pending());

    // SAFETY: the signal has a handler.
    unsafe { libc::raise(libc::SIGRTMIN()) };
    assert_eq!(FOREIGN.load(Ordering::Relaxed), 1, "what is not ours goes to the handler that was there");

    assert!(draining(&profiler, || profiler.flush(PATIENT)));
    assert_eq!(RESOLVED.load(Ordering::Relaxed), 3);
    let after = burn_until(|| pending().contains(&RUNNING));
    assert!(draining(&profiler, || profiler.stop(PATIENT)));
    assert!(RESOLVED.load(Ordering::Relaxed) > 3, "frame ids are asked for again in the next window");
    assert!(pending().is_empty());
    assert_adds_up(&profiler.stats());
    let samples = read(folder.path());
    let (collection, running) = (sum(&samples, "f2", "cpu"), sum(&samples, "f1", "cpu"));
    let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap();
    let most = nanoseconds(in_collection + TICKS);
    assert!((50_000_000..=most).contains(&collection), "{collection} ns of {in_collection:?}");
    assert_eq!((sum(&samples, "f3", "alloc_samples"), sum(&samples, "f3", "alloc_size")), (3, 4096));
    // What was burnt while the ring was busy went to the sample after it; what came after the last one is in none.
    let all = in_collection + BUSY + before + after;
    let expected = nanoseconds(all - TICKS)..=nanoseconds(all + TICKS);
    assert!(expected.contains(&(collection + running)), "{collection} + {running} ns of {all:?}");

    // Without CPU time, events are taken all the same, and no timer is made.
    let folder = tempfile::tempdir().unwrap();
    let address = format!("file://{}", folder.path().display());
    let profiler =
        Profiler::start(Config { cpu_enabled: false, server_address: address, ..config }, &Collected).unwrap();
    burn(Duration::from_millis(20));
    // SAFETY: as above.
    assert!(unsafe { sample_here(MEMORY, 100, 1, Context::NONE, stack_of(ALLOCATION)) });
    assert!(draining(&profiler, || profiler.stop(PATIENT)));
    assert_adds_up(&profiler.stats());
    let samples = read(folder.path());
    assert_eq!((samples.len(), sum(&samples, "f3", "alloc_size")), (1, 100), "{samples:?}");
    // SAFETY: as above.
    assert!(!unsafe { sample_here(MEMORY, 100, 1, Context::NONE, |_| ()) }, "nobody runs");
}
