//! OTLP's traces and profiles in JSON.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| spanprof::fuzzing::otlp_json(data));
