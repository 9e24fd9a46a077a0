//! Where threads share a processor, the kernel's timers of CPU time may tell nothing for a second, and then all of it at once.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use spanprof_core::{Profiler, SpanContext, span_end, span_start};
use support::{Addresses, PATIENT, assert_adds_up, burn, config, read};

const SPANS: u64 = 12;
const BURNT: Duration = Duration::from_millis(400);

fn stay_on(processor: usize) {
    // SAFETY: plain bits.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of ours.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: as above; 0 is the calling thread.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }, 0);
}

#[test]
fn spans_of_a_thread_that_shares_its_processor_have_their_cpu_time() {
    static ENDS: AtomicBool = AtomicBool::new(false);
    // SAFETY: takes nothing.
    let processor = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(config(folder.path(), 100), &Addresses).unwrap();
    let other = thread::spawn(move || {
        stay_on(processor);
        while !ENDS.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    let spans = thread::spawn(move || {
        stay_on(processor);
        for number in 1..=SPANS {
            span_start(SpanContext { trace_id: [0, 1], span_id: number }, "request");
            burn(BURNT);
            span_end();
        }
    });
    spans.join().unwrap();
    ENDS.store(true, Ordering::Relaxed);
    other.join().unwrap();
    assert!(profiler.stop(PATIENT));
    assert_adds_up(&profiler.stats());
    let samples = read(folder.path());
    let seen = |number: u64| {
        let id = format!("{number:016x}");
        let of_span = samples.iter().filter(|sample| sample.labels.get("span_id") == Some(&id));
        u64::try_from(of_span.map(|sample| sample.value).sum::<i64>()).unwrap() / 1_000_000
    };
    // A thread that is late is found within a tenth of a second, and then each twenty milliseconds.
    let seen: Vec<u64> = (1..=SPANS).map(seen).collect();
    let burnt = u64::try_from(BURNT.as_millis()).unwrap();
    assert!(seen.iter().all(|&seen| seen > burnt / 2 && seen < burnt * 3 / 2), "of {burnt} ms each: {seen:?} ms");
}
