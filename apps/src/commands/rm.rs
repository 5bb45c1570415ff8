//! `stag rm`.

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::output::Output;
use crate::remote::{Remote, RemoteHandle};
use crate::url::Url;

/// Removes files from a server
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag rm shm://NAME/data/a\n          stag rm -r shm://NAME/data/dir")]
pub struct Rm {
    /// What to remove: shm://NAME/EXPORT/PATH
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<Url>,
    /// Remove folders with everything in them
    #[arg(short, long)]
    recursive: bool,
}

/// The object of `--json`.
#[derive(Default, Serialize)]
struct Removed {
    files: u64,
    folders: u64,
}

impl Rm {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let mut removed = Removed::default();
        for url in &self.urls {
            let mut remote = Remote::connect(url)?;
            let (name, folder) = remote.folder_of(url)?;
            let node = remote.child(&folder, name).map_err(|error| error.at(url))?;
            if !node.is_folder() {
                remote.remove(&folder, name).map_err(|error| error.at(url))?;
                removed.files += 1;
            } else if self.recursive {
                empty(&mut remote, url, node.handle, &mut removed)?;
                remote.remove_folder(&folder, name).map_err(|error| error.at(url))?;
                removed.folders += 1;
            } else {
                return Err(CommandFailure::run(format_args!("{url}: is a folder; -r removes it")));
            }
        }
        out.object(&removed)
    }
}

/// A folder on the way down: its URL, its handle, and its folders that are still to be emptied.
struct Level {
    url: Url,
    handle: RemoteHandle,
    folders: Vec<(OsString, RemoteHandle)>,
}

/// Removes everything in a folder, without recursion: a tree may be as deep as it likes.
fn empty(
    remote: &mut Remote,
    url: &Url,
    handle: RemoteHandle,
    removed: &mut Removed,
) -> Result<(), CommandFailure> {
    let mut levels = vec![without_files(remote, url.clone(), handle, removed)?];
    while let Some(level) = levels.last_mut() {
        if let Some((name, handle)) = level.folders.last().cloned() {
            let url = level.url.join(&name);
            levels.push(without_files(remote, url, handle, removed)?);
            continue;
        }
        levels.pop();
        // The folder that was just emptied is the last one on its parent's list.
        if let Some(parent) = levels.last_mut()
            && let Some((name, _)) = parent.folders.pop()
        {
            let gone = remote.remove_folder(&parent.handle, &name);
            gone.map_err(|error| error.at(parent.url.join(&name)))?;
            removed.folders += 1;
        }
    }
    Ok(())
}

/// Removes what is not a folder.
fn without_files(
    remote: &mut Remote,
    url: Url,
    handle: RemoteHandle,
    removed: &mut Removed,
) -> Result<Level, CommandFailure> {
    let mut folders = Vec::new();
    for entry in remote.list(&handle).map_err(|error| error.at(&url))? {
        if entry.node.is_folder() {
            folders.push((entry.name, entry.node.handle));
            continue;
        }
        remote.remove(&handle, &entry.name).map_err(|error| error.at(url.join(&entry.name)))?;
        removed.files += 1;
    }
    Ok(Level { url, handle, folders })
}
