//! Settings out of any environment.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| spanprof_core::fuzzing::environment(data));
