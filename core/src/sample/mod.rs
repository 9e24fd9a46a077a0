//! Stage 2: what is the thread executing?

mod cursor;
pub(crate) mod due;
mod elf;
pub(crate) mod frame_pointer;
pub(crate) mod frames;
mod gate;
pub(crate) mod handler;
pub(crate) mod kernel_clock;
pub(crate) mod record;
pub(crate) mod ring;
#[cfg(test)]
mod ring_model;
pub(crate) mod runtime;
pub(crate) mod safe_load;
mod shared_signal;
mod slot;
pub(crate) mod threads;
pub(crate) mod timer;
pub(crate) mod waits;
