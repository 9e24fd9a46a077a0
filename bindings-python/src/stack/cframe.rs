//! Where a walk begins on CPython 3.11 and 3.12.
//!
//! These publish a struct on the C stack (`tstate->cframe`) some instructions before they write it; until then its
//! `current_frame` and its `previous` are what an earlier call left there. Two rules make a walk safe:
//! 1. a cframe is *sound* if the first frame of the interpreter loop that is reached from its `current_frame` hangs
//!    below the `current_frame` of the cframe before it. If the newest one is not, the function that is being entered
//!    is not on the stack yet, and the walk begins at the cframe before it, which is still in a register. If none there
//!    is sound (a greenlet is just moving stacks), the stack counts as unreadable.
//! 2. frames, and what code objects point to, are read by guarded loads. If one faults the walk ends there.
//!
//! Every other version publishes frames whole: neither rule is needed.

use libc::ucontext_t;

use crate::stack::interpreter::CPython;
use crate::stack::layout::{Entry, OB_TYPE};
use crate::stack::memory::{Memory, Object};
use crate::stack::registers;

/// Frames looked at to find out whether they hang together.
const MAX_STEPS: usize = 2_048;
/// A thread state is smaller than this. No stack is so near to one.
const MAX_TSTATE: usize = 4_096;
/// How far above the newest cframe the one before it may lie: a C stack's usual length.
const MAX_STACK: usize = 8 << 20;

impl CPython {
    /// The frame at which a walk may begin: rule 1 above. `None`: the stack cannot be read.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address; `ucontext` must be null or what the running handler got.
    pub(crate) unsafe fn first_frame<M: Memory>(
        &self,
        tstate: Object,
        newest: Object,
        ucontext: *const ucontext_t,
    ) -> Option<Object> {
        let mut steps = MAX_STEPS;
        // SAFETY: the caller's promise.
        let (current, previous) = unsafe { self.cframe::<M>(newest) }?;
        // The thread state's own has none before it, and then nothing runs. Another one without was not written yet.
        let is_whole = if previous.is_null() {
            newest.addr().wrapping_sub(tstate.addr()) < MAX_TSTATE
        } else {
            // SAFETY: as above.
            unsafe { self.is_sound::<M>(newest, current, previous, &mut steps) }
        };
        if is_whole {
            return Some(current);
        }
        // Nothing is true of the newest one yet, but the interpreter holds the one before it in a register to write it.
        // SAFETY: as above.
        let before = unsafe { self.cframe_in_registers::<M>(newest, ucontext, &mut steps) };
        // A greenlet that is being left has its frames linked past those of the interpreter loops, up to the end.
        // SAFETY: as above.
        before.or_else(|| unsafe { self.ends::<M>(current, &mut steps) }.then_some(current))
    }

    /// Whether rule 1 holds of the newest cframe, by the cframe before it. For the self-test.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    pub(crate) unsafe fn newest_hangs_together<M: Memory>(&self, newest: Object) -> bool {
        // SAFETY: the caller's promise.
        let Some((current, previous)) = (unsafe { self.cframe::<M>(newest) }) else {
            return false;
        };
        // SAFETY: as above.
        let Some((below, _)) = (unsafe { self.cframe::<M>(previous) }) else {
            return false;
        };
        // SAFETY: as above.
        unsafe { self.hangs_below::<M>(current, below, &mut { MAX_STEPS }) }
    }

    /// The frame of the sound cframe next above `newest` that a register of the interrupted thread names.
    ///
    /// # Safety
    /// As for [`first_frame`](Self::first_frame).
    #[cold]
    unsafe fn cframe_in_registers<M: Memory>(
        &self,
        newest: Object,
        ucontext: *const ucontext_t,
        steps: &mut usize,
    ) -> Option<Object> {
        if ucontext.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let registers = unsafe { registers::words(ucontext) };
        let mut nearest = MAX_STACK;
        let mut frame = None;
        for word in registers {
            let cframe = word as Object;
            let distance = cframe.addr().wrapping_sub(newest.addr());
            if distance == 0 || distance >= nearest || word % 8 != 0 {
                continue;
            }
            // SAFETY: as for any address.
            let Some((current, previous)) = (unsafe { self.cframe::<M>(cframe) }) else {
                continue;
            };
            // SAFETY: as above.
            if !previous.is_null() && unsafe { self.is_sound::<M>(cframe, current, previous, steps) } {
                (nearest, frame) = (distance, Some(current));
            }
        }
        frame
    }

    /// Whether a cframe is what it seems, going by the one before it.
    ///
    /// cframes lie on the stack, older ones above newer ones, up to the one in the thread state, which has none before
    /// it. Where a greenlet begins or ends it stands on a copy of its maker's cframe, below the thread state's own.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    #[inline]
    unsafe fn is_sound<M: Memory>(&self, cframe: Object, current: Object, previous: Object, steps: &mut usize) -> bool {
        // SAFETY: the caller's promise.
        let Some((below, next)) = (unsafe { self.cframe::<M>(previous) }) else {
            return false;
        };
        if !next.is_null() && previous <= cframe {
            return false;
        }
        // SAFETY: as above.
        let hangs = unsafe { self.hangs_below::<M>(current, below, steps) };
        // SAFETY: as above.
        hangs || (next.is_null() && unsafe { self.ends::<M>(current, steps) })
    }

    /// Whether the chain from `frame` has an end.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    unsafe fn ends<M: Memory>(&self, mut frame: Object, steps: &mut usize) -> bool {
        let mut round = Round::from(frame);
        while *steps > 0 && !frame.is_null() {
            *steps -= 1;
            // SAFETY: the caller's promise.
            match unsafe { self.behind::<M>(frame) } {
                Some((previous, _)) if !round.closes(previous) => frame = previous,
                _ => return false,
            }
        }
        frame.is_null()
    }

    /// `current_frame` and `previous` of a cframe.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    #[inline]
    unsafe fn cframe<M: Memory>(&self, cframe: Object) -> Option<(Object, Object)> {
        let Entry::CFrame { current_frame, previous, .. } = self.layout.entry else {
            return None;
        };
        // SAFETY: the caller's promise.
        let [current, previous] = unsafe { M::words(cframe, [current_frame, previous]) }?;
        Some((current as Object, previous as Object))
    }

    /// Whether the interpreter loop that `frame` belongs to was entered from `below`.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    unsafe fn hangs_below<M: Memory>(&self, mut frame: Object, below: Object, steps: &mut usize) -> bool {
        let mut round = Round::from(frame);
        while *steps > 0 {
            *steps -= 1;
            // SAFETY: the caller's promise.
            let Some((previous, is_entry)) = (unsafe { self.behind::<M>(frame) }) else {
                return false;
            };
            if is_entry {
                return previous == below;
            }
            if round.closes(previous) {
                return false;
            }
            frame = previous;
        }
        // So many frames that look like frames are no accident.
        true
    }

    /// The frame behind one and whether this one is the first of its loop, if it looks like a frame: it must name a
    /// code object. Without that a stray pointer may lead through all objects of the garbage collector, which are
    /// linked in the same place.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    #[inline]
    unsafe fn behind<M: Memory>(&self, frame: Object) -> Option<(Object, bool)> {
        if frame.is_null() {
            return None;
        }
        let layout = &self.layout.frame;
        let fields = [layout.code, layout.previous, layout.owner_word()];
        // SAFETY: the caller's promise.
        let [code, previous, owner] = unsafe { M::words(frame, fields) }?;
        // SAFETY: as above.
        let class = unsafe { M::pointer(code as Object, OB_TYPE) };
        (class == Some(self.code_type)).then_some((previous as Object, layout.is_entry(owner)))
    }
}

