//! `stag put`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Brings a file or a tree to a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag put notes shm://NAME/data\n          stag put -r ./src shm://NAME/data/src"
)]
pub struct Put {
    /// File: shm://NAME/EXPORT/PATH
    pub url: Url,
}

impl Put {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
