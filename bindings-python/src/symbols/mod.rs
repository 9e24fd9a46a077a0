//! What the words of a stack mean: functions, files and lines, without the GIL.
//!
//! Handlers tell what code objects are called, once each ([`definitions`], through [`definition_ring`]); the profiler's thread keeps
//! it ([`resolver`]) and looks lines up ([`lines`]).

pub(crate) mod definition_ring;
pub(crate) mod definitions;
pub(crate) mod lines;
pub(crate) mod resolver;
