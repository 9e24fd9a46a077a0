//! What the samples of a window come to.

use super::super::open_window::{MAX_KEYS, MAX_NAMES, MAX_STACK_FRAMES};
use super::*;
use crate::sample::ring::Measure;
use crate::sample::runtime::testing::{NeverReady, Numbered};
use crate::sample::threads::Why;

const PLACE: Sample<'static> = Sample {
    measure: Measure { profile_type: ProfileTypeId::TIMER, state: State::Cpu, count: 1, claim: 1, value: 10 },
    span_id: 0,
    is_concurrent: false,
    context_tags: TagSetId::EMPTY,
    thread_tags: TagSetId::EMPTY,
    frames: &[],
    extra: &[],
};

struct Fixture {
    aggregate: Aggregate,
    counters: Counters,
}

impl Fixture {
    fn new() -> Self {
        Self { aggregate: Aggregate::new(vec![ProfileType::process_cpu(10)]), counters: Counters::default() }
    }

    fn with_wall_time() -> Self {
        let types = vec![ProfileType::process_cpu(10), ProfileType::wall_time(10)];
        Self { aggregate: Aggregate::new(types), counters: Counters::default() }
    }

    fn add(&mut self, thread: u32, entry: Entry<'_>) {
        self.aggregate.add(Drained::Entry(thread, entry), &Numbered, &self.counters);
    }

    fn sample(&mut self, span_id: u64, frames: &[u64]) {
        self.add(1, Entry::Sample(Sample { span_id, frames, ..PLACE }));
    }

    fn span(&mut self, span_id: u64, name: &str) {
        self.add(1, Entry::Span { span_id, trace_id: [1, span_id], name: name.as_bytes() });
    }

    /// The host did not drain in time.
    fn rotate_undrained(&mut self) {
        drop(self.aggregate.rotate(HashMap::new(), true, false, &self.counters));
    }

    /// The window's samples as text, sorted.
    fn rotate(&mut self, final_names: &[(u64, &str)]) -> Vec<String> {
        settle(&mut self.aggregate, &Numbered, &self.counters, false);
        let names = final_names.iter().map(|(id, name)| (*id, Box::from(*name))).collect();
        let window = self.aggregate.rotate(names, true, true, &self.counters).finish(&self.counters);
        let mut lines: Vec<String> = window
            .samples
            .iter()
            .map(|sample| {
                let stack = &window.stacks[sample.stack as usize];
                let stack: Vec<&str> = stack.iter().map(|&frame| &*window.frames[frame as usize].function).collect();
                let span = sample.span.map(|span| &window.spans[span as usize]);
                let span = span.map_or("-".into(), |span| format!("{}:{}", span.span_id, span.name));
                format!("{} {}x{} {span}", stack.join(";"), sample.count, sample.value)
            })
            .collect();
        lines.sort();
        lines
    }
}

/// So many nanoseconds for the claim of each sample of [`PLACE`].
fn each(ready_ns: u64) -> Part {
    Part::new(ready_ns, ready::claimed_ns(PLACE.measure))
}

#[test]
fn equal_samples_are_summed_and_again_repeats_the_threads_newest() {
    let mut fixture = Fixture::new();
    fixture.span(7, "GET /");
    fixture.sample(7, &[1, 2]);
    fixture.add(2, Entry::Sample(Sample { frames: &[3], ..PLACE }));
    fixture.add(1, Entry::Again { value: 30 });
    fixture.sample(0, &[1, 2]);
    fixture.sample(0, &[]);
    assert_eq!(fixture.rotate(&[]), ["(no stack) 1x10 -", "f1;f2 1x10 -", "f1;f2 2x40 7:GET /", "f3 1x10 -"]);
    fixture.add(2, Entry::Again { value: 5 });
    assert_eq!(fixture.rotate(&[]), ["f3 1x5 -"], "again reaches over a rotation");
}

#[test]
fn the_name_at_a_spans_end_wins_over_the_one_it_was_sampled_with() {
    let mut fixture = Fixture::new();
    fixture.span(7, "GET");
    fixture.sample(7, &[1]);
    assert_eq!(fixture.rotate(&[(7, "GET /cart/{id}"), (8, "never sampled")]), ["f1 1x10 7:GET /cart/{id}"]);
    fixture.sample(7, &[1]);
    assert_eq!(fixture.rotate(&[]), ["f1 1x10 7:GET /cart/{id}"], "a sample that was late for its window");
}

#[test]
fn a_span_whose_definition_was_lost_keeps_its_id_and_is_counted() {
    let mut fixture = Fixture::new();
    fixture.sample(9, &[1]);
    assert_eq!(fixture.rotate(&[]), ["f1 1x10 9:"]);
    assert_eq!(fixture.counters.snapshot().spans_lost, 1);
}

