//! Runs [`stag_fuzz::rpc_header`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::rpc_header(data));
