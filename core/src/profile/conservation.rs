//! Whatever is sampled in whatever order: what is added is in encoded profiles, or counted as dropped.

use std::io::Read;
use std::sync::Arc;

use proptest::prelude::*;
use prost::Message;

use super::aggregate::{Aggregate, settle};
use super::halves;
use super::pprof::{EncodeOptions, Encoded, encode};
use crate::context::tags::TagSetId;
use crate::profile_type::{ProfileType, ProfileTypeId};
use crate::sample::ring::{Entry, Measure, Sample};
use crate::sample::runtime::testing::Numbered;
use crate::sample::threads::{Drained, Unseen, Why};
use crate::stats::{Counters, Tally};
use crate::wait_state::State;
use crate::wire::pprof::Profile;

#[derive(Clone, Debug)]
enum Step {
    Sample { thread: u32, span_id: u64, value: u64, frames: Vec<u64> },
    Claim { thread: u32, span_id: u64, value: u64 },
    Again { thread: u32, value: u64 },
    Span { span_id: u64, name: String },
    Unseen { expiries: u64 },
    Gone { thread: u32 },
    Rotate { max_samples: usize, max_bytes: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (thread, value) = (0..4_u32, 1..1_000_000_u64);
    let frames = proptest::collection::vec(0..1_200_u64, 0..8);
    prop_oneof![
        8 => (thread.clone(), 0..20_u64, value.clone(), frames)
            .prop_map(|(thread, span_id, value, frames)| Step::Sample { thread, span_id, value, frames }),
        1 => (thread.clone(), 0..20_u64, value.clone())
            .prop_map(|(thread, span_id, value)| Step::Claim { thread, span_id, value }),
        4 => (thread.clone(), value).prop_map(|(thread, value)| Step::Again { thread, value }),
        2 => (1..20_u64, ".{0,20}").prop_map(|(span_id, name)| Step::Span { span_id, name }),
        1 => (1..5_u64).prop_map(|expiries| Step::Unseen { expiries }),
        1 => thread.prop_map(|thread| Step::Gone { thread }),
        1 => (1..9_usize, 100..4_000_usize).prop_map(|(max_samples, max_bytes)| Step::Rotate { max_samples, max_bytes }),
    ]
}

struct Books {
    aggregate: Aggregate,
    counters: Counters,
    added: Tally,
    encoded: Tally,
}

impl Books {
    fn add(&mut self, drained: Drained<'_>, tally: Tally) {
        self.added += tally;
        self.aggregate.add(drained, &Numbered, &self.counters);
    }

    fn follow(&mut self, step: &Step) {
        let one = |weight| Tally { samples: 1, weight };
        match step {
            Step::Sample { thread, span_id, value, frames } => {
                self.add(Drained::Entry(*thread, sample(State::Cpu, *span_id, *value, frames)), one(*value));
            }
            // It is no sample.
            Step::Claim { thread, span_id, value } => {
                self.add(Drained::Entry(*thread, sample(State::RunQueue, *span_id, *value, &[7])), Tally::default());
            }
            Step::Again { thread, value } => {
                self.add(Drained::Entry(*thread, Entry::Again { value: *value }), one(*value));
            }
            Step::Span { span_id, name } => {
                let span = Entry::Span { span_id: *span_id, trace_id: [1, 2], name: name.as_bytes() };
                self.add(Drained::Entry(0, span), Tally::default());
            }
            Step::Unseen { expiries } => {
                let unseen = Unseen { why: Why::Ended, expiries: *expiries, weight: expiries * 7 };
                self.add(Drained::Unseen(unseen), Tally { samples: *expiries, weight: expiries * 7 });
            }
            Step::Gone { thread } => self.add(Drained::Gone(*thread), Tally::default()),
            Step::Rotate { max_samples, max_bytes } => {
                settle(&mut self.aggregate, &Numbered, &self.counters, false);
                let window = self
                    .aggregate
                    .rotate([(3, "renamed".into())].into(), true, true, &self.counters)
                    .finish(&self.counters);
                let options =
                    EncodeOptions { max_samples: *max_samples, max_bytes: *max_bytes, ..EncodeOptions::default() };
                let mut lost = window.tally();
                for profile in encode(&window, &options) {
                    self.encoded += profile.tally;
                    lost = lost.without(profile.tally);
                    check(&profile, *max_samples);
                }
                assert_eq!(lost, Tally::default(), "all of a window is in its profiles");
            }
        }
    }
}

fn sample(state: State, span_id: u64, value: u64, frames: &[u64]) -> Entry<'_> {
    Entry::Sample(Sample {
        measure: Measure { profile_type: ProfileTypeId::TIMER, state, count: 1, claim: 0, value },
        span_id,
        is_concurrent: value.is_multiple_of(3),
        context_tags: TagSetId::EMPTY,
        thread_tags: TagSetId::EMPTY,
        frames,
        extra: &[],
    })
}

