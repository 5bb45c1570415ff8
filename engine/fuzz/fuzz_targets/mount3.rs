//! Runs [`stag_fuzz::mount3`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::mount3(data));
