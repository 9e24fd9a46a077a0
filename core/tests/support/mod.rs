//! What the engine's end-to-end tests share: a runtime for this very program, and a reader that is not our encoder.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses its part, and a test may fail")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spanprof_core::{Config, Frame, FrameId, FrameWriter, Runtime, Stats, Tally, ThreadRecord, walk_frame_pointers};

/// How long a profiler may take for what it must do: on a busy machine reading debug information alone takes seconds.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);

/// Frame pointers, named by debug information.
#[derive(Debug)]
pub(crate) struct Native;

// SAFETY: `walk` only calls `walk_frame_pointers`, which is made for the handler.
unsafe impl Runtime for Native {
    /// Names come from debug information, which is slow to read: rings must hold what is sampled meanwhile.
    fn ring_bytes(&self) -> usize {
        256 * 1024
    }

    fn needs_safe_load(&self) -> bool {
        true
    }

    unsafe fn walk(&self, _: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: the handler passes its third argument.
        unsafe { walk_frame_pointers(ucontext, out) }
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        let name = |id: FrameId| {
            let mut name = None;
            let address = std::ptr::without_provenance_mut(usize::try_from(id).unwrap());
            backtrace::resolve(address, |symbol| name = symbol.name().map(|name| format!("{name:#}")));
            name.unwrap_or_else(|| format!("{id:#x}"))
        };
        ids.iter().map(|&id| Some(Frame { function: Arc::from(name(id)), ..Frame::default() })).collect()
    }
}

/// Frame pointers without names: where a test asks how much was seen, not what.
#[derive(Debug)]
pub(crate) struct Addresses;

// SAFETY: `walk` only calls `walk_frame_pointers`, which is made for the handler.
unsafe impl Runtime for Addresses {
    fn needs_safe_load(&self) -> bool {
        true
    }

    unsafe fn walk(&self, _: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: the handler passes its third argument.
        unsafe { walk_frame_pointers(ucontext, out) }
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        ids.iter().map(|id| Some(Frame { function: Arc::from(format!("{id:#x}")), ..Frame::default() })).collect()
    }
}

/// One sample, as the independent decoder reads it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Function names, leaf first.
    pub(crate) stack: Vec<String>,
    pub(crate) value: i64,
    /// By the names of their sample types.
    pub(crate) values: BTreeMap<String, i64>,
    pub(crate) labels: BTreeMap<String, String>,
}

/// The samples of all profiles in a folder.
pub(crate) fn read(folder: &Path) -> Vec<Sample> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let profiles = files.iter().map(|file| spanprof_faults::read(&std::fs::read(file).unwrap()).unwrap());
    profiles
        .flat_map(|profile| {
            let types: Vec<_> = profile.sample_types.into_iter().map(|(name, _)| name).collect();
            let frames = profile.frames;
            profile.samples.into_iter().map(move |sample| Sample {
                stack: sample.stack.iter().map(|&place| frames[place].0.clone()).collect(),
                value: sample.values[0],
                values: types.iter().cloned().zip(sample.values).collect(),
                labels: sample.labels,
            })
        })
        .collect()
}

/// What was taken must be somewhere: asserts both equations of `stats()`, and that nothing waits after a stop.
pub(crate) fn assert_adds_up(stats: &Stats) {
    let sum = |parts: &[Tally]| {
        let mut sum = Tally::default();
        parts.iter().for_each(|part| sum += *part);
        sum
    };
    assert_eq!((stats.pending, stats.queued), (Tally::default(), Tally::default()), "{stats:?}");
    assert_eq!(stats.taken, sum(&[stats.dropped_ring, stats.dropped_window, stats.encoded]), "{stats:?}");
    let ends = [stats.uploaded, stats.refused, stats.dropped_queue, stats.dropped_old, stats.discarded];
    assert_eq!(stats.encoded, sum(&ends), "{stats:?}");
    let refused = stats.refused_credentials + stats.refused_address + stats.refused_profiles;
    assert_eq!(stats.profiles_refused, refused, "{stats:?}");
    if stats.discarded == Tally::default() {
        let profiles = stats.profiles_uploaded + stats.profiles_refused + stats.profiles_dropped;
        assert_eq!(stats.profiles_encoded, profiles, "{stats:?}");
    }
}

/// Settings that write to `folder`.
pub(crate) fn config(folder: &Path, sample_rate: u32) -> Config {
    Config {
        application_name: "core-test".into(),
        server_address: format!("file://{}", folder.display()),
        sample_rate,
        ..Config::default()
    }
}

/// Burns CPU of the calling thread until something holds, and tells how much: the kernel looks at CPU timers at its tick, which may
/// miss a thread beside others for long.
pub(crate) fn burn_until(holds: impl Fn() -> bool) -> Duration {
    let began = thread_cpu();
    while !holds() {
        burn(Duration::from_millis(5));
        assert!(thread_cpu() - began < Duration::from_secs(20), "it never holds");
    }
    thread_cpu() - began
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads.
pub(crate) fn process_cpu() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid to write to.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Burns CPU of the calling thread.
#[inline(never)]
pub(crate) fn burn(cpu: Duration) {
    let until = thread_cpu() + cpu;
    while thread_cpu() < until {
        std::hint::black_box((0..200_u64).fold(0_u64, |sum, n| sum.wrapping_mul(31).wrapping_add(n)));
    }
}
