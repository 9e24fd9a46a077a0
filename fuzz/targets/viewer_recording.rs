//! A recording of Java Flight Recorder, as senders of any kind write it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| spanprof::fuzzing::recording(data));
