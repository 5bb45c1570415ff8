//! `stag rm`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Removes files from a server
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag rm shm://NAME/data/a\n          stag rm -r shm://NAME/data/dir")]
pub struct Rm {
    /// File: shm://NAME/EXPORT/PATH
    pub url: Url,
}

impl Rm {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
