//! The words that stacks are made of: one means a place in code, or why there is none.
//!
//! ```text
//! | generation: 8 | slot: 24 | instruction: 32 |
//! ```
//!
//! The slot is the code object's place in the seen table ([`code_table`](crate::stack::code_table)) of that generation.

/// Slots that stand for no code object.
pub(crate) const NATIVE_THREAD: u64 = 0xFF_FFFF;
pub(crate) const NO_PYTHON_FRAME: u64 = 0xFF_FFFE;
pub(crate) const NO_SLOT: u64 = 0xFF_FFFD;
pub(crate) const UNREADABLE: u64 = 0xFF_FFFC;
pub(crate) const SWITCHING: u64 = 0xFF_FFFB;

/// The word of a thread that never ran Python.
pub(crate) const NATIVE_THREAD_WORD: u64 = NATIVE_THREAD << 32;
/// The word of a thread that the interpreter knows and that runs no Python function.
pub(crate) const NO_PYTHON_FRAME_WORD: u64 = NO_PYTHON_FRAME << 32;
/// The word of a stack that could not be read, see [`cframe`](crate::stack::cframe).
pub(crate) const UNREADABLE_WORD: u64 = UNREADABLE << 32;
/// The word, outermost, of a stack that the thread just leaves or enters: what is below it is not known, or the sample's
/// span may be that of the next one.
pub(crate) const SWITCHING_WORD: u64 = SWITCHING << 32;
/// The word of code that found no place in the seen table.
pub(crate) const NO_SLOT_WORD: u64 = NO_SLOT << 32;
