//! `stag mv`.

use clap::Args;
use serde::Serialize;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::remote::Remote;
use stag_server::url::Url;

/// Renames or moves a file within a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag mv shm://NAME/data/a shm://NAME/data/b\n          stag mv shm://NAME/data/a shm://NAME/data/dir"
)]
pub struct Mv {
    /// What to move: shm://NAME/EXPORT/PATH
    pub(crate) from: Url,
    /// New name; if it is a folder, the file moves into it
    to: Url,
}

/// The object of `--json`.
#[derive(Serialize)]
struct Moved {
    from: String,
    to: String,
}

impl Mv {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let (from, to) = (&self.from, &self.to);
        if from.server() != to.server() {
            return Err(CommandFailure::usage(format_args!(
                "{to}: is another server than {from}'s; use cp and rm"
            )));
        }
        let mut remote = Remote::connect(from)?;
        let to = match remote.find(&to.path) {
            Ok(node) if node.is_folder() => to.join(from.name().unwrap_or_default()),
            _ => to.clone(),
        };
        let (old_name, old_folder) = remote.folder_of(from)?;
        let (new_name, new_folder) = remote.folder_of(&to)?;
        remote.rename((&old_folder, old_name), (&new_folder, new_name)).map_err(|error| error.at(from))?;
        out.object(&Moved { from: from.to_string(), to: to.to_string() })
    }
}
