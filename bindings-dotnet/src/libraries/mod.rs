//! The native libraries of the process and its assemblies: where they are mapped, and what their files say.

mod assemblies;
mod call_frames;
mod elf;
mod exports;
mod files;
mod hijack;
mod mappings;
pub(crate) mod registry;
