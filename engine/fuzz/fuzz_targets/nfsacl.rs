//! Runs [`stag_fuzz::nfsacl`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::nfsacl(data));
