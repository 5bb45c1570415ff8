//! `stag get`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Fetches a file or a tree from a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag get shm://NAME/data/notes\n          stag get -r shm://NAME/data/src ./src"
)]
pub struct Get {
    /// File: shm://NAME/EXPORT/PATH
    pub url: Url,
}

impl Get {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
