//! `stag mv`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Renames or moves a file within a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag mv shm://NAME/data/a shm://NAME/data/b\n          stag mv shm://NAME/data/a shm://NAME/data/dir"
)]
pub struct Mv {
    /// File: shm://NAME/EXPORT/PATH
    pub url: Url,
}

impl Mv {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
