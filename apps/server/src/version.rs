//! Which build this is: set once, when a program starts.
//!
//! The programs know their commit. If this crate did, it would be compiled again after each commit and each change of a command.

use std::sync::OnceLock;

static VERSION: OnceLock<&'static str> = OnceLock::new();

/// Sets it: version, commit, profile, features and target of the build. Only the first time counts.
pub fn set(version: &'static str) {
    let _ = VERSION.set(version);
}

/// What was set, or this package's version.
#[must_use]
pub fn get() -> &'static str {
    VERSION.get().copied().unwrap_or(env!("CARGO_PKG_VERSION"))
}
