//! Options of `stag` that concern every connection: set once, before the command runs.

use std::sync::OnceLock;

/// How servers are connected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The TCP port of MOUNT, for URLs that do not say it.
    pub mount_port: Option<u16>,
    /// Whether a connection that ends is the end of the command.
    pub no_reconnect: bool,
}

static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Sets them. Only the first time counts.
pub fn set(options: Options) {
    let _ = OPTIONS.set(options);
}

/// What was set, or the default.
#[must_use]
pub fn get() -> Options {
    OPTIONS.get().copied().unwrap_or_default()
}
