//! The stack of the interrupted thread, walked in the signal handler.
//!
//! **Functions called in the handler:** none but those of this folder, ld.so's ([`loader`](crate::stack::loader)), and of threads that run no
//! managed code those of [`own_stack`](crate::stack::own_stack); of a wait that is over, `sigaltstack`, which is a system call and no more.
//! Memory read: the handler's own ucontext; tables in static memory ([`modules`], [`range_set`](crate::stack::range_set), [`call_sites`]); words
//! of the thread's own stack, each checked to lie between the interrupted rsp and the stack's end ([`own_stack`](crate::stack::own_stack)); the
//! tables of libraries that it is in.
//!
//! The walk, in the words of the rules that [`repair`](crate::symbols::repair) goes on with:
//! * H1: native code at the leaf is left by rows of `.eh_frame`, since system libraries keep no frame pointers; a signal's handler by the
//!   registers that it will restore. Where that ends without a known caller a frame says so ([`CUT`]).
//! * H2: the words above rsp of the first managed frame go along, for what only code bytes can tell.
//! * From there on rbp is followed: CoreCLR gives most methods a frame.
//! * H4: call sites in methods without a frame are known from a table, and those of methods that were compiled ahead of time from their
//!   assemblies.
//! * A return address that the runtime put in place of a method's own ([`hijack`](crate::stack::hijack)) leads nowhere: a frame says so.
//! * H5: a method that on-stack replacement entered lies on top of its own earlier body; its return address is higher up.
//!
//! The leaf's frame is its pc, that of a caller its return address minus one, which is within the call.

use std::ffi::c_char;
use std::mem::{self, offset_of};
use std::ops::Range;
use std::ptr;

use libc::{stack_t, ucontext_t};
use spanprof_core::FrameWriter;

use crate::stack::call_sites::Caller;
use crate::stack::eh_frame::{Cfa, Row};
use crate::stack::library_names::LibraryNames;
use crate::stack::own_stack::Stack;
use crate::stack::range_set::RangeSet;
use crate::stack::sample_header::{CUT, FirstManaged};
use crate::stack::{call_sites, hijack, modules, sample_header};

/// Words of the stack that go along with a sample.
const EXTRA_WORDS: usize = 64;
/// Frames without a frame pointer in a row.
const MAX_FRAMELESS: usize = 16;
/// Bytes that are searched for the return address of a replaced body.
const MAX_OSR_BYTES: u64 = 64 << 10;
/// Native frames at the leaf.
const MAX_NATIVE: usize = 64;
/// Where code may be: nothing beyond is an address of a program's, and frame ids are there.
const CODE: Range<u64> = 4096..1 << 47;

/// Code of methods that were entered by on-stack replacement.
pub(crate) static OSR_METHODS: RangeSet<4_096> = RangeSet::new();

/// Pushes the stack of the interrupted thread, leaf first.
///
/// # Safety
/// `ucontext` is null or the handler's own argument.
#[inline]
pub(crate) unsafe fn walk(ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
    // SAFETY: the caller's promise.
    if let Some(context) = unsafe { ucontext.as_ref() } {
        let registers = &context.uc_mcontext.gregs;
        let [pc, sp, bp] = REGISTERS.map(|register| registers[register].cast_unsigned());
        let alternate = (context.uc_stack.ss_sp as u64, context.uc_stack.ss_size as u64);
        walk_stack(Registers { pc, sp, bp, is_leaf: true, is_certain: true }, Stack::of(sp, alternate), out);
    }
}

/// Pushes the stack of the code that called a function of ours, which it will go on with these registers: rip, rsp and rbp.
pub(crate) fn walk_caller([pc, sp, bp]: [u64; 3], out: &mut FrameWriter<'_>) {
    walk_stack(Registers { pc, sp, bp, is_leaf: false, is_certain: true }, Stack::of(sp, alternate_stack()), out);
}

/// The words of the calling thread's stack from `sp` on.
pub(crate) fn words_from(sp: u64) -> impl Iterator<Item = u64> {
    let stack = Stack::of(sp, alternate_stack());
    (0..).map_while(move |word: u64| stack.load(sp + 8 * word))
}

/// The last native function below managed code, where that called it: as a frame of its stack would be. The registers are those of
/// [`walk_caller`]. `None`: no managed code is found.
pub(crate) fn outermost_native([pc, sp, bp]: [u64; 3]) -> Option<u64> {
    let mut stack = Stack::of(sp, alternate_stack());
    let mut at = Registers { pc, sp, bp, is_leaf: false, is_certain: true };
    let (mut row, _) = at.row()?;
    for _ in 0..MAX_NATIVE {
        let outermost = at.frame();
        at = at.caller_of_native(row, &mut stack)?;
        match at.row().filter(|_| !hijack::is_trap(at.pc)) {
            Some((next, _)) => row = next,
            // Code of a method may be in memory that nobody looked at yet.
            None => return Some(outermost).filter(|_| CODE.contains(&at.pc)),
        }
    }
    None
}

