//! `stag stat`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Shows the attributes of a file on a server
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag stat shm://NAME/data/a\n          stag stat --json shm://NAME/data/a")]
pub struct Stat {
    /// File: shm://NAME/EXPORT/PATH
    pub url: Url,
}

impl Stat {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
