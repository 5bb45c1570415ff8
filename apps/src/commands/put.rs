//! `stag put`.

use std::path::PathBuf;

use clap::Args;
use stag_server::copy;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::url::{Place, Url};

/// Copies a file or a tree to a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag put notes shm://NAME/data\n          stag put -r ./src shm://NAME/data/src"
)]
pub struct Put {
    /// What to copy
    path: PathBuf,
    /// Target: shm://NAME/EXPORT/PATH; if it is a folder, the copy goes into it
    pub(crate) url: Url,
    #[command(flatten)]
    options: copy::CopyOptions,
}

impl Put {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let (source, target) = (Place::Local(self.path.clone()), Place::Remote(self.url.clone()));
        copy::copy(&source, &target, self.options, out)
    }
}
