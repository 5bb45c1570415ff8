//! `stag cat`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Writes a server's file to standard output
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag cat shm://NAME/data/notes\n          stag cat shm://NAME/data/a.tar | tar t"
)]
pub struct Cat {
    /// File: shm://NAME/EXPORT/PATH
    pub url: Url,
}

impl Cat {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
