//! Runs [`stag_fuzz::xdr_reader`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz::xdr_reader(data));
