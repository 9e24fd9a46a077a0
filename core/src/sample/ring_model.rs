//! The ring against a model of it: a queue that knows nothing of positions.

use proptest::prelude::*;

use super::ring::{Entry, Era, Measure, Memory, Ring, Written};
use crate::context::current::Context;
use crate::context::tags::TagSetId;
use crate::profile_type::ProfileTypeId;
use crate::sample::frames::FrameId;
use crate::wait_state::State;

#[derive(Clone, Debug)]
enum Step {
    /// `frames` times the frame `frame`.
    Write {
        value: u64,
        frame: FrameId,
        frames: usize,
    },
    Read,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..1_000_u64, 0..3_u64, 0..200_usize)
            .prop_map(|(value, frame, frames)| Step::Write { value, frame, frames }),
        1 => Just(Step::Read),
    ]
}

/// Reads all; samples as (value, frames).
fn read(ring: &Ring, newest: &mut Vec<u64>) -> Vec<(u64, Vec<u64>)> {
    let mut all = Vec::new();
    // SAFETY: one thread writes and reads, and the memory is the ring's.
    unsafe {
        ring.read(|entry| match entry {
            Entry::Sample(sample) => {
                sample.frames.clone_into(newest);
                all.push((sample.measure.value, newest.clone()));
            }
            Entry::Again { value } => all.push((value, newest.clone())),
            Entry::Span { .. } => panic!("no spans were written"),
        });
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read_in_order_and_the_rest_was_refused(steps in proptest::collection::vec(step(), 1..200)) {
        let ring = Ring::without_memory();
        ring.give(Memory::map(4096).unwrap());
        let (mut model, mut newest) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Write { value, frame, frames } => {
                    let (measure, era) =
                        (Measure { profile_type: ProfileTypeId::TIMER, state: State::Cpu, count: 1, claim: 0, value }, Era { window: 1, epoch: 0 });
                    // SAFETY: as above; there is no span.
                    let written = unsafe {
                        ring.write(measure, Context::NONE, TagSetId::EMPTY, era, |out| {
                            for _ in 0..frames {
                                out.push(frame);
                            }
                        })
                    };
                    match written {
                        Written::Yes { .. } => model.push((value, vec![frame; frames])),
                        Written::Full => prop_assert!(!model.is_empty() || frames > 100, "refused by an empty ring"),
                    }
                }
                Step::Read => prop_assert_eq!(read(&ring, &mut newest), std::mem::take(&mut model)),
            }
        }
        prop_assert_eq!(read(&ring, &mut newest), model);
        drop(ring.take());
    }
}