#[test]
fn a_span_is_known_where_its_samples_come_a_window_late() {
    let mut fixture = Fixture::new();
    // Of the next window: told after its number was, before this one was swapped out.
    fixture.span(7, "GET");
    fixture.rotate(&[]);
    fixture.span(8, "POST");
    fixture.rotate_undrained();
    fixture.rotate_undrained();
    fixture.sample(7, &[1]);
    fixture.sample(8, &[1]);
    assert_eq!(fixture.rotate(&[]), ["f1 1x10 7:GET", "f1 1x10 8:POST"]);

    fixture.span(7, "GET");
    for _ in 0..2 {
        fixture.span(8, "POST");
        fixture.rotate_undrained();
    }
    fixture.span(9, "PUT");
    fixture.rotate_undrained();
    fixture.sample(7, &[1]);
    assert_eq!(fixture.rotate(&[]), ["f1 1x10 7:"], "what is kept is bounded");
}

#[test]
fn names_beyond_the_bound_become_other() {
    let mut fixture = Fixture::new();
    for id in 1..=MAX_NAMES as u64 + 2 {
        fixture.span(id, &format!("name {id}"));
        fixture.sample(id, &[1]);
    }
    let lines = fixture.rotate(&[]);
    assert_eq!(lines.iter().filter(|line| line.ends_with(":(other)")).count(), 2);
    assert_eq!(fixture.counters.snapshot().names_cut, 2);
}

#[test]
fn a_window_with_too_many_keys_asks_to_be_rotated_and_then_counts_what_it_drops() {
    let mut fixture = Fixture::new();
    for id in 1..=2 * MAX_KEYS as u64 {
        assert_eq!(fixture.aggregate.must_rotate(), id > MAX_KEYS as u64);
        fixture.sample(id, &[1]);
    }
    fixture.sample(2 * MAX_KEYS as u64 + 1, &[1]);
    assert_eq!(fixture.counters.snapshot().dropped_window, Tally { samples: 1, weight: 10 });
    assert_eq!(fixture.rotate(&[]).len(), 2 * MAX_KEYS);
}

#[test]
fn deep_stacks_and_many_frames_end_a_window_early_too() {
    let mut fixture = Fixture::new();
    let deep = |number: u64| (0..512).map(|at| if at == 0 { 10_000 + number } else { at }).collect::<Vec<u64>>();
    let stacks = (MAX_STACK_FRAMES / 512) as u64;
    for number in 0..stacks {
        assert!(!fixture.aggregate.must_rotate(), "after {number} stacks");
        fixture.sample(0, &deep(number));
    }
    assert!(fixture.aggregate.must_rotate());
    (stacks..2 * stacks).for_each(|number| fixture.sample(0, &deep(number)));
    fixture.sample(0, &deep(2 * stacks));
    assert_eq!(fixture.counters.snapshot().dropped_window, Tally { samples: 1, weight: 10 });

    let mut fixture = Fixture::new();
    for start in (0..MAX_FRAMES as u64).step_by(64) {
        assert!(!fixture.aggregate.must_rotate());
        fixture.sample(0, &(start..start + 64).collect::<Vec<u64>>());
    }
    assert!(fixture.aggregate.must_rotate(), "too many different frames");
}

#[test]
fn frames_are_kept_from_window_to_window_up_to_a_bound() {
    let mut fixture = Fixture::new();
    for id in 0..=MAX_FRAMES_CACHED as u64 {
        fixture.aggregate.known(id, own_frames::of(own_frames::NO_STACK).unwrap());
    }
    fixture.rotate(&[]);
    assert!(fixture.aggregate.frames.is_empty(), "they are resolved again, so nothing is lost");
    fixture.sample(0, &[1]);
    assert_eq!(fixture.rotate(&[]), ["f1 1x10 -"]);
    assert_eq!(fixture.aggregate.frames.len(), 1);
}

#[test]
fn a_clock_that_is_set_ends_the_window_and_no_duration_suffers() {
    static NOW: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
    let counters = Counters::default();
    let start = clock::unix_nanos();
    NOW.store(start, Ordering::Relaxed);
    let mut aggregate = Aggregate::with_clock(Vec::new(), || NOW.load(Ordering::Relaxed));
    for (jump, rotates) in [(0, false), (-500, false), (3_600_000, true), (-7_200_000, true), (100, false)] {
        let before = NOW.load(Ordering::Relaxed);
        NOW.store(before + jump * 1_000_000, Ordering::Relaxed);
        assert_eq!(aggregate.must_rotate(), rotates, "{jump} ms");
        let window = aggregate.rotate(HashMap::new(), true, true, &counters);
        assert_eq!(window.start_unix_nanos, before, "stamped with its start");
        assert!(window.duration < Duration::from_secs(600), "{:?}", window.duration);
        assert!(!aggregate.must_rotate(), "once a jump");
    }
}