const REGISTERS: [usize; 3] = [
    libc::REG_RIP.cast_unsigned() as usize,
    libc::REG_RSP.cast_unsigned() as usize,
    libc::REG_RBP.cast_unsigned() as usize,
];

/// Start and size of the calling thread's signal stack.
fn alternate_stack() -> (u64, u64) {
    // SAFETY: plain bits.
    let mut stack: stack_t = unsafe { mem::zeroed() };
    // SAFETY: only asked; a system call that keeps no memory.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) };
    (stack.ss_sp as u64, stack.ss_size as u64)
}

/// Pushes the stack from these registers, leaf first; extra: [`header`](sample_header::header), and the words at the rsp of the
/// first managed frame.
///
/// Hot: 1 to 2 µs.
#[inline]
fn walk_stack(mut at: Registers, mut stack: Stack, out: &mut FrameWriter<'_>) {
    let end = out.frames() + MAX_NATIVE;
    out.push(at.frame());
    let (mut first_managed, mut names) = (None, LibraryNames::new());
    loop {
        let Some((row, name)) = at.row() else {
            first_managed = Some((FirstManaged { frame: out.frames() - 1, is_interrupted: at.is_leaf }, at.sp));
            break;
        };
        names.note(out.frames() - 1, name);
        let caller = at.caller_of_native(row, &mut stack).filter(|caller| out.frames() < end && caller.pc < CODE.end);
        let Some(caller) = caller else {
            out.push(CUT);
            break;
        };
        at = caller;
        let is_known = !hijack::is_trap(at.pc);
        if !CODE.contains(&at.pc) || !out.push(if is_known { at.frame() } else { CUT }) {
            push_extra(None, stack, &names, out);
            return;
        }
        if !is_known {
            break;
        }
    }
    let high = stack.high;
    follow_frames(at, stack, out);
    let words = Stack { low: first_managed.map_or(high, |(_, sp)| sp), high };
    push_extra(first_managed.map(|(first, _)| first), words, &names, out);
}

/// What goes along with the frames.
#[inline]
fn push_extra(first: Option<FirstManaged>, stack: Stack, names: &LibraryNames, out: &mut FrameWriter<'_>) {
    let words = if first.is_some() { EXTRA_WORDS } else { 0 };
    let words = words.min(usize::try_from(stack.high.saturating_sub(stack.low) / 8).unwrap_or(0));
    out.push_extra(sample_header::header(first, words, sample_header::method_count()));
    for word in 0..words as u64 {
        out.push_extra(stack.load(stack.low.wrapping_add(8 * word)).unwrap_or(0));
    }
    // SAFETY: the thread is in their functions.
    unsafe { names.push(out) };
}

/// The frame pointers from `at` on.
#[inline]
fn follow_frames(at: Registers, mut stack: Stack, out: &mut FrameWriter<'_>) {
    let (mut pc, mut bp) = (at.frame(), at.bp);
    while let (Some(next), Some(mut back)) = (stack.load(bp), stack.load(bp.wrapping_add(8))) {
        let mut frame = bp;
        if OSR_METHODS.contains(pc)
            && let Some((at, address)) = original_frame(bp, next, &stack)
        {
            (frame, back) = (at, address);
        }
        // New code, or no return address: repair() will know, once memory was looked at again.
        if !modules::is_executable(back) {
            sample_header::note_unknown_code();
        }
        let mut sp = frame + 16;
        if !CODE.contains(&back) || !out.push(if hijack::is_trap(back) { CUT } else { back - 1 }) {
            return;
        }
        for _ in 0..MAX_FRAMELESS {
            let Some(Caller::After(bytes)) = caller_of_managed(back) else { break };
            let Some(address) = stack.load(sp.wrapping_add(bytes)) else { break };
            if !CODE.contains(&address) || !out.push(address - 1) {
                return;
            }
            sp = sp.wrapping_add(bytes + 8);
            back = address;
        }
        if next <= bp {
            return;
        }
        stack.low = frame + 16;
        (pc, bp) = (back - 1, next);
    }
}

/// H4: what is known of the caller of the method that `back` is in.
#[inline]
fn caller_of_managed(back: u64) -> Option<Caller> {
    call_sites::find(back).or_else(|| {
        let row = modules::assembly_row(back - 1)?;
        let caller = match row.cfa {
            Cfa::Rsp => Caller::After(u64::from(row.offset.cast_unsigned()) - 8),
            Cfa::Rbp => Caller::ByFrame,
            _ => return None,
        };
        call_sites::remember(back, caller);
        Some(caller)
    })
}

/// H5: where the body that was replaced keeps its copy of the caller's rbp (`next`), and the return address beside it.
#[inline]
fn original_frame(bp: u64, next: u64, stack: &Stack) -> Option<(u64, u64)> {
    let end = bp.saturating_add(MAX_OSR_BYTES).min(if next > bp { next } else { u64::MAX });
    let mut at = bp + 16;
    while at <= end {
        if stack.load(at)? == next {
            let back = stack.load(at + 8)?;
            if modules::is_executable(back) {
                return Some((at, back));
            }
        }
        at += 8;
    }
    None
}

