//! Which build this is.

/// Version, commit, profile, features and target of this build.
pub const VERSION: &str = env!("STAG_VERSION");
