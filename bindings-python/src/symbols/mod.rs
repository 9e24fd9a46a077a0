//! What the frame ids of a stack mean: functions, files and lines, on the profiler's thread and without the GIL.
//!
//! [`definitions`] reads what handlers tell of code objects through [`definition_ring`], the [`resolver`] keeps it and looks lines up
//! ([`lines`]); [`memory_map`] is what handlers write into.

pub(crate) mod definition_ring;
pub(crate) mod definitions;
pub(crate) mod lines;
pub(crate) mod memory_map;
pub(crate) mod resolver;
