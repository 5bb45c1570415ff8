//! `stag mkdir`.

use clap::Args;
use serde::Serialize;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::remote::Remote;
use stag_server::url::Url;

/// Makes a folder on a server
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: stag mkdir shm://NAME/data/dir\n          stag mkdir -p shm://NAME/data/a/b/c"
)]
pub struct Mkdir {
    /// The folder: shm://NAME/EXPORT/PATH
    pub(crate) url: Url,
    /// Make missing parents; accept a folder that exists
    #[arg(short, long)]
    parents: bool,
}

/// The object of `--json`.
#[derive(Serialize)]
struct Made {
    url: String,
    /// Folders made.
    folders: u32,
}

/// Permission bits of a new folder.
const MODE: u32 = 0o755;

impl Mkdir {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let mut remote = Remote::connect(&self.url)?;
        let mut missing = vec![self.url.clone()];
        if self.parents {
            missing.clear();
            let mut url = self.url.clone();
            while !url.path.is_empty() {
                match remote.find(&url.path) {
                    Ok(node) if node.is_folder() => break,
                    Ok(_) => return Err(CommandFailure::run(format_args!("{url}: exists and is no folder"))),
                    Err(error) if error.is_absent() => missing.push(url.clone()),
                    Err(error) => return Err(error.at(&url)),
                }
                url = url.parent();
            }
        }
        let folders = missing.len() as u32;
        for url in missing.iter().rev() {
            let (name, folder) = remote.folder_of(url)?;
            remote.make_folder(&folder, name, MODE).map_err(|error| error.at(url))?;
        }
        out.object(&Made { url: self.url.to_string(), folders })
    }
}
