//! `stag get`.

use std::path::PathBuf;

use clap::Args;
use stag_server::copy;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::url::{Place, Url};

/// Copies a file or a tree from a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag get shm://NAME/data/notes\n          stag get -r shm://NAME/data/src ./src"
)]
pub struct Get {
    /// What to copy: shm://NAME/EXPORT/PATH
    pub(crate) url: Url,
    /// Target; if it is a folder, the copy goes into it
    #[arg(default_value = ".", hide_default_value = true)]
    path: PathBuf,
    #[command(flatten)]
    options: copy::CopyOptions,
}

impl Get {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let (source, target) = (Place::Remote(self.url.clone()), Place::Local(self.path.clone()));
        copy::copy(&source, &target, self.options, out)
    }
}
