//! From the frame ids of a stack to frames for people, off the handler: what [`definitions`](crate::symbols::definitions) told,
//! kept as long as samples may name it.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use spanprof_core::{Frame, FrameId};

use crate::stack::frame_id::{
    AWAIT_FUTURE_SLOT, AWAIT_SLOT, AWAIT_TASK_SLOT, COLLECTING_SLOT, LOOP_BUSY_SLOT, NATIVE_THREAD_SLOT,
    NO_PYTHON_FRAME_SLOT, SWITCHING_SLOT, TABLE_FULL_SLOT, UNREADABLE_SLOT,
};
use crate::stack::layout::LineTable;
use crate::symbols::definition_ring::DefinitionRecord;
use crate::symbols::lines::line_of;

/// What lines frames carry: the setting `line_no`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LineMode {
    /// The line that runs.
    #[default]
    LastInstruction = 0,
    /// The function's first line.
    First = 1,
    /// None.
    NoLine = 2,
}

/// A code object, as a handler told it.
#[derive(Debug)]
struct Definition {
    function: Arc<str>,
    file: Arc<str>,
    first_line: u32,
    table: Box<[u8]>,
}

/// What was told and is still needed. Trees, as they grow by small pieces: the reserve of a program without memory has no large ones.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    /// By generation (its lowest eight bits) and slot.
    definitions: [BTreeMap<u32, Definition>; 2],
    generations: [u32; 2],
    /// File names repeat.
    files: BTreeSet<Arc<str>>,
}

impl Resolver {
    /// Remembers a definition.
    pub(crate) fn add(&mut self, record: &DefinitionRecord<'_>) {
        let half = (record.generation & 1) as usize;
        // A handler that was held up while the table rotated twice tells of one that is gone.
        if record.generation.wrapping_sub(self.generations[half]).cast_signed() < 0 {
            return;
        }
        if self.generations[half] != record.generation {
            self.generations[half] = record.generation;
            self.definitions[half].clear();
        }
        let file = record.file();
        let file = match self.files.get(file.as_str()) {
            Some(known) => Arc::clone(known),
            None => {
                let file: Arc<str> = file.into();
                self.files.insert(Arc::clone(&file));
                file
            }
        };
        let definition = Definition {
            function: record.function().into(),
            file,
            first_line: record.first_line,
            table: record.table.into(),
        };
        self.definitions[half].insert(record.slot, definition);
    }

    /// Drops a generation that no sample names any more.
    pub(crate) fn forget(&mut self, generation: u32) {
        let half = (generation & 1) as usize;
        drop(mem::take(&mut self.definitions[half]));
        self.files.retain(|file| Arc::strong_count(file) > 1);
    }

    /// What a frame id means, `None` while its definition is still to come.
    pub(crate) fn resolve(&self, id: FrameId, lines: LineTable, mode: LineMode) -> Option<Frame> {
        let slot = (id >> 32) & 0xFF_FFFF;
        let named = |function: &str| Some(Frame { function: function.into(), ..Frame::default() });
        match slot {
            NATIVE_THREAD_SLOT => return named("(native thread)"),
            NO_PYTHON_FRAME_SLOT => return named("(no Python frame)"),
            TABLE_FULL_SLOT => return named("(too many functions)"),
            UNREADABLE_SLOT => return named("(unreadable stack)"),
            SWITCHING_SLOT => return named("(switching stacks)"),
            AWAIT_SLOT => return named("(await)"),
            AWAIT_FUTURE_SLOT => return named("(await Future)"),
            AWAIT_TASK_SLOT => return named("(await Task)"),
            LOOP_BUSY_SLOT => return named("(event loop busy)"),
            COLLECTING_SLOT => return named("(garbage collection)"),
            _ => {}
        }
        let generation = id >> 56;
        let half = (generation & 1) as usize;
        if u64::from(self.generations[half] & 0xFF) != generation {
            return None;
        }
        let definition = self.definitions[half].get(&(slot as u32))?;
        #[expect(clippy::cast_possible_truncation, reason = "the lower 32 bits are the instruction")]
        let index = id as u32;
        let line = match mode {
            // Before the first instruction, and where the compiler made code for no line, it is the `def` line.
            LineMode::LastInstruction => {
                line_of(lines, &definition.table, definition.first_line, index).unwrap_or(definition.first_line)
            }
            LineMode::First => definition.first_line,
            LineMode::NoLine => 0,
        };
        Some(Frame {
            function: Arc::clone(&definition.function),
            file: Arc::clone(&definition.file),
            line,
            first_line: if mode == LineMode::NoLine { 0 } else { definition.first_line },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reported_late_does_not_take_the_place_of_what_is_newer() {
        let mut resolver = Resolver::default();
        let name = |resolver: &Resolver, generation: u64, slot: u64| {
            let frame = resolver.resolve((generation << 56) | (slot << 32), LineTable::Pep657, LineMode::NoLine);
            frame.map(|frame| frame.function.to_string())
        };
        for generation in 1..=3 {
            resolver.add(&DefinitionRecord::of(generation, 7, &format!("of {generation}")));
        }
        resolver.add(&DefinitionRecord::of(1, 8, "late"));
        assert_eq!(name(&resolver, 1, 8), None);
        assert_eq!(name(&resolver, 2, 7).as_deref(), Some("of 2"));
        assert_eq!(name(&resolver, 3, 7).as_deref(), Some("of 3"));
        resolver.add(&DefinitionRecord::of(4, 9, "of 4"));
        assert_eq!(name(&resolver, 2, 7), None, "its table is used again");
        assert_eq!(name(&resolver, 4, 9).as_deref(), Some("of 4"));
    }
}
