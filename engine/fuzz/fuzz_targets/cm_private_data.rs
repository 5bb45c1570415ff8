//! Runs [`stag_fuzz::cm_private_data`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::cm_private_data(data));
