//! Tells the programs which build they are: version, commit, cargo's profile, features and target.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the programs are made of: when one of these changes they are compiled anyway, so it costs nothing to ask git once more.
const SOURCES: [&str; 21] = [
    "build.rs",
    "src",
    "server/src",
    "../Cargo.lock",
    "../bench/src",
    "../hugepages/src",
    "../engine/conform/src",
    "../engine/disk/src",
    "../engine/dump/src",
    "../engine/fabric/src",
    "../engine/memory/src",
    "../engine/nfs/src",
    "../engine/proto/src",
    "../engine/rdma-core-sys/src",
    "../engine/rpc/src",
    "../engine/runtime/src",
    "../engine/shares/src",
    "../engine/state/src",
    "../engine/stores/src",
    "../engine/vfs/src",
    "../engine/wire/src",
];

fn main() {
    for source in SOURCES.into_iter().filter(|source| Path::new(source).exists()) {
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rerun-if-env-changed=STAG_COMMIT");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    // TARGET/PROFILE/build/PACKAGE/out. The variable PROFILE says `release` for every profile that inherits from it.
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let profile = out.ancestors().nth(3).and_then(Path::file_name).unwrap_or_default().display();
    println!("cargo::rustc-env=STAG_BUILD_PROFILE={profile}");
    let commit = env::var("STAG_COMMIT").ok().or_else(commit).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=STAG_BUILD_COMMIT={commit}");
    let features: Vec<&str> = [("CARGO_FEATURE_HWLOC", "hwloc")]
        .iter()
        .filter(|(set, _)| env::var_os(set).is_some())
        .map(|(_, name)| *name)
        .collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
    println!(
        "cargo::rustc-env=STAG_VERSION={} (commit {commit}, profile {profile}, features {features}, {})",
        variable("CARGO_PKG_VERSION"),
        variable("TARGET")
    );
}

/// The commit, with a `+` if the sources differ from it. `None` outside of git, and in the repository of something else that has these
/// sources in a folder that it ignores.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|commit| !commit.is_empty())?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { commit } else { commit + "+" })
}
