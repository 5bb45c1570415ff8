//! Runs [`stag_fuzz::rpcbind`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::rpcbind(data));