fn decode(encoded: &Encoded) -> Profile {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(encoded.body.as_slice()).read_to_end(&mut bytes).unwrap();
    Profile::decode(bytes.as_slice()).unwrap()
}

fn weight(profile: &Profile) -> u64 {
    profile.sample.iter().map(|sample| sample.value[0].unsigned_abs()).sum()
}

/// A profile holds what its tally says, within its limits, and so do its halves.
fn check(encoded: &Encoded, max_samples: usize) {
    let profile = decode(encoded);
    assert_eq!(weight(&profile), encoded.tally.weight);
    assert!(profile.sample.len() <= max_samples);
    let mut strings = profile.string_table.clone();
    strings.sort_unstable();
    strings.dedup();
    assert_eq!(strings.len(), profile.string_table.len(), "a string twice");
    if let Some(halves) = halves::split(encoded) {
        let mut sum = Tally::default();
        for half in &halves {
            sum += half.tally;
            assert_eq!(weight(&decode(half)), half.tally.weight);
        }
        assert_eq!(sum, encoded.tally);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn aggregating_encoding_and_halving_lose_nothing(steps in proptest::collection::vec(step(), 1..120)) {
        let mut books = Books {
            aggregate: Aggregate::new(vec![ProfileType::process_cpu(7)]),
            counters: Counters::default(),
            added: Tally::default(),
            encoded: Tally::default(),
        };
        steps.iter().for_each(|step| books.follow(step));
        books.follow(&Step::Rotate { max_samples: 5, max_bytes: 2_000 });
        let mut out = books.encoded;
        out += books.counters.snapshot().dropped_window;
        prop_assert_eq!(books.added, out);
    }

    #[test]
    fn what_is_no_profile_is_not_halved_and_harms_nobody(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let encoded = |body| Encoded {
            profile_type: ProfileType::process_cpu(1),
            start_unix_nanos: 0,
            body,
            tally: Tally { samples: 3, weight: 10 },
        };
        drop(halves::split(&encoded(body.clone())));
        drop(halves::split(&encoded(super::pprof::gzip(&body).unwrap())));
    }
}

/// A million samples (fewer in an unoptimised build) of which no two are alike in stack, span or name: windows are rotated
/// early, and nothing is lost unsaid.
#[test]
fn a_million_different_stacks_spans_and_names() {
    let mut books = Books {
        aggregate: Aggregate::new(vec![ProfileType::process_cpu(7)]),
        counters: Counters::default(),
        added: Tally::default(),
        encoded: Tally::default(),
    };
    let (mut windows, mut most) = (0_usize, 0);
    let samples = if cfg!(debug_assertions) { 240_000 } else { 1_000_000_u64 };
    for number in 1..=samples {
        let name: Arc<str> = format!("GET /cart/{number}").into();
        let span = Entry::Span { span_id: number, trace_id: [0, 0], name: name.as_bytes() };
        books.add(Drained::Entry(0, span), Tally::default());
        let frames = [number % 1_000, number / 1_000];
        books.follow(&Step::Sample { thread: 0, span_id: number, value: 7, frames: frames.to_vec() });
        // Rings are read every 100 ms at the latest; this is one read.
        if number % 20_000 == 0 && (books.aggregate.must_rotate() || number == samples) {
            settle(&mut books.aggregate, &Numbered, &books.counters, false);
            let window = books.aggregate.rotate([].into(), true, true, &books.counters).finish(&books.counters);
            windows += 1;
            most = most.max(window.samples.len());
            books.encoded += Tally {
                samples: window.samples.iter().map(|sample| sample.samples).sum(),
                weight: window.samples.iter().map(|sample| sample.value.unsigned_abs()).sum(),
            };
        }
    }
    let stats = books.counters.snapshot();
    assert_eq!((books.added, stats.dropped_window), (books.encoded, Tally::default()));
    assert!(windows as u64 >= samples / 120_000 && most <= 120_000, "{windows} windows of up to {most}");
    assert!(stats.names_cut > samples - samples / 20, "{stats:?}");
}
