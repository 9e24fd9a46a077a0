//! What all threads share, each while it holds the GIL of the main interpreter.

use std::cell::UnsafeCell;

use crate::awaits::clock::Clock;
use crate::awaits::known::Known;
use crate::awaits::rate::Rate;
use crate::awaits::slots::Slots;
use crate::stack::interpreter::CPython;

pub(super) struct Shared {
    pub(super) slots: Slots,
    pub(super) clock: Clock,
    /// Of flows that spans began in, and of concurrent ones.
    pub(super) rates: [Rate; 2],
    /// The number of the flow that was met last.
    pub(super) last_flow: u64,
    pub(super) last_generation: u32,
    pub(super) of: Option<(&'static Known, &'static CPython)>,
    /// As in [`CoroutineLayout`](crate::awaits::layout::CoroutineLayout).
    pub(super) is_continued: bool,
    pub(super) exceptions: [usize; 2],
    /// As in [`Layout`](crate::stack::layout::Layout).
    pub(super) tstate_context: usize,
}

struct UnderGil(UnsafeCell<Shared>);

// SAFETY: `shared` is called by who holds that GIL.
unsafe impl Sync for UnderGil {}

static SHARED: UnderGil = UnderGil(UnsafeCell::new(Shared {
    slots: Slots::new(),
    clock: Clock::new(),
    rates: [Rate::none(), Rate::none()],
    last_flow: 0,
    last_generation: 0,
    of: None,
    is_continued: false,
    exceptions: [0; 2],
    tstate_context: 0,
}));

/// # Safety
/// The GIL of the main interpreter is held, and no other reference from here is in use.
#[inline(always)]
pub(super) unsafe fn shared<'a>() -> &'a mut Shared {
    let shared = SHARED.0.get();
    // SAFETY: the caller's promise.
    unsafe { &mut *shared }
}
