//! `stag cp`.

use clap::Args;
use stag_server::copy;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::url::Place;

/// Copies between this machine and servers, or within a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag cp -r ./src shm://NAME/data/src\n          stag cp shm://NAME/data/a shm://OTHER/data/a"
)]
pub struct Cp {
    /// A path, or shm://NAME/EXPORT/PATH
    pub(crate) source: Place,
    /// The same; if it is a folder, the copy goes into it
    pub(crate) target: Place,
    #[command(flatten)]
    options: copy::CopyOptions,
}

impl Cp {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        copy::copy(&self.source, &self.target, self.options, out)
    }
}
