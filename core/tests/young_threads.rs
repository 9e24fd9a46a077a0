//! What is due when a thread's span changes is that span's, also where the thread ends before its timer tells of it.

mod support;

use std::cell::Cell;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use spanprof_core::{
    Context, Frame, FrameId, FrameWriter, Profiler, Runtime, SpanRecord, TagSetId, ThreadRecord, sample_due,
    thread_started,
};
use support::{PATIENT, assert_adds_up, burn, config, read, thread_cpu};

thread_local! {
    static SPAN: Cell<*const SpanRecord> = const { Cell::new(std::ptr::null()) };
}

/// Has a span of its own for each thread, and one frame.
#[derive(Debug)]
struct Host;

// SAFETY: both read what is the calling thread's own and was touched before.
unsafe impl Runtime for Host {
    unsafe fn context(&self, _: &ThreadRecord, _: *const libc::ucontext_t) -> Context {
        Context { span: SPAN.get(), tags: TagSetId::EMPTY }
    }

    unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        out.push(1);
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        ids.iter().map(|_| Some(Frame { function: Arc::from("frame"), ..Frame::default() })).collect()
    }
}

fn switch(span: *const SpanRecord) {
    // SAFETY: no handler; records live to the end of the test.
    unsafe { sample_due() };
    SPAN.set(span);
}

/// A span in the records of its threads, for ever.
fn span(number: u64, name: &'static str) -> usize {
    // SAFETY: its name lives for ever.
    let record: &SpanRecord = Box::leak(Box::new(unsafe { SpanRecord::new([0; 2], number, name) }));
    std::ptr::from_ref(record).expose_provenance()
}

/// The CPU time that a thread has in a span of 5 ms, its only one, which begins so many milliseconds after it.
fn one_span(at: usize, after: u64) -> JoinHandle<Duration> {
    let body = move || {
        SPAN.set(std::ptr::null());
        thread_started();
        burn(Duration::from_millis(after));
        let start = thread_cpu();
        switch(std::ptr::with_exposed_provenance(at));
        burn(Duration::from_millis(5));
        switch(std::ptr::null());
        thread_cpu() - start
    };
    thread::spawn(body)
}

#[test]
fn threads_of_one_short_span_have_their_cpu_time_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(config(folder.path(), 100), &Host).unwrap();
    let spans = [(span(7, "at once"), 0), (span(8, "later"), 3)];
    let mut burnt = [Duration::ZERO; 2];
    for _ in 0..600 {
        for ((at, after), burnt) in spans.iter().zip(&mut burnt) {
            *burnt += one_span(*at, *after).join().unwrap();
        }
    }
    assert!(profiler.stop(PATIENT));
    assert_adds_up(&profiler.stats());
    let samples = read(folder.path());
    assert!(samples.iter().any(|sample| sample.stack == ["(seen as the span changes)", "frame"]), "{samples:?}");
    for (name, burnt) in ["at once", "later"].into_iter().zip(burnt) {
        let of_span = |sample: &&support::Sample| sample.labels.get("span_name").is_some_and(|of| of == name);
        let seen: i64 = samples.iter().filter(of_span).map(|sample| sample.value).sum();
        // Each thread has one or none, so the sum varies by sqrt(600) / 2 of 300, which is 4 %. Without a look at a span's end the first
        // has some 0.6 of it; without one at its start the other has 1.4, as it gets what was due before.
        let ratio = Duration::from_nanos(seen.unsigned_abs()).as_secs_f64() / burnt.as_secs_f64();
        assert!((0.8..1.2).contains(&ratio), "{name}: saw {ratio:.3} of {burnt:?}");
    }
}
