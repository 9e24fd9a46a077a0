//! Flows that were suspended, a host's coroutines, fibers and tasks, as samples: the same ones among many as of waits of threads.

use std::sync::atomic::Ordering;

use super::block::OWNER;
use super::fates::{self, Fate};
use super::{MEAN_NS, MOST_MEAN_NS, SAMPLED, SHORTEST_NS, mean_ns, profile_type, wrappers};
use crate::context::current::Context;
use crate::sample::frames::FrameWriter;
use crate::sample::handler;
use crate::stats::Tally;
use crate::wait_state::State;

/// Samples between two ticks from which on each one more of a flow makes the next less likely, by a fiftieth: thousands of flows may
/// go on at one instant, and what the rings of their few threads do not hold is lost.
const MOST_AT_ONCE: u64 = 200;

/// Takes a sample of a flow of the calling thread (a coroutine, a fiber, a task) that just goes on: the time in which it was suspended,
/// or ready and not run yet. As [`sample_here`](crate::sample_here) otherwise, and false where waits are not measured. Outside of spans
/// it is counted, and no sample.
///
/// # Safety
/// As for [`sample_here`](crate::sample_here).
pub unsafe fn sample_flow(
    state: State,
    weight_ns: u64,
    count: u16,
    context: Context,
    walk: impl Fn(&mut FrameWriter<'_>),
) -> bool {
    if OWNER.load(Ordering::Acquire) == 0 {
        return false;
    }
    let generation = fates::take(weight_ns);
    let fate = if context.span.is_null() {
        Fate::Outside
    // SAFETY: the caller's promise.
    } else if unsafe { handler::sample_state_here(profile_type(), state, weight_ns, count, context, walk) } {
        Fate::Sampled
    } else {
        Fate::Ring
    };
    fates::end(fate, Tally { samples: 1, weight: weight_ns }, generation);
    fate == Fate::Sampled
}

/// What a suspension of a flow of the calling thread stands for, and how many, if it becomes a sample: as waits of threads do. Whether
/// there was one may take long to tell, and is asked only before it becomes one; else it does not count for how many there are.
pub fn flow_weight(took_ns: u64, was_suspended: impl FnOnce() -> bool) -> Option<(u64, u16)> {
    if OWNER.load(Ordering::Acquire) == 0 {
        return None;
    }
    if took_ns < SHORTEST_NS {
        return None;
    }
    // SAFETY: the calling thread's own block.
    let block = unsafe { &mut *wrappers::own_block()? };
    let weight = block.weight_of(took_ns, mean_ns(), took_ns)?;
    if !was_suspended() {
        return None;
    }
    let sampled = SAMPLED.fetch_add(1, Ordering::Relaxed);
    if sampled >= MOST_AT_ONCE {
        MEAN_NS.store(after_one_more(MEAN_NS.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
    Some((weight, block.count_of(weight, took_ns)))
}

fn after_one_more(mean: u64) -> u64 {
    (mean + mean / 50).min(MOST_MEAN_NS)
}

#[cfg(test)]
mod tests {
    use super::super::block::Block;
    use super::super::{LEAST_MEAN_NS, next_mean};
    use super::*;

    #[test]
    fn flows_that_go_on_at_one_instant_make_some_hundred_samples_which_stand_for_all() {
        for (took_ns, flows) in [(20_000_000_u64, 10_000_u64), (1_000_000_000, 100_000), (5_000_000, 1_000_000)] {
            let (mut sum, mut samples, rounds) = (0, 0, 100);
            for seed in 1..=rounds {
                // SAFETY: as in a new thread: numbers and null.
                let mut block: Block = unsafe { std::mem::zeroed() };
                let mut mean = LEAST_MEAN_NS;
                let mut sampled = 0;
                for _ in 0..flows {
                    #[expect(clippy::cast_precision_loss, reason = "hours at most")]
                    let Some(weight) = block.weight_of(took_ns, mean as f64, seed) else { continue };
                    sum += weight;
                    sampled += 1;
                    mean = if sampled > MOST_AT_ONCE { after_one_more(mean) } else { mean };
                }
                samples += sampled;
            }
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let ratio = sum as f64 / (rounds * flows * took_ns) as f64;
            assert!((ratio - 1.0).abs() < 0.1, "{took_ns}, {flows}: {ratio}, {}", samples / rounds);
            assert!((MOST_AT_ONCE..1_500).contains(&(samples / rounds)), "{}", samples / rounds);
        }
    }

    #[test]
    fn what_flows_at_one_instant_have_grown_the_mean_by_is_no_step_to_grow_from() {
        let next = |mean, a_second| next_mean(mean, LEAST_MEAN_NS, a_second, false);
        assert_eq!(next(LEAST_MEAN_NS, 400), 4 * LEAST_MEAN_NS);
        assert_eq!(next(10_000 * LEAST_MEAN_NS, 5_000), 10_000 * LEAST_MEAN_NS);
        assert_eq!(next(10_000 * LEAST_MEAN_NS, 10), 5_000 * LEAST_MEAN_NS);
    }
}
