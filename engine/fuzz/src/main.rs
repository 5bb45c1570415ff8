//! Runs one of [`stag_fuzz::TARGETS`] under libFuzzer: the one that the environment variable `STAG_FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

use stag_fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("STAG_FUZZ_TARGET").expect("STAG_FUZZ_TARGET names a target");
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("STAG_FUZZ_TARGET={name}: there is no such target")).1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
