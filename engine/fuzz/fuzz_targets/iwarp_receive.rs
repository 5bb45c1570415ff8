//! Runs [`stag_fuzz::iwarp_receive`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::iwarp_receive(data));
