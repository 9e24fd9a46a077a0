//! The frame ids that stacks are made of: one means a place in code, or why there is none.
//!
//! ```text
//! | generation: 8 | slot: 24 | instruction: 32 |
//! ```
//!
//! The slot is the code object's place in the seen table ([`code_table`](crate::stack::code_table)) of that generation.

use spanprof_core::FrameId;

/// Slots that stand for no code object.
pub(crate) const NATIVE_THREAD_SLOT: u64 = 0xFF_FFFF;
pub(crate) const NO_PYTHON_FRAME_SLOT: u64 = 0xFF_FFFE;
pub(crate) const TABLE_FULL_SLOT: u64 = 0xFF_FFFD;
pub(crate) const UNREADABLE_SLOT: u64 = 0xFF_FFFC;
pub(crate) const SWITCHING_SLOT: u64 = 0xFF_FFFB;
pub(crate) const AWAIT_SLOT: u64 = 0xFF_FFFA;
pub(crate) const AWAIT_FUTURE_SLOT: u64 = 0xFF_FFF9;
pub(crate) const AWAIT_TASK_SLOT: u64 = 0xFF_FFF8;
pub(crate) const LOOP_BUSY_SLOT: u64 = 0xFF_FFF7;
pub(crate) const COLLECTING_SLOT: u64 = 0xFF_FFF6;

/// Of a thread that never ran Python.
pub(crate) const NATIVE_THREAD: FrameId = NATIVE_THREAD_SLOT << 32;
/// Of a thread that the interpreter knows and that runs no Python function.
pub(crate) const NO_PYTHON_FRAME: FrameId = NO_PYTHON_FRAME_SLOT << 32;
/// Of a stack that could not be read, see [`cframe`](crate::stack::cframe).
pub(crate) const UNREADABLE: FrameId = UNREADABLE_SLOT << 32;
/// The outermost one of a stack that the thread just leaves or enters: what is below it is not known, or the sample's
/// span may be that of the next one.
pub(crate) const SWITCHING: FrameId = SWITCHING_SLOT << 32;
/// Of code that found no place in the seen table.
pub(crate) const TABLE_FULL: FrameId = TABLE_FULL_SLOT << 32;
/// The leaf of a chain of awaits: what the innermost coroutine waits for.
pub(crate) const AWAIT: FrameId = AWAIT_SLOT << 32;
pub(crate) const AWAIT_FUTURE: FrameId = AWAIT_FUTURE_SLOT << 32;
pub(crate) const AWAIT_TASK: FrameId = AWAIT_TASK_SLOT << 32;
/// The leaf of a coroutine that could have gone on, but its thread did other things.
pub(crate) const LOOP_BUSY: FrameId = LOOP_BUSY_SLOT << 32;
/// The leaf of a thread that runs the garbage collector.
pub(crate) const COLLECTING: FrameId = COLLECTING_SLOT << 32;
