//! The flow of a span goes on: how long no thread ran it, which managed code knows, becomes a sample of the thread that goes on with it.
//!
//! The stack is that of the async methods that await each other ([`boxes`]), else the thread's.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU64, Ordering};

use spanprof_core::{FrameId, FrameWriter, State};

use crate::clr::method_names::{self, MethodName};
use crate::events::boxes::{self, Chain};
use crate::span::record;
use crate::stack::unwind;
use crate::symbols::resolver;

/// What the stack of such a sample begins with, and its frame.
const AWAIT: &str = "(await)";
static LEAF: AtomicU64 = AtomicU64::new(0);

/// Before the first one.
pub(crate) fn prepare() {
    LEAF.store(resolver::id_of(AWAIT, ""), Ordering::Release);
}

/// No thread ran the calling thread's span for so long, until now. What that stands for if it is to become a sample
/// ([`spanprof_sample_resumed`]), else 0. About 5 ns.
#[unsafe(no_mangle)]
pub extern "C" fn spanprof_resumed(off_ns: u64) -> u64 {
    // SAFETY: null, or in this thread's block.
    let Some(span) = (unsafe { record::context().span.as_ref() }) else { return 0 };
    spanprof_core::add_time(span, State::Await, off_ns);
    spanprof_core::flow_weight(off_ns, || true).map_or(0, |(weight, _)| weight)
}

/// Takes the sample. `context`: where the address of the execution context is that was just restored. The answer is 0, or a
/// method table to be explained by [`spanprof_explain_type`] before it is asked again; not where `all` is 1. Some microseconds, in which
/// no garbage collection may run.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn spanprof_sample_resumed(off_ns: u64, weight: u64, context: *const u64, all: u32) -> u64 {
    // What the caller has in registers lies below its stack then. The assembler describes it for walks, as compilers do of their functions: at
    // each instruction, as a signal may come there.
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 56",
        ".cfi_adjust_cfa_offset 56",
        "mov [rsp + 48], rbp",
        "mov [rsp + 40], rbx",
        "mov [rsp + 32], r12",
        "mov [rsp + 24], r13",
        "mov [rsp + 16], r14",
        "mov [rsp + 8], r15",
        "lea r8, [rsp + 8]",
        "call {sample}",
        "add rsp, 56",
        ".cfi_adjust_cfa_offset -56",
        "ret",
        ".cfi_endproc",
        sample = sym sample,
    );
}

/// `saved`: six registers, rbp last, and the address to which the caller's call returns.
extern "C" fn sample(off_ns: u64, weight: u64, context: *const u64, all: u32, saved: *const [u64; 7]) -> u64 {
    let leaf: FrameId = LEAF.load(Ordering::Acquire);
    let inside = record::context();
    if leaf == 0 || inside.span.is_null() {
        return 0;
    }
    let top = saved.addr() as u64;
    // SAFETY: the caller's frame.
    let saved = unsafe { *saved };
    // SAFETY: a local of the caller's.
    let context = unsafe { context.read() };
    let chain = boxes::chain(unwind::words_from(top), context, all != 0);
    if let Chain::Unknown(table) = chain {
        return table;
    }
    let count = u16::try_from((weight + off_ns / 2) / off_ns.max(1)).unwrap_or(u16::MAX).max(1);
    let walk = |out: &mut FrameWriter<'_>| {
        out.push(leaf);
        match &chain {
            Chain::Of(frames, count) => {
                for frame in &frames[..*count] {
                    out.push(*frame);
                }
            }
            _ => unwind::walk_caller([saved[6], top + 56, saved[5]], out),
        }
    };
    // SAFETY: called by managed code, not by a signal's handler; the span is in this thread's block.
    unsafe { spanprof_core::sample_flow(State::Await, weight, count, inside, walk) };
    0
}

/// The offset at which an object has a reference to another one, by the addresses of references to them; 0: it has none. No garbage
/// collection may run meanwhile.
///
/// # Safety
/// Both are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spanprof_offset_of(holder: *const u64, held: *const u64) -> u32 {
    // SAFETY: the caller's promise.
    let holder = unsafe { holder.read() };
    // SAFETY: as above.
    boxes::offset_of(holder, unsafe { held.read() }).unwrap_or(0)
}

/// Tells where things are in boxes, by method tables of some classes. 1: so they are.
///
/// # Safety
/// `tables` is valid for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spanprof_learn_boxes(context: u32, continuation: u32, tables: *const u64, count: usize) -> u8 {
    // SAFETY: the caller's promise.
    let tables = unsafe { std::slice::from_raw_parts(tables, count) };
    u8::from(boxes::learn_layout(context as usize, continuation as usize, tables))
}

/// Explains a method table. `name`: of a box its state machine's, of another one that is to be shown its own, else nothing. `next`: the
/// offset of the field that leads on, 0 for none. `kind`: 1 a box, 2 a list, else 0; 3: it is to be forgotten.
///
/// # Safety
/// `name` is valid for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spanprof_explain_type(table: u64, name: *const u8, len: usize, next: u32, kind: u32) {
    if kind == 3 {
        return boxes::forget_type(table);
    }
    // SAFETY: the caller's promise.
    let name = if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(name, len) } };
    let class = String::from_utf8_lossy(name).into_owned();
    let text = match (class.is_empty(), kind) {
        (true, _) => None,
        (_, 1) => Some(MethodName { class, method: "MoveNext".to_owned(), ..MethodName::default() }.text()),
        _ => Some(format!("({})", method_names::type_text(&class, &[]))),
    };
    let frame = text.map_or(0, |text| resolver::id_of(&text, ""));
    boxes::learn_type(table, frame, next as usize, kind == 2, kind == 1);
}
