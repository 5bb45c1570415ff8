//! Runs [`stag_fuzz::nfs4_state`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::nfs4_state(data));
