//! /ingest: the query, a line break, the body.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| spanprof::fuzzing::ingested(data));
