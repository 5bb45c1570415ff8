//! Which build this is.

/// Version, commit, profile, features and target of this build.
pub const VERSION: &str = env!("STAG_VERSION");

/// Its version alone.
pub const PACKAGE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Its commit alone, with a `+` if the sources differed from it.
pub const COMMIT: &str = env!("STAG_BUILD_COMMIT");
