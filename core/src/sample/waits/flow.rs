//! Whose time it is that a thread spends in a span.
//!
//! A span may be current in several flows at once: a thread gets a copy of its context, tasks are started and awaited together. Its wall
//! time is that of the flow in which it was first current; what others do meanwhile is beside it. Flows have numbers: a thread its own,
//! which no other one gets, and a coroutine the one that its host gives it while it runs ([`own_flow`]). They lie in the thread's block, so
//! the handler reads them without a first touch.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::block::Block;
use super::wrappers::own_block;
use crate::wait_state::State;

/// Numbers of threads begin here, those of a host's flows end.
const FIRST_THREAD: u64 = 1 << 63;

static NEXT_THREAD: AtomicU64 = AtomicU64::new(FIRST_THREAD);
/// The next number, downwards, of a host's flow that a forked process goes on with.
static NEXT_FORKED: AtomicU64 = AtomicU64::new(FIRST_THREAD - 1);

/// Where the number of the flow is that the calling thread runs: its host writes it, 0 while that is the thread itself, others below
/// 2⁶³. There as long as the thread is; null on processors on which no waits can be measured.
#[inline]
pub fn own_flow() -> *const Cell<u64> {
    // SAFETY: a field of the calling thread's own block.
    own_block().map_or(std::ptr::null(), |block| unsafe { (&raw const (*block).flow).cast() })
}

/// The number of the flow that the calling thread runs, which is its own where its host says no other; 0 where flows are not known.
/// 2 ns. Not from a signal handler.
#[inline]
pub fn current_flow() -> u64 {
    // SAFETY: the calling thread's own block.
    own_block().map_or(0, |block| unsafe { (*block).current_flow() })
}

/// Whether a number is a thread's own: no coroutine's, and known.
pub(super) fn is_of_thread(flow: u64) -> bool {
    flow >= FIRST_THREAD
}

/// Whether time of the calling thread in a span that began in `flow` is beside that span's own. While a thread runs a coroutine it is
/// what a span of its own does, and a coroutine that is suspended is not. For handlers.
#[inline]
pub(in crate::sample) fn is_concurrent(flow: u64, state: State) -> bool {
    // SAFETY: the calling thread's own block.
    flow != 0 && own_block().is_some_and(|block| unsafe { (*block).is_concurrent(flow, state) })
}

/// In a forked child: what the calling thread does from here on is beside the time of a span that began before, which its parent has.
pub(super) fn begin_anew() {
    // SAFETY: the calling thread's own block.
    if let Some(block) = own_block().map(|block| unsafe { &mut *block }) {
        block.thread_flow = 0;
        if block.flow != 0 {
            block.flow = NEXT_FORKED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Block {
    #[inline]
    fn current_flow(&mut self) -> u64 {
        if self.flow != 0 {
            return self.flow;
        }
        if self.thread_flow == 0 {
            self.thread_flow = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
        }
        self.thread_flow
    }

    #[inline]
    fn is_concurrent(&self, flow: u64, state: State) -> bool {
        let was_suspended = self.flow != 0 && matches!(state, State::Await | State::Busy);
        flow != self.flow && (flow != self.thread_flow || was_suspended)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn time_of_another_flow_is_concurrent_and_a_coroutine_runs_in_its_thread_s_span() {
        let own = current_flow();
        assert!(own >= FIRST_THREAD && own == current_flow());
        let others = std::thread::spawn(current_flow).join().unwrap();
        assert_ne!(others, own);
        let concurrent = |flow| [State::Cpu, State::Io, State::Await].map(|state| is_concurrent(flow, state));
        assert_eq!([concurrent(0), concurrent(own), concurrent(others)], [[false; 3], [false; 3], [true; 3]]);
        // SAFETY: this thread's own.
        let flow = unsafe { &*own_flow() };
        flow.set(7);
        assert_eq!(current_flow(), 7);
        assert_eq!([concurrent(7), concurrent(own), concurrent(8)], [[false; 3], [false, false, true], [true; 3]]);
        flow.set(0);
        assert_eq!((current_flow(), concurrent(7)), (own, [true; 3]));
        // In a forked child both are those of the parent, and what begins there is its own.
        flow.set(7);
        begin_anew();
        assert_eq!([concurrent(7), concurrent(own), concurrent(current_flow())], [[true; 3], [true; 3], [false; 3]]);
        flow.set(0);
        assert_eq!(concurrent(current_flow()), [false; 3]);
    }
}