/// Tells a chain that goes round, as frames do that are no more: each was used again as another's. No stack does; and a walk
/// that went round until its steps were used up would take longer than the time between two samples, if those are many.
///
/// Brent's way: every frame is compared with the one that was met at the last power of two.
struct Round {
    mark: Object,
    since: usize,
    until: usize,
}

impl Round {
    fn from(first: Object) -> Self {
        Self { mark: first, since: 0, until: 1 }
    }

    /// Whether the next frame was met before.
    #[inline]
    fn closes(&mut self, next: Object) -> bool {
        if next == self.mark {
            return true;
        }
        self.since += 1;
        if self.since == self.until {
            *self = Self { mark: next, since: 0, until: 2 * self.until };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::{mem, ptr};

    use super::*;
    use crate::stack::hamt::{Key, NodeTypes};
    use crate::stack::interpreter::Published;
    use crate::stack::layout::LAYOUTS;
    use crate::stack::memory::Probed;

    #[test]
    fn a_cframe_without_another_before_it_counts_only_in_its_thread_state() {
        for (version, layout) in LAYOUTS {
            let Entry::CFrame { current_frame, previous, .. } = layout.entry else { continue };
            // SAFETY: addresses and numbers, of which none is looked at here.
            let nodes: NodeTypes = unsafe { mem::zeroed() };
            // SAFETY: as above.
            let key: Key = unsafe { mem::zeroed() };
            let published = Published { key, class: ptr::null(), offset: 0 };
            let (code_type, main) = (ptr::null(), ptr::null());
            let (span, tags, finalizing, collecting, runtime) = (published, published, None, None, 0..0);
            let runtime = CPython { layout, code_type, main, nodes, span, tags, finalizing, collecting, runtime };
            // What an earlier call left on the stack, and a thread state with a cframe in its middle.
            let (frame, mut tstate, mut stale) = (0x1000_usize, [0_usize; 64], [0_usize; 8]);
            tstate[32 + current_frame / 8] = frame;
            stale[current_frame / 8] = frame;
            assert_eq!((stale[previous / 8], tstate[32 + previous / 8]), (0, 0));
            let first = |cframe: *const usize| {
                // SAFETY: Probed asks before it reads.
                unsafe { runtime.first_frame::<Probed>(tstate.as_ptr().cast(), cframe.cast(), ptr::null()) }
            };
            assert_eq!(first(&raw const tstate[32]), Some(frame as Object), "{version:?}");
            // A thread state is never so near to a stack as these two are to each other.
            let far = Box::new(stale);
            assert_eq!(first(far.as_ptr()), None, "{version:?}");
        }
    }

    /// After how many frames a chain is seen to go round that comes back to its `back`th frame after the `length`th.
    fn seen_after(length: usize, back: usize) -> Option<usize> {
        let frame = |step: usize| {
            let number = if step < length { step } else { back + (step - back) % (length - back) };
            (8 * (number + 1)) as Object
        };
        let mut round = Round::from(frame(0));
        (1..MAX_STEPS).find(|&step| round.closes(frame(step)))
    }

    #[test]
    fn a_chain_that_goes_round_is_seen_soon_and_a_long_one_never() {
        for length in 1..40 {
            for back in 0..length {
                let seen = seen_after(length, back).expect("it goes round");
                assert!(seen >= length && seen <= 3 * length, "{seen} for {length} back to {back}");
            }
        }
        assert_eq!(seen_after(MAX_STEPS, 0), None);
    }
}
