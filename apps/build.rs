//! Tells the programs which of cargo's profiles builds them: `stag perf` warns if it is not the fastest.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // TARGET/PROFILE/build/PACKAGE/out. The variable PROFILE says `release` for every profile that inherits from it.
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let profile = out.ancestors().nth(3).and_then(Path::file_name).unwrap_or_default();
    println!("cargo::rustc-env=STAG_BUILD_PROFILE={}", profile.display());
}
