//! The flow of a span goes on: how long no thread ran it, which managed code knows, becomes a sample of the thread that goes on with it.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU64, Ordering};

use spanprof_core::{FrameId, FrameWriter, State};

use crate::span::record;
use crate::stack::unwind;
use crate::symbols::resolver;

/// What the stack of such a sample begins with.
static LEAF: AtomicU64 = AtomicU64::new(0);

/// Before the first one.
pub(crate) fn prepare() {
    LEAF.store(resolver::id_of("(await)", ""), Ordering::Release);
}

/// No thread ran the calling thread's span for so long, until now. The stack of the sample that this may become is the caller's.
/// About 10 ns; some microseconds for a sample, of which there are a thousand a second.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn spanprof_resumed(off_ns: u64) {
    naked_asm!("mov rsi, rsp", "mov rdx, rbp", "jmp {resumed}", resumed = sym resumed);
}

/// `top`: where the address is to which the caller's call returns; `bp`: the caller's rbp.
extern "C" fn resumed(off_ns: u64, top: *const u64, bp: u64) {
    let leaf: FrameId = LEAF.load(Ordering::Acquire);
    let inside = record::context();
    if leaf == 0 || inside.span.is_null() {
        return;
    }
    let Some((weight, count)) = spanprof_core::flow_weight(off_ns) else { return };
    // SAFETY: the caller's frame stands.
    let registers = [unsafe { top.read() }, top.addr() as u64 + 8, bp];
    let walk = |out: &mut FrameWriter<'_>| {
        out.push(leaf);
        unwind::walk_caller(registers, out);
    };
    // SAFETY: called by managed code, not by a signal's handler; the span is in this thread's block.
    unsafe { spanprof_core::sample_flow(State::Await, weight, count, inside, walk) };
}
