//! Runs [`stag_fuzz::dump`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::dump(data));
