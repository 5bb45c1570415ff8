//! Runs [`stag_fuzz::record_marking`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::record_marking(data));
