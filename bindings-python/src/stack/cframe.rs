//! Where a walk begins on CPython 3.11 and 3.12.
//!
//! These publish a struct on the C stack (`tstate->cframe`) some instructions before they write it; until then its
//! `current_frame` and its `previous` are what an earlier call left there. Four rules make a walk safe:
//! 1. a cframe is *sound* if the first frame of the interpreter loop that is reached from its `current_frame` hangs
//!    below the `current_frame` of the cframe before it. If the newest one is not, the function that is being entered
//!    is not on the stack yet, and the walk begins at the cframe before it, which is still in a register. If none there
//!    is sound (a greenlet is just moving stacks), the stack counts as unreadable.
//! 2. a call that stays in its loop makes the callee's frame current, and some compilers write its `previous` some
//!    instructions later; until then that is what an earlier frame left there, which may well be an older frame of
//!    this very stack. A frame that has not begun, or that nothing is behind, is therefore on the stack only if no
//!    register names a caller that is nearer: else the walk begins at the caller.
//! 3. a greenlet that is being left has its frames linked past those of the loops, so rule 1 says nothing of them. They
//!    count only while the cframe that names them lies on the interrupted stack: once the stack pointer is the next
//!    greenlet's, what is below it is anybody's.
//! 4. frames, and what code objects point to, are read by guarded loads. If one faults the walk ends there.
//!
//! Every other version publishes frames whole: no rule is needed.

use std::ops::Range;

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
pub(crate) const MAX_STACK: usize = 8 << 20;
/// Where a program's memory is. A load of what is elsewhere would be caught, at the price of a signal.
const ADDRESSES: Range<u64> = 1 << 16..1 << 47;
/// Bytes in which the interpreter lays frames one behind the other, `DATA_STACK_CHUNK_SIZE`.
const CHUNK: usize = 16 << 10;
/// What a function may use below its stack pointer.
const RED_ZONE: usize = 128;
/// The number of a frame's instruction before its first.
const NOT_BEGUN: u32 = u32::MAX;

/// The lowest address that the interrupted stack uses; 0 without an interrupted one.
///
/// # Safety
/// `ucontext` must be null or what the running handler got.
unsafe fn lowest_in_use(ucontext: *const ucontext_t) -> usize {
    if ucontext.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { registers::stack_pointer(ucontext) }.saturating_sub(RED_ZONE)
}

