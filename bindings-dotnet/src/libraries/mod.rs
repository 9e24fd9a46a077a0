//! The native libraries of the process: where they are mapped, and what their files say.

mod call_frames;
mod elf;
mod exports;
mod files;
mod mappings;
pub(crate) mod registry;
