//! `stag cp`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Copies between this machine and servers, or within a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag cp -r ./src shm://NAME/data/src\n          stag cp shm://NAME/data/a shm://OTHER/data/a"
)]
pub struct Cp {
    /// File: shm://NAME/EXPORT/PATH
    pub url: Url,
}

impl Cp {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