impl CPython {
    /// The frame at which a walk may begin: rules 1 to 3 above. `None`: the stack cannot be read.
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
        // SAFETY: as above.
        let lowest = unsafe { lowest_in_use(ucontext) };
        // SAFETY: as above.
        if !previous.is_null() && !unsafe { self.is_linked::<M>(current) } {
            if ucontext.is_null() {
                // A signal's handler of the program's waits, which came at this instant.
                return None;
            }
            // SAFETY: as above.
            if let Some(caller) = unsafe { self.nearer_caller::<M>(current, previous, ucontext) } {
                return Some(caller);
            }
        }
        // The thread state's own has none before it, and then nothing runs. Another one without was not written yet.
        let is_whole = if previous.is_null() {
            newest.addr().wrapping_sub(tstate.addr()) < MAX_TSTATE
        } else {
            // SAFETY: as above.
            unsafe { self.is_sound::<M>(newest, current, previous, lowest, &mut steps) }
        };
        if is_whole {
            return Some(current);
        }
        // Nothing is true of the newest one yet, but the interpreter holds the one before it in a register to write it.
        // SAFETY: as above.
        let before = unsafe { self.cframe_in_registers::<M>(newest, ucontext) };
        // A greenlet that is being left has its frames linked past those of the interpreter loops, up to the end.
        // SAFETY: as above.
        let mut is_left = || newest.addr() >= lowest && unsafe { self.ends::<M>(current, &mut steps) };
        before.or_else(|| is_left().then_some(current))
    }

    /// Whether what `frame` names as its caller is that for sure, by rule 2.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    #[inline]
    unsafe fn is_linked<M: Memory>(&self, frame: Object) -> bool {
        if frame.is_null() {
            return true;
        }
        let layout = &self.layout.frame;
        let fields = [layout.code, layout.previous, layout.instr, layout.owner_word()];
        // SAFETY: the caller's promise. What cannot be read is no frame, as the other rules find.
        let Some([code, behind, instr, owner]) = (unsafe { M::words(frame, fields) }) else { return true };
        let has_begun = self.instruction_number(code as Object, instr) != NOT_BEGUN;
        // The first frame of a loop is linked before it is published, if only to nothing.
        has_begun && behind != 0 || layout.is_entry(owner)
    }

    /// The frame nearest to `current`, which is not linked yet, that a register of the interrupted thread names and that is on the
    /// stack of the loop after `previous`. `None`: what `current` names itself is as near.
    ///
    /// # Safety
    /// As for [`first_frame`](Self::first_frame).
    #[cold]
    unsafe fn nearer_caller<M: Memory>(
        &self,
        current: Object,
        previous: Object,
        ucontext: *const ucontext_t,
    ) -> Option<Object> {
        // SAFETY: the caller's promise.
        let (behind, _) = unsafe { self.behind::<M>(current) }?;
        // SAFETY: as above.
        let (below, _) = unsafe { self.cframe::<M>(previous) }?;
        // SAFETY: as above.
        let is_linked = unsafe { self.hangs_below::<M>(current, below, &mut { MAX_STEPS }) };
        let mut nearest = is_linked.then_some(behind);
        let mut steps = MAX_STEPS;
        // SAFETY: as above.
        let registers = unsafe { registers::words(ucontext) };
        // No compiler keeps the caller in a vector.
        for &word in &registers[..registers::GENERAL] {
            let frame = word as Object;
            let is_address = ADDRESSES.contains(&word) && word % 8 == 0;
            // Where the next frame will be, what was there is no more; nor is what this one called when it ran before.
            let is_next = frame.addr().wrapping_sub(current.addr()) < CHUNK;
            if steps == 0 || !is_address || is_next || nearest == Some(frame) {
                continue;
            }
            // SAFETY: as for any address.
            if unsafe { self.calls::<M>(current, frame, &mut steps) } {
                continue;
            }
            let is_nearer = match nearest {
                // SAFETY: as above.
                Some(nearest) => unsafe { self.calls::<M>(nearest, frame, &mut steps) },
                // SAFETY: as above.
                None => unsafe { self.hangs_below::<M>(frame, below, &mut steps) },
            };
            if is_nearer {
                nearest = Some(frame);
            }
        }
        nearest.filter(|&frame| !is_linked || frame != behind)
    }

    /// Whether `older` led to `frame` by calls within one loop.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    unsafe fn calls<M: Memory>(&self, older: Object, mut frame: Object, steps: &mut usize) -> bool {
        let mut round = Round::from(frame);
        while *steps > 0 {
            *steps -= 1;
            // SAFETY: the caller's promise.
            match unsafe { self.behind::<M>(frame) } {
                Some((previous, false)) if previous == older => return true,
                Some((previous, false)) if !round.closes(previous) => frame = previous,
                _ => return false,
            }
        }
        false
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
    unsafe fn cframe_in_registers<M: Memory>(&self, newest: Object, ucontext: *const ucontext_t) -> Option<Object> {
        if ucontext.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let registers = unsafe { registers::words(ucontext) };
        // SAFETY: as above.
        let lowest = unsafe { lowest_in_use(ucontext) };
        let mut steps = MAX_STEPS;
        let mut nearest = MAX_STACK;
        let mut frame = None;
        for word in registers {
            let cframe = word as Object;
            let distance = cframe.addr().wrapping_sub(newest.addr());
            if steps == 0 || distance == 0 || distance >= nearest || word % 8 != 0 {
                continue;
            }
            // SAFETY: as for any address.
            let Some((current, previous)) = (unsafe { self.cframe::<M>(cframe) }) else {
                continue;
            };
            // SAFETY: as above.
            if !previous.is_null() && unsafe { self.is_sound::<M>(cframe, current, previous, lowest, &mut steps) } {
                (nearest, frame) = (distance, Some(current));
            }
        }
        frame
    }

    /// Whether a cframe is what it seems, going by the one before it.
    ///
    /// cframes lie on the stack, older ones above newer ones, up to the one in the thread state, which has none before
    /// it. Where a greenlet begins or ends it stands on a copy of its maker's cframe, below the thread state's own.
    /// `lowest` is the lowest address that the stack uses.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    #[inline]
    unsafe fn is_sound<M: Memory>(
        &self,
        cframe: Object,
        current: Object,
        previous: Object,
        lowest: usize,
        steps: &mut usize,
    ) -> bool {
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
        hangs || (next.is_null() && cframe.addr() >= lowest && unsafe { self.ends::<M>(current, steps) })
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
pub(crate) mod tests {
    use std::cell::Cell;
    use std::{mem, ptr};

    use super::*;
    use crate::stack::hamt::{Key, NodeTypes};
    use crate::stack::interpreter::Published;
    use crate::stack::layout::{FrameLayout, LAYOUTS, Layout};
    use crate::stack::memory::Probed;

    /// An interpreter with this layout, whose code objects are `code`.
    pub(crate) fn interpreter(layout: &'static Layout, code_type: Object) -> CPython {
        // SAFETY: addresses and numbers, of which none is looked at here.
        let nodes: NodeTypes = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let key: Key = unsafe { mem::zeroed() };
        let published = Published { key, class: ptr::null(), offset: 0 };
        let (span, tags, finalizing, collecting, runtime) = (published, published, None, None, 0..0);
        CPython { layout, code_type, main: ptr::null(), nodes, span, tags, finalizing, collecting, runtime }
    }

    /// A word of the interpreter's.
    pub(crate) type Word = Cell<usize>;

    pub(crate) const fn words<const N: usize>() -> [Word; N] {
        [const { Cell::new(0) }; N]
    }

    pub(crate) fn at(words: &[Word]) -> Object {
        words.as_ptr().cast()
    }

    /// A code object, whose type is its own address.
    pub(crate) fn code() -> Box<[Word; 64]> {
        let code = Box::new(words());
        code[OB_TYPE / 8].set(at(&*code).addr());
        code
    }

    fn write_frame(frame: &[Word], layout: &Layout, code: &[Word], previous: Object, has_begun: bool, is_entry: bool) {
        let FrameLayout { code: code_at, previous: previous_at, instr, owner, entry_from, .. } = layout.frame;
        frame[code_at / 8].set(at(code).addr());
        frame[previous_at / 8].set(previous.addr());
        let first = at(code).addr() + layout.code.size;
        frame[instr / 8].set(if has_begun { first + 4 } else { first - 2 });
        frame[owner / 8].set(usize::from(if is_entry { entry_from } else { 0 }) << (8 * (owner % 8)));
    }

    /// What a handler gets of a thread with these registers.
    #[cfg(target_arch = "x86_64")]
    fn interrupted(register: Object, stack_pointer: Object) -> ucontext_t {
        // SAFETY: a struct of numbers and addresses.
        let mut ucontext: ucontext_t = unsafe { mem::zeroed() };
        ucontext.uc_mcontext.gregs[libc::REG_RBX as usize] = register.addr() as i64;
        ucontext.uc_mcontext.gregs[libc::REG_RSP as usize] = stack_pointer.addr() as i64;
        ucontext
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_frame_that_is_current_before_it_is_linked_leaves_the_walk_to_its_caller() {
        for (version, layout) in LAYOUTS {
            let Entry::CFrame { current_frame, previous, .. } = layout.entry else { continue };
            let code = code();
            let runtime = interpreter(layout, at(&*code));
            // One behind the other, as the interpreter lays them.
            let frames = Box::new([const { words::<64>() }; 7]);
            let [elsewhere, below, entry, older, caller, callee, next] = frames.each_ref().map(|frame| at(frame));
            let write = |number: usize, behind: Object, has_begun, is_entry| {
                write_frame(&frames[number], layout, &*code, behind, has_begun, is_entry);
            };
            // A generator's frame lies anywhere, and on 3.11 its `previous` stays.
            write(0, callee, true, false);
            write(1, ptr::null(), true, true);
            write(2, below, true, true);
            write(3, entry, true, false);
            write(4, older, true, false);
            // Of an earlier call, in which another frame stood where the callee is.
            write(6, caller, true, false);
            let cframes = [const { words::<8>() }; 2];
            let [newest, before] = cframes.each_ref().map(|cframe| at(cframe));
            cframes[1][current_frame / 8].set(below.addr());
            cframes[1][previous / 8].set(0x1000);
            cframes[0][current_frame / 8].set(callee.addr());
            cframes[0][previous / 8].set(before.addr());
            let first = |behind: Object, has_begun: bool, register: Object| {
                write(5, behind, has_begun, false);
                let ucontext = interrupted(register, newest);
                // SAFETY: Probed asks before it reads.
                unsafe { runtime.first_frame::<Probed>(ptr::null(), newest, &raw const ucontext) }
            };
            let nowhere = 0x10_usize as Object;
            first(caller, false, nowhere);
            // SAFETY: as above.
            let waiting = unsafe { runtime.first_frame::<Probed>(ptr::null(), newest, ptr::null()) };
            assert_eq!(waiting, None, "{version:?}: not begun, in a wait of a signal's handler");
            assert_eq!(
                first(caller, false, caller),
                Some(callee),
                "{version:?}: linked, its caller still in a register"
            );
            assert_eq!(first(caller, false, older), Some(callee), "{version:?}: linked, something older in a register");
            assert_eq!(first(caller, false, nowhere), Some(callee), "{version:?}: linked");
            assert_eq!(first(older, true, caller), Some(callee), "{version:?}: what has begun is linked");
            assert_eq!(first(older, false, caller), Some(caller), "{version:?}: linked to an older one");
            assert_eq!(first(entry, false, caller), Some(caller), "{version:?}: linked to the loop's first one");
            assert_eq!(first(nowhere, false, caller), Some(caller), "{version:?}: linked to nothing");
            assert_eq!(first(ptr::null(), true, caller), Some(caller), "{version:?}: a generator goes on");
            assert_eq!(first(caller, false, next), Some(callee), "{version:?}: the next place in a register");
            assert_eq!(first(caller, false, elsewhere), Some(callee), "{version:?}: called by what was there before");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn what_lies_below_the_stack_says_nothing_of_a_greenlet() {
        for (version, layout) in LAYOUTS {
            let Entry::CFrame { current_frame, previous, .. } = layout.entry else { continue };
            let code = code();
            let runtime = interpreter(layout, at(&*code));
            let only = words::<64>();
            write_frame(&only, layout, &*code, ptr::null(), true, false);
            let root = words::<8>();
            let stack = words::<256>();
            stack[current_frame / 8].set(at(&only).addr());
            stack[previous / 8].set(at(&root).addr());
            let first = |stack_pointer: Object| {
                let ucontext = interrupted(ptr::null(), stack_pointer);
                // SAFETY: Probed asks before it reads.
                unsafe { runtime.first_frame::<Probed>(ptr::null(), at(&stack), &raw const ucontext) }
            };
            assert_eq!(first(at(&stack)), Some(at(&only)), "{version:?}");
            assert_eq!(first(at(&stack[128..])), None, "{version:?}");
        }
    }

    #[test]
    fn a_cframe_without_another_before_it_counts_only_in_its_thread_state() {
        for (version, layout) in LAYOUTS {
            let Entry::CFrame { current_frame, previous, .. } = layout.entry else { continue };
            let runtime = interpreter(layout, ptr::null());
            // What an earlier call left on the stack, and a thread state with a cframe in its middle.
            // A thread state is never so near to a stack as they would be side by side.
            let (frame, tstate, stale) = (0x1000_usize, words::<64>(), Box::new(words::<8>()));
            tstate[32 + current_frame / 8].set(frame);
            stale[current_frame / 8].set(frame);
            assert_eq!((stale[previous / 8].get(), tstate[32 + previous / 8].get()), (0, 0));
            let first = |cframe: Object| {
                // SAFETY: Probed asks before it reads.
                unsafe { runtime.first_frame::<Probed>(at(&tstate), cframe, ptr::null()) }
            };
            assert_eq!(first(at(&tstate[32..])), Some(frame as Object), "{version:?}");
            assert_eq!(first(at(&*stale)), None, "{version:?}");
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
