//! The atomics of the two files that `core/loom` compiles with its own.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
