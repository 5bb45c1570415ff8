//! `stag df`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Shows the space of an export
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag df shm://NAME/data\n          stag df --json shm://NAME/data")]
pub struct Df {
    /// File: shm://NAME/EXPORT/PATH
    pub url: Url,
}

impl Df {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
