//! Runs [`stag_fuzz::rpcrdma2_message`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::rpcrdma2_message(data));
