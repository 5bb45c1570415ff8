//! Runs [`stag_fuzz::nfs4_call`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::nfs4_call(data));
