//! Runs [`stag_fuzz::nlm4`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::nlm4(data));
