//! Every sample carries the span its thread was in: each span burns in a function of its own, so the stack tells.

mod support;

use std::thread;
use std::time::Duration;

use spanprof_core::{Profiler, SpanContext, add_thread_tag, span_end, span_start};
use support::{Native, PATIENT, burn, config, read};

macro_rules! truth {
    ($($name:ident),*) => {
        $(#[inline(never)]
        fn $name(cpu: Duration, inner: Option<fn()>) {
            burn(cpu / 2);
            if let Some(inner) = inner {
                inner();
            }
            burn(cpu / 2);
        })*
        const TRUTHS: &[(&str, fn(Duration, Option<fn()>))] = &[$((stringify!($name), $name)),*];
    };
}

truth!(truth_a, truth_b, truth_c, truth_d, truth_e, truth_f);

fn in_span(number: usize, cpu: Duration, inner: Option<fn()>) {
    let (name, function) = TRUTHS[number % TRUTHS.len()];
    let id = SpanContext { trace_id: [1, 2], span_id: 1 + (number % TRUTHS.len()) as u64 };
    span_start(id, name);
    function(cpu, inner);
    span_end();
}

/// The function of a span that this name of a frame names.
fn truth_of(function: &str) -> Option<&'static str> {
    let name = function.rsplit("::").next()?;
    TRUTHS.iter().find(|(known, _)| *known == name).map(|(known, _)| *known)
}

#[inline(never)]
fn outside() {
    burn(Duration::from_micros(700));
}

fn child() {
    in_span(5, Duration::from_micros(900), None);
}

#[test]
fn every_sample_carries_the_span_its_thread_was_in() {
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(config(folder.path(), 1000), &Native).unwrap();
    let threads: Vec<_> = (0..8_u32)
        .map(|seed| {
            thread::spawn(move || {
                assert!(add_thread_tag("worker", &(seed % 2).to_string()));
                for round in 0..150_u32 {
                    let cpu = Duration::from_micros(u64::from(200 + (seed * 7919 + round * 104_729) % 2_800));
                    let number = (seed + round) as usize % 5;
                    in_span(number, cpu, (round % 2 == 0).then_some(child as fn()));
                    outside();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(profiler.stop(PATIENT));
    let stats = profiler.stats();
    assert_eq!(stats.pending.samples, 0, "{stats:?}");
    assert_eq!(stats.uploaded, stats.taken, "{stats:?}");

    let (mut inside, mut without) = (0, 0);
    let samples = read(folder.path());
    for sample in &samples {
        let truth = sample.stack.iter().find_map(|function| truth_of(function));
        // While a span starts or ends, the function around it does not tell which of the two is current.
        // Nor where the innermost `in_span` comes first: its function begins or is over, or is skipped by the walk, as a function
        // that it calls has no frame yet. So is `in_span` itself where `child` comes first, which calls nothing else.
        let is_in_span = |function: &str| function.ends_with("in_span") || function.ends_with("::child");
        let is_edge =
            sample.stack.iter().any(|function| function.ends_with("span_start") || function.ends_with("span_end"))
                || sample
                    .stack
                    .iter()
                    .find(|function| is_in_span(function) || truth_of(function).is_some())
                    .is_some_and(|function| is_in_span(function));
        if is_edge {
            without += sample.value;
        } else if sample.stack.iter().any(|function| function.ends_with("outside")) {
            assert_eq!(sample.labels.get("span_id"), None, "outside spans: {sample:?}");
        } else if let Some(truth) = truth {
            assert_eq!(sample.labels.get("span_name").map(String::as_str), Some(truth), "{sample:?}");
            let number = TRUTHS.iter().position(|(name, _)| *name == truth).unwrap() + 1;
            assert_eq!(sample.labels["span_id"], format!("{number:016x}"));
            assert!(["0", "1"].contains(&&*sample.labels["worker"]), "the thread's tag: {sample:?}");
            assert_eq!(sample.labels["trace_id"], format!("{:016x}{:016x}", 1, 2));
            inside += sample.value;
        } else {
            without += sample.value;
        }
    }
    let all: i64 = samples.iter().map(|sample| sample.value).sum();
    assert_eq!(all.unsigned_abs(), stats.uploaded.weight, "files hold what stats() says");
    assert!(inside > 500_000_000, "{inside} ns inside spans");
    assert!(without * 10 < all, "{without} of {all} ns with neither");
}
