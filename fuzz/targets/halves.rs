//! A profile that is too large is halved without loss.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| spanprof_core::fuzzing::halves(data));