#[test]
fn what_waits_for_repair_goes_at_the_last_time() {
    let mut fixture = Fixture::new();
    let sample = Entry::Sample(Sample { extra: &[1], frames: &[1], ..PLACE });
    fixture.aggregate.add(Drained::Entry(1, sample), &NeverReady, &fixture.counters);
    settle(&mut fixture.aggregate, &NeverReady, &fixture.counters, false);
    assert!(fixture.aggregate.filling.samples.is_empty());
    settle(&mut fixture.aggregate, &NeverReady, &fixture.counters, true);
    assert_eq!(fixture.rotate(&[]), ["f1 1x10 -"]);
}

#[test]
fn what_repeats_a_sample_that_waits_for_repair_waits_too() {
    let mut fixture = Fixture::new();
    for entry in [Entry::Sample(Sample { extra: &[2], frames: &[1], ..PLACE }), Entry::Again { value: 30 }] {
        fixture.aggregate.add(Drained::Entry(1, entry), &NeverReady, &fixture.counters);
    }
    assert!(fixture.aggregate.filling.samples.is_empty());
    assert_eq!(fixture.aggregate.waiting.iter().map(|waiting| &waiting.extra[..]).collect::<Vec<_>>(), [[2], [2]]);
    settle(&mut fixture.aggregate, &NeverReady, &fixture.counters, true);
    assert_eq!(fixture.rotate(&[]), ["f1 2x40 -"]);
}

#[test]
fn a_frame_that_nobody_can_name_is_counted() {
    let mut fixture = Fixture::new();
    fixture.sample(0, &[1_000, 1]);
    assert_eq!(fixture.rotate(&[]), ["(unknown);f1 1x10 -"]);
    assert_eq!(fixture.counters.snapshot().frames_unresolved, 1);
}

#[test]
fn what_no_handler_saw_says_why() {
    let mut fixture = Fixture::new();
    let unseen = Unseen { why: Why::Ended, expiries: 2, weight: 20 };
    fixture.aggregate.add(Drained::Unseen(unseen), &Numbered, &fixture.counters);
    assert_eq!(fixture.rotate(&[]), ["(thread ended) 2x20 -"]);
    assert_eq!(fixture.counters.unseen.get(), Tally { samples: 2, weight: 20 });
}

#[test]
fn samples_beside_their_span_s_own_time_have_a_stack_that_says_so_where_there_is_wall_time() {
    let cpu = vec![ProfileType::process_cpu(10)];
    let both = vec![ProfileType::process_cpu(10), ProfileType::wall_time(10)];
    let of_wall = ["(waits for a CPU);f1;f2;(concurrent task)", "-", "f1;f2;(concurrent task)"];
    for (types, expected) in [(cpu, &["-"][..]), (both, &of_wall)] {
        let mut fixture = Fixture { aggregate: Aggregate::new(types), counters: Counters::default() };
        let sample = Sample { span_id: 7, frames: &[1, 2], ..PLACE };
        fixture.add(1, Entry::Sample(sample));
        fixture.add(1, Entry::Sample(Sample { is_concurrent: true, ..sample }));
        fixture.add(1, Entry::Again { value: 10 });
        fixture.aggregate.round.clear();
        fixture.add(1, Entry::Sample(Sample { is_concurrent: true, ..sample }));
        fixture.aggregate.share_ready(each(40));
        settle(&mut fixture.aggregate, &Numbered, &fixture.counters, false);
        let window = fixture.aggregate.rotate(HashMap::new(), true, true, &fixture.counters).finish(&fixture.counters);
        let name = |frame: &u32| window.frames[*frame as usize].function.to_string();
        let stack = |stack: u32| window.stacks[stack as usize].iter().map(name).collect::<Vec<_>>().join(";");
        let mut stacks: Vec<String> =
            window.samples.iter().map(|sample| sample.concurrent.map_or("-".into(), stack)).collect();
        stacks.sort();
        assert_eq!(stacks, expected);
    }
}

