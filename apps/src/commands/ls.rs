//! `stag ls`.

use clap::Args;
use serde::Serialize;
use stag_server::attributes::{Described, LONG_UNKNOWN, long, printable};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::remote::{Remote, RemoteEntry};
use stag_server::url::Url;

/// Lists a folder, or the exports of a server
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag ls shm://NAME\n          stag ls -l shm://NAME/data")]
pub struct Ls {
    /// Folder or file: shm://NAME[/EXPORT/PATH], iwarp://HOST..., verbs://HOST...
    pub(crate) url: Url,
    /// With mode, links, owner, group, size and time (UTC)
    #[arg(short)]
    long: bool,
}

/// A line of `--json` for a server.
#[derive(Serialize)]
struct Export {
    export: String,
}

/// A line of `--json` for a file of which the server tells no more.
#[derive(Serialize)]
struct Refused {
    name: String,
    error: String,
}

impl Ls {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let mut remote = Remote::connect(&self.url)?;
        if let Some(exports) = remote.exports_at(&self.url)? {
            for export in exports {
                out.line(&export)?;
                out.object(&Export { export })?;
            }
            return Ok(());
        }
        let node = remote.find(&self.url.path).map_err(|error| error.at(&self.url))?;
        let mut entries = if node.is_folder() {
            remote.list(&node.handle).map_err(|error| error.at(&self.url))?
        } else {
            vec![RemoteEntry { name: self.url.name().unwrap_or_default().to_owned(), node: Ok(node) }]
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut result = Ok(());
        for RemoteEntry { name, node } in entries {
            let shown = printable(&name);
            match &node {
                Ok(node) if self.long => out.line(format_args!("{} {shown}", long(&node.attributes)))?,
                Ok(node) if node.is_folder() => out.line(format_args!("{shown}/"))?,
                Err(_) if self.long => out.line(format_args!("{LONG_UNKNOWN} {shown}"))?,
                _ => out.line(&shown)?,
            }
            match node {
                Ok(node) => out.object(&Described::new(name.display(), &node.attributes))?,
                Err(error) => {
                    out.object(&Refused { name: name.display().to_string(), error: error.to_string() })?;
                    out.complain(&error.at(self.url.join(&name)));
                    result = Err(CommandFailure::Told);
                }
            }
        }
        result
    }
}
