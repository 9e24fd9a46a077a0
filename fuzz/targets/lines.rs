//! CPython's tables of line numbers, in the source that the binding has: it needs no interpreter.

#![no_main]

#[path = "../../bindings-python/src/symbols/lines.rs"]
mod lines;

/// What `lines` uses of the binding.
mod stack {
    pub(crate) mod layout {
        #[derive(Clone, Copy)]
        pub(crate) enum LineTable {
            Pep626,
            Pep657,
        }
    }
}

libfuzzer_sys::fuzz_target!(|input: (u32, u32, &[u8])| {
    let (first_line, index, table) = input;
    for kind in [stack::layout::LineTable::Pep626, stack::layout::LineTable::Pep657] {
        let line = lines::line_of(kind, table, first_line, index);
        // An instruction that the table does not reach has no line: the longest entries are of 255 bytes or 8 instructions.
        assert!(line.is_none() || u64::from(index) < 128 * table.len() as u64 + 8);
    }
});
