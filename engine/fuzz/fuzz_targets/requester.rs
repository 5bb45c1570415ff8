//! Runs [`stag_fuzz::requester`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::requester(data));
