//! Runs [`stag_fuzz::nsm`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::nsm(data));