#[derive(Clone, Copy, Debug)]
struct Registers {
    pc: u64,
    sp: u64,
    bp: u64,
    /// `pc` is an instruction that was interrupted, not the one after a call.
    is_leaf: bool,
    /// The thread is here: what rules led to it are those of the code that ran.
    is_certain: bool,
}

impl Registers {
    /// What stands for this place in a stack.
    #[inline]
    fn frame(self) -> u64 {
        if self.is_leaf { self.pc } else { self.pc - 1 }
    }

    /// The rule here, and where the library's name is if it may be closed; `None`: it is not native code.
    #[inline]
    fn row(self) -> Option<(Row, *const c_char)> {
        // SAFETY: as the field says.
        unsafe { modules::row_at(self.frame(), self.is_certain) }
    }

    /// H1: the registers after the native function returned; from then on only what lies above it is read.
    #[inline]
    fn caller_of_native(self, row: Row, stack: &mut Stack) -> Option<Self> {
        let Self { sp, mut bp, is_leaf, mut is_certain, .. } = self;
        let (cfa, saved) = match row.cfa {
            Cfa::Rsp => (sp.wrapping_add_signed(row.offset.into()), row.saved_rbp),
            Cfa::Rbp => (bp.wrapping_add_signed(row.offset.into()), row.saved_rbp),
            Cfa::Stored => {
                let stored = stack.load(sp.wrapping_add_signed(row.offset.into()))?;
                (stored.wrapping_add(8), row.saved_rbp)
            }
            Cfa::Signal => return self.interrupted(stack),
            // Code without a description is a stub that pushed nothing.
            Cfa::Nothing if is_leaf => {
                is_certain = false;
                (sp.wrapping_add(8), 0)
            }
            Cfa::Unknown | Cfa::Nothing => return None,
        };
        if cfa <= sp || cfa & 7 != 0 {
            return None;
        }
        let back = stack.load(cfa - 8)?;
        if saved != 0 {
            let at = cfa.wrapping_add_signed(saved.into());
            // Below rsp it was not saved yet or is restored already: the row is of another instruction.
            if at >= sp {
                bp = stack.load(at)?;
            }
        }
        stack.low = cfa;
        Some(Self { pc: back, sp: cfa, bp, is_leaf: false, is_certain })
    }

    /// The registers of what a signal interrupted whose handler returns here, which may have had a stack of its own.
    #[inline]
    fn interrupted(self, stack: &mut Stack) -> Option<Self> {
        let saved =
            self.sp.wrapping_add((offset_of!(ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, gregs)) as u64);
        let [pc, sp, bp] = REGISTERS.map(|register| stack.load(saved.wrapping_add(8 * register as u64)));
        let (pc, sp, bp) = (pc?, sp?, bp?);
        if sp > self.sp && sp < stack.high {
            stack.low = sp;
        } else {
            let own = Stack::of(sp, (0, 0));
            if own.low == own.high || (own.low..own.high).contains(&self.sp) {
                return None;
            }
            *stack = own;
        }
        Some(Self { pc, sp, bp, is_leaf: true, is_certain: self.is_certain })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the walk finds from a method on whose frames are these pairs of words: the return address of each, the caller's below it.
    fn walked<const N: usize>(return_addresses: [u64; N]) -> Vec<u64> {
        const METHOD: u64 = 0x1000_0001;
        let walk = move || {
            let mut frames = [[0_u64; 2]; N];
            let start = frames.as_ptr() as u64;
            for ((at, frame), back) in (1..).zip(&mut frames).zip(return_addresses) {
                *frame = [start + 16 * at, back];
            }
            let mut space = [0; 256];
            let mut out = FrameWriter::new(&mut space);
            walk_caller([METHOD, std::hint::black_box(&frames).as_ptr() as u64, start], &mut out);
            let count = out.frames();
            space[..count].to_vec()
        };
        // Not the main thread, of whose stack the end may not be known.
        std::thread::spawn(walk).join().unwrap()
    }

    #[test]
    fn a_word_that_is_no_address_of_code_ends_the_stack() {
        assert_eq!(walked([0x2001, 0x3001, 0])[..], [0x1000_0000, 0x2000, 0x3000]);
        assert_eq!(walked([0x2001, u64::MAX, 0x3001])[..], [0x1000_0000, 0x2000]);
        assert_eq!(walked([1 << 62, 0x3001])[..], [0x1000_0000]);
    }

    #[test]
    fn a_return_address_in_place_of_a_methods_own_says_that_its_caller_is_not_known() {
        const TRAP: u64 = 0x7700_0001;
        hijack::set(TRAP);
        assert_eq!(walked([0x2001, TRAP, 0x3001, 0])[..], [0x1000_0000, 0x2000, CUT, 0x3000]);
    }
}
