//! `stag ls`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Lists a folder, or the exports of a server
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag ls shm://NAME\n          stag ls -l shm://NAME/data")]
pub struct Ls {
    /// Folder or file: shm://NAME[/EXPORT/PATH]
    pub url: Url,
    /// One line for each, with mode, owner, size and time
    #[arg(short)]
    pub long: bool,
}

impl Ls {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