#[test]
fn what_a_sample_that_waits_for_repair_stood_in_the_run_queue_for_follows_it() {
    let mut fixture = Fixture::with_wall_time();
    fixture.span(7, "GET /");
    fixture.span(8, "POST /");
    let late = Sample { span_id: 8, extra: &[1], frames: &[2], ..PLACE };
    let wait = Measure { profile_type: ProfileTypeId(1), state: State::Lock, claim: 0, ..PLACE.measure };
    let entries = [
        Entry::Sample(late),
        Entry::Again { value: 30 },
        Entry::Sample(Sample { span_id: 0, ..late }),
        Entry::Sample(Sample { frames: &[3], measure: wait, ..late }),
    ];
    fixture.sample(7, &[1]);
    for entry in entries {
        fixture.aggregate.add(Drained::Entry(1, entry), &NeverReady, &fixture.counters);
    }
    fixture.aggregate.share_ready(each(15));
    // Another thread's, which are no longer of that round.
    fixture.add(2, Entry::Sample(Sample { span_id: 7, frames: &[4], ..PLACE }));
    fixture.aggregate.share_ready(each(5));
    settle(&mut fixture.aggregate, &NeverReady, &fixture.counters, false);
    let window = fixture.aggregate.rotate(HashMap::new(), true, true, &fixture.counters).finish(&fixture.counters);
    assert_eq!(window.samples.iter().map(|sample| sample.value).sum::<i64>(), 10 + 15 + 10 + 5);
    let ready = "(waits for a CPU);f2 0x30 8:POST /";
    assert_eq!(fixture.rotate(&[]), [ready, "f2 1x10 -", "f2 2x40 8:POST /", "f3 1x10 8:POST /"]);
}

#[test]
fn what_waits_for_repair_is_let_go_with_its_time_in_the_run_queue() {
    let mut fixture = Fixture::with_wall_time();
    let late = Entry::Sample(Sample { span_id: 8, extra: &[1], frames: &[2], ..PLACE });
    fixture.aggregate.add(Drained::Entry(1, late), &NeverReady, &fixture.counters);
    fixture.aggregate.share_ready(each(80));
    fixture.aggregate.let_go(&fixture.counters);
    assert_eq!(fixture.counters.dropped_window.get(), Tally { samples: 1, weight: 10 });
    assert_eq!(fixture.rotate(&[]), [""; 0]);
}

#[test]
fn time_in_the_run_queue_is_the_span_s_that_was_kept_from_running() {
    let mut fixture = Fixture::with_wall_time();
    let claiming = |span_id, claim| {
        let frames = match span_id {
            8 => &[8],
            9 => &[9],
            _ => &[7],
        };
        let measure = Measure { claim, ..PLACE.measure };
        Entry::Sample(Sample { span_id, frames, measure, ..PLACE })
    };
    for (span_id, claim) in [(7, 0), (8, 3), (9, 1), (0, 1)] {
        fixture.add(1, claiming(span_id, claim));
    }
    fixture.aggregate.share_ready(each(5));
    let ready = |fixture: &mut Fixture| {
        let lines = fixture.rotate(&[]).into_iter();
        lines.filter(|line| line.starts_with("(waits for a CPU)")).collect::<Vec<_>>()
    };
    assert_eq!(ready(&mut fixture), ["(waits for a CPU);f8 0x15 8:", "(waits for a CPU);f9 0x5 9:"]);
    // What only claims is no sample, and may stand for more than a sample can say.
    let Entry::Sample(sample) = claiming(8, 0) else { unreachable!() };
    let measure = Measure { state: State::RunQueue, value: 9_000_000_000, ..sample.measure };
    fixture.add(1, Entry::Sample(Sample { measure, ..sample }));
    fixture.add(1, Entry::Sample(Sample { measure, span_id: 0, ..sample }));
    fixture.aggregate.share_ready(Part::new(1, 3));
    assert_eq!(fixture.rotate(&[]), ["(waits for a CPU);f8 0x3000000000 8:"]);
    assert_eq!(fixture.counters.dropped_window.get(), Tally::default());
}

#[test]
fn what_a_thread_stood_in_the_run_queue_for_is_shared_among_its_samples_in_spans() {
    let mut fixture = Fixture::with_wall_time();
    fixture.span(7, "GET /");
    fixture.sample(7, &[1, 2]);
    fixture.sample(7, &[1, 2]);
    fixture.sample(7, &[3, 2]);
    fixture.sample(0, &[4]);
    fixture.aggregate.share_ready(each(20));
    let cpu = ["f1;f2 2x20 7:GET /", "f3;f2 1x10 7:GET /", "f4 1x10 -"];
    let ready = ["(waits for a CPU);f1;f2 0x40 7:GET /", "(waits for a CPU);f3;f2 0x20 7:GET /"];
    assert_eq!(fixture.rotate(&[]), [&ready[..], &cpu[..]].concat());
    // Each round stands alone, and what is derived is not counted as lost.
    fixture.sample(7, &[1]);
    fixture.aggregate.share_ready(Part::default());
    fixture.sample(7, &[1]);
    fixture.aggregate.share_ready(each(5));
    fixture.aggregate.let_go(&fixture.counters);
    assert_eq!(fixture.counters.dropped_window.get(), Tally { samples: 2, weight: 20 });
}
