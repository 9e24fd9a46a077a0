//! Requests of Push and OTLP, in protobuf and JSON.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| spanprof::fuzzing::request(data));
