//! How the C library keeps memory that is free: as little as it can, as --memory is what the whole process takes.

#![allow(unsafe_code, reason = "the C library has no other way to be told")]

use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int, mallopt};

/// Heaps that threads share. By itself there are eight for each core, and each keeps what the largest request on it took.
const HEAPS: c_int = 4;
/// What is larger is a mapping of its own, which goes when it is freed. By itself this grows with each one that is freed,
/// up to 32 MiB, and large bodies then leave holes in the heaps. With much less than this, questions pay a fifth more for
/// mappings that come and go.
const OWN_MAPPING: c_int = 1 << 20;
/// What a heap may keep at its end; by itself twice the one before.
const KEPT: c_int = 4 << 20;

/// Has it give back what is free. To be called before there are other threads.
pub(crate) fn give_back() {
    for (what, value) in [(M_ARENA_MAX, HEAPS), (M_MMAP_THRESHOLD, OWN_MAPPING), (M_TRIM_THRESHOLD, KEPT)] {
        // SAFETY: it takes any two numbers; those that it does not know it refuses, and all stays as it was.
        unsafe { mallopt(what, value) };
    }
}
