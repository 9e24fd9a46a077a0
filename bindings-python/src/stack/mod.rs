//! What runs in the signal handler: span, tags and stack of the interrupted thread. Nothing here knows Python's C API but the
//! functions that [`interpreter`] and [`collection`] list.
//! One system call, `rt_sigprocmask` with an operation that it does not know, tells whether memory is mapped where [`chunk`] must ask.
//!
//! [`layout`] says where the interpreter keeps what is read, [`memory`] how it is read. [`context`] finds span and tags by looking
//! variables up ([`hamt`]). [`unwind`] walks the frames: [`cframe`] and [`chunk`] find where a walk may begin, with the help of [`registers`];
//! [`code_object`] reads what a frame runs, [`code_table`] turns that into an id ([`frame_id`]) and tells through
//! [`definition_ring`] what it means. [`gil`] tells waits for the interpreter's lock from others, [`collection`]
//! whether garbage is collected.

pub(crate) mod cframe;
pub(crate) mod chunk;
pub(crate) mod code_object;
pub(crate) mod code_table;
pub(crate) mod collection;
pub(crate) mod context;
pub(crate) mod definition_ring;
pub(crate) mod frame_id;
pub(crate) mod gil;
pub(crate) mod hamt;
pub(crate) mod interpreter;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod registers;
pub(crate) mod unwind;
