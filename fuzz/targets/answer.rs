//! What a server answers: status, body, Retry-After.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| spanprof_core::fuzzing::answer(data));
