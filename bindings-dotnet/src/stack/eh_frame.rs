//! `.eh_frame` as a table of rows that the walk searches: from which address on, where the caller's frame is.
//!
//! Only what the walk needs is kept: the canonical frame address (CFA) as rsp or rbp plus an offset, and where the
//! caller's rbp was saved.

/// How the CFA of a row is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cfa {
    /// rsp plus the offset.
    Rsp,
    /// rbp plus the offset.
    Rbp,
    /// The word at rsp plus the offset, plus 8: a function that aligned its stack keeps there what rsp was.
    Stored,
    /// By another register or expression, which is not evaluated.
    Unknown,
    /// A signal's handler returns here: the registers of what it interrupted are in the ucontext on top of the stack.
    Signal,
    /// No function is here.
    Nothing,
}

/// The rule from `pc` (relative to the object's load address) to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) pc: u32,
    pub(crate) offset: i32,
    /// Where rbp was saved, relative to the CFA; 0 = it still is in the register.
    pub(crate) saved_rbp: i16,
    pub(crate) cfa: Cfa,
}

/// The row that holds at `pc`.
#[inline]
pub(crate) fn find(rows: &[Row], pc: u32) -> Option<Row> {
    let after = rows.partition_point(|row| row.pc <= pc);
    rows.get(after.checked_sub(1)?).copied()
}
