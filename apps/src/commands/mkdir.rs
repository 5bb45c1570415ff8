//! `stag mkdir`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Makes a folder on a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag mkdir shm://NAME/data/dir\n          stag mkdir -p shm://NAME/data/a/b/c"
)]
pub struct Mkdir {
    /// File: shm://NAME/EXPORT/PATH
    pub url: Url,
}

impl Mkdir {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
