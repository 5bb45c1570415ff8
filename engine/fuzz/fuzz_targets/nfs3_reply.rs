//! Runs [`stag_fuzz::nfs3_reply`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::nfs3_reply(data));
