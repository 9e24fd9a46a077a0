//! The stack of the interrupted thread: what runs in the signal handler.
//!
//! [`unwind`] reads span, tags and frames, by what [`layout`] says of this interpreter: [`hamt`] looks variables up in a context,
//! [`cframe`] finds where a walk may begin, with the help of [`registers`], [`code_object`] reads what a frame runs, and [`memory`]
//! says how each of them loads.

pub(crate) mod cframe;
pub(crate) mod code_object;
pub(crate) mod hamt;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod registers;
pub(crate) mod unwind;
