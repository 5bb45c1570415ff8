//! `stag stat`.

use clap::Args;
use stag_server::attributes::{Described, Utc, kind, mode};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::remote::Remote;
use stag_server::url::Url;

/// Shows the attributes of a file on a server
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag stat shm://NAME/data/a\n          stag stat --json shm://NAME/data/a")]
pub struct Stat {
    /// The file: shm://NAME/EXPORT/PATH
    pub(crate) url: Url,
}

impl Stat {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let mut remote = Remote::connect(&self.url)?;
        let node = remote.find(&self.url.path).map_err(|error| error.at(&self.url))?;
        let attributes = node.attributes;
        out.object(&Described::new(&self.url, &attributes))?;
        out.line(format_args!("{}", self.url))?;
        out.line(format_args!("    kind  {}", kind(attributes.file_type).0))?;
        out.line(format_args!("    size  {} bytes, {} used", attributes.size, attributes.used))?;
        out.line(format_args!("    mode  {:04o} {}", attributes.mode & 0o7777, mode(&attributes)))?;
        out.line(format_args!("   owner  uid {}, gid {}", attributes.uid, attributes.gid))?;
        out.line(format_args!("   links  {}", attributes.nlink))?;
        out.line(format_args!("  fileid  {} in file system {:#x}", attributes.fileid, attributes.fsid))?;
        out.line(format_args!("accessed  {}", Utc(attributes.atime)))?;
        out.line(format_args!("modified  {}", Utc(attributes.mtime)))?;
        out.line(format_args!(" changed  {}", Utc(attributes.ctime)))
    }
}
