//! A pprof profile, plain or gzip, as senders of any kind write it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| spanprof::fuzzing::profile(data));
