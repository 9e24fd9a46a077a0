//! A walk that takes longer than the time between two samples does not keep the program from getting on.

mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use spanprof_core::{Config, Frame, FrameId, FrameWriter, Profiler, Runtime, SampleClock, ThreadRecord};
use support::{PATIENT, assert_adds_up, config, process_cpu};

/// Stacks that take five times as long to read as there is between two samples.
#[derive(Debug)]
struct Slow;

// SAFETY: `walk` reads a clock, and pushes a constant.
unsafe impl Runtime for Slow {
    unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        let until = process_cpu() + Duration::from_millis(5);
        while process_cpu() < until {}
        out.push(1);
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        ids.iter().map(|_| Some(Frame { function: Arc::from("walked"), ..Frame::default() })).collect()
    }
}

#[test]
fn a_program_gets_on_however_long_its_stacks_take() {
    // SAFETY: takes a number. What does not get on is ended.
    unsafe { libc::alarm(240) };
    let folder = tempfile::tempdir().unwrap();
    // By wall time a signal comes whenever it is due, whatever the kernel's tick.
    let settings = Config { clock: SampleClock::Wall, ..config(folder.path(), 1_000) };
    let profiler = Profiler::start(settings, &Slow).unwrap();
    // Some milliseconds, which are interrupted a few times.
    for number in 0..5_000_000_u64 {
        black_box(number);
    }
    assert!(profiler.stop(PATIENT));
    let stats = profiler.stats();
    assert!(stats.taken.samples > 0, "{stats:?}");
    assert_adds_up(&stats);
}
