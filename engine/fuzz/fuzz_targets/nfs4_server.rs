//! Runs [`stag_fuzz::nfs4_server`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::nfs4_server(data));
