//! What claim a sample has on its thread's time in the run queue.
//!
//! The kernel counts how long a thread stood in the queue, and not in which of its spans (`sample/threads/run_queue.rs`). So each CPU
//! sample says how long its thread neither ran nor waited, by the clock, since its sample before. A span may be shorter than that, and the
//! one before it starved while it is not: where the host says that the thread goes from one to another, what the first was kept from
//! running for is noted as a sample of its own that weighs nothing and only claims
//! ([`span_switched`](crate::sample::due::span_switched)), and what comes later claims no more of it.
//!
//! The CPU time of calls that wait is in their waits too, so claims are rather too low than too high.

use std::sync::atomic::{AtomicBool, Ordering};

use super::block::{Block, Mark};
use super::wrappers::own_block;
use crate::os::clock;

/// What a claim counts in.
pub(crate) const CLAIM_NS: u64 = 1 << 15;
/// Less is none: a sample like the one before it is then written as that.
const LEAST_NS: u64 = 100_000;

/// Whether there are any: while wall time is measured.
static ARE_MADE: AtomicBool = AtomicBool::new(false);

impl Mark {
    /// Of the calling thread. For handlers.
    fn now(block: &Block, now_ns: u64) -> Self {
        let cpu_ns = clock::read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0);
        Self { rest_ns: now_ns.wrapping_sub(block.waited_whole_ns(now_ns)).wrapping_sub(cpu_ns), cpu_ns }
    }

    /// The claim of a sample of which this is the instant, since `before`.
    fn claim_since(self, before: Self) -> u16 {
        if before.cpu_ns == 0 || self.cpu_ns < before.cpu_ns {
            return 0;
        }
        // Calls that wait and burn CPU time may make it less than nothing.
        let rest_ns = u64::try_from(self.rest_ns.wrapping_sub(before.rest_ns).cast_signed()).unwrap_or(0);
        if rest_ns < LEAST_NS { 0 } else { u16::try_from(rest_ns / CLAIM_NS).unwrap_or(u16::MAX) }
    }
}

/// There are claims from now on, or none.
pub(super) fn make(on: bool) {
    ARE_MADE.store(on, Ordering::Relaxed);
}

/// Whether there are any.
#[inline]
pub(in crate::sample) fn are_made() -> bool {
    ARE_MADE.load(Ordering::Relaxed)
}

/// The claim of a sample of the calling thread; what comes from here on is the next one's. 0 while no wall time is measured. For handlers;
/// 0.3 µs, a system call.
#[inline]
pub(in crate::sample) fn take(now_ns: u64) -> u16 {
    if !are_made() {
        return 0;
    }
    // SAFETY: the calling thread's own block. A handler that comes in between sets its mark, over which this one is written: a moment's
    // difference.
    let Some(block) = own_block().map(|block| unsafe { &mut *block }) else { return 0 };
    let now = Mark::now(block, now_ns);
    now.claim_since(std::mem::replace(&mut block.mark, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_what_the_thread_neither_ran_nor_waited() {
        let before = Mark { rest_ns: 0_u64.wrapping_sub(70), cpu_ns: 1_000_000 };
        let claim = |rest_ns: i64| {
            Mark { rest_ns: before.rest_ns.wrapping_add_signed(rest_ns), cpu_ns: 5_000_000 }.claim_since(before)
        };
        assert_eq!([claim(0), claim(99_999), claim(1 << 18), claim(9_000_000_000)], [0, 0, 8, u16::MAX]);
        assert_eq!(claim(-5_000_000), 0);
    }

    #[test]
    fn nothing_is_claimed_where_it_is_not_known_since_when() {
        let now = Mark { rest_ns: 9_000_000, cpu_ns: 3_000_000 };
        assert_eq!(now.claim_since(Mark::default()), 0);
        assert_eq!(now.claim_since(Mark { rest_ns: 0, cpu_ns: 4_000_000 }), 0, "a forked child's thread begins anew");
    }
}
