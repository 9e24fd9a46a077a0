//! What a thread knows of the flows that it runs.

use std::cell::{Cell, UnsafeCell};
use std::ptr;

use spanprof_core::{FrameId, own_flow};

use crate::awaits::clock::Clock;
use crate::awaits::rate::{Rate, Remaining};
use crate::stack::memory::Object;

/// A wait of the loop that ends a time without a break: of this many nanoseconds, or more than the shortest and no less than one
/// part in this many of the time before it.
const BREAK_NS: u64 = 100_000;
const SHORTEST_BREAK_NS: u64 = 5_000;
const BUSY_PART: u64 = 20;

/// A suspension, as the self-test is told of it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) took_ns: u64,
    /// Leaf first.
    pub(crate) frames: Vec<FrameId>,
}

#[derive(Debug)]
pub(super) struct Thread {
    /// A step of a coroutine is under way; or was, in a greenlet that is not the one that runs now.
    pub(super) in_step: bool,
    /// The context in which the innermost step of a flow began.
    pub(super) context: Object,
    /// Where the number of its flow is, which spans look for and the handler.
    flow: *const Cell<u64>,
    /// Of flows that spans began in, and of concurrent ones.
    pub(super) remaining: [Remaining; 2],
    /// Since when the thread's event loop runs things without a break; 0: that is not known.
    pub(super) busy_since: u64,
    /// The coroutine that ran longest since then, if one ran as long as would be named.
    pub(super) longest: Option<FrameId>,
    /// How many ticks one must run to be it.
    pub(super) longest_ticks: u64,
    /// The tick at which the last step was over.
    pub(super) left_at: u64,
    /// Where the core notes when the thread's last wait for several things began and ended, and the one that was seen last.
    poll: *const [u64; 2],
    polled_at: u64,
    /// Spans until it is looked whether its greenlets are still followed, and whether they were.
    pub(super) spans_until_check: u16,
    pub(super) greenlets_were_followed: bool,
    /// In which time of measuring a coroutine that had begun before took the number of the thread's own flow; 0: in none.
    pub(super) taken_in: u32,
    /// Where all suspensions go during the self-test, null otherwise.
    pub(super) seen: *mut Vec<Seen>,
}

thread_local! {
    static THREAD: UnsafeCell<Thread> = const {
        UnsafeCell::new(Thread {
            in_step: false,
            context: ptr::null(),
            flow: ptr::null(),
            remaining: [Remaining::new(), Remaining::new()],
            busy_since: 0,
            longest: None,
            longest_ticks: 0,
            left_at: 0,
            poll: ptr::null(),
            polled_at: 0,
            spans_until_check: 0,
            greenlets_were_followed: false,
            taken_in: 0,
            seen: ptr::null_mut(),
        })
    };
}

impl Thread {
    /// The calling thread's. It has no destructor, so it is there to the thread's end.
    #[inline(always)]
    pub(super) fn own() -> *mut Self {
        THREAD.with(UnsafeCell::get)
    }

    /// A step begins that lies in no other one: whether the loop waited since the last one.
    #[inline(always)]
    pub(super) fn check_poll(&mut self, clock: &Clock, rates: &mut [Rate; 2]) {
        if self.poll.is_null() {
            self.poll = spanprof_core::own_poll();
        }
        // SAFETY: null, or this thread's own, which nobody else writes.
        if let Some(&[began, ended]) = unsafe { self.poll.as_ref() }
            && ended != self.polled_at
        {
            self.polled(began, ended, clock);
            rates.iter_mut().for_each(|rate| rate.pass(ended, clock));
        }
    }

    /// The thread waited for several things at once. Within a step that is a call that blocks the loop, between steps the loop itself.
    ///
    /// With twenty sockets that are ready the call takes 13 to 50 µs, without any wait.
    #[cold]
    fn polled(&mut self, began: u64, ended: u64, clock: &Clock) {
        self.polled_at = ended;
        let (waited, busy) = (ended - began, began.saturating_sub(self.busy_since));
        let is_break = waited > SHORTEST_BREAK_NS && (waited > BREAK_NS || waited > busy / BUSY_PART);
        // The step's end is known by another clock, to some microseconds.
        let is_between_steps = began + waited / 2 > clock.at(self.left_at);
        if is_between_steps && (is_break || self.busy_since == 0) {
            (self.busy_since, self.longest, self.longest_ticks) = (ended, None, 0);
        }
    }

    /// The number of the thread's flow: of the coroutine that its loop called, 0 outside of these.
    #[inline(always)]
    pub(super) fn flow(&mut self) -> u64 {
        if self.flow.is_null() {
            self.flow = own_flow();
        }
        // SAFETY: null, or this thread's own, which has no destructor either.
        unsafe { self.flow.as_ref() }.map_or(0, Cell::get)
    }

    /// From now on it is this one.
    #[inline(always)]
    pub(super) fn set_flow(&mut self, number: u64) {
        // SAFETY: as above.
        if let Some(flow) = unsafe { self.flow.as_ref() } {
            flow.set(number);
        }
    }
}
