//! `stag rm`.

use std::ffi::{OsStr, OsString};

use clap::Args;
use serde::Serialize;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::remote::{Remote, RemoteEntry, RemoteHandle};
use stag_server::url::Url;

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
    /// What could not be removed, without the folders that are kept because of it.
    failed: u64,
}

impl Rm {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let mut removal = Removal { removed: Removed::default(), out };
        for url in &self.urls {
            if let Err(failure) = removal.remove(url, self.recursive) {
                removal.fail(&failure);
            }
        }
        let removed = removal.removed;
        out.object(&removed)?;
        // Each was told when it failed.
        if removed.failed > 0 { Err(CommandFailure::Told) } else { Ok(()) }
    }
}

/// A folder on the way down.
struct Level {
    url: Url,
    handle: RemoteHandle,
    /// Its folders that are still to be emptied.
    folders: Vec<(OsString, RemoteHandle)>,
    /// Something in it could not be removed, so it stays.
    is_kept: bool,
}

/// What was removed so far.
struct Removal<'o> {
    removed: Removed,
    out: &'o Output,
}

impl Removal<'_> {
    /// Tells what could not be removed.
    fn fail(&mut self, failure: &CommandFailure) {
        self.removed.failed += 1;
        self.out.complain(failure);
    }

    fn remove(&mut self, url: &Url, is_recursive: bool) -> Result<(), CommandFailure> {
        let mut remote = Remote::connect(url)?;
        let (name, folder) = remote.folder_of(url)?;
        let node = remote.child(&folder, name).map_err(|error| error.at(url))?;
        if !node.is_folder() {
            remote.remove(&folder, name).map_err(|error| error.at(url))?;
            self.removed.files += 1;
        } else if is_recursive {
            self.remove_tree(&mut remote, url, (&folder, name), node.handle)?;
        } else {
            return Err(CommandFailure::run(format_args!("{url}: is a folder; -r removes it")));
        }
        Ok(())
    }

    /// Removes a folder and as much as possible of what is in it, without recursion: a tree may be as deep as it likes.
    /// Fails if there is no connection any more.
    fn remove_tree(
        &mut self,
        remote: &mut Remote,
        url: &Url,
        place: (&RemoteHandle, &OsStr),
        handle: RemoteHandle,
    ) -> Result<(), CommandFailure> {
        let mut levels = vec![self.without_files(remote, url.clone(), handle)?];
        while let Some(level) = levels.last_mut() {
            if let Some((name, handle)) = level.folders.pop() {
                let url = level.url.join(&name);
                levels.push(self.without_files(remote, url, handle)?);
                continue;
            }
            let Some(Level { url: emptied, is_kept, .. }) = levels.pop() else { break };
            let removed = match (levels.last(), emptied.name()) {
                _ if is_kept => Err(None),
                (Some(Level { handle, .. }), Some(name)) => remote.remove_folder(handle, name).map_err(Some),
                _ => remote.remove_folder(place.0, place.1).map_err(Some),
            };
            match removed {
                Ok(()) => self.removed.folders += 1,
                Err(Some(error)) if error.is_gone() => {}
                Err(error) => {
                    if let Some(error) = error {
                        self.fail_of(remote, error.at(&emptied))?;
                    }
                    if let Some(parent) = levels.last_mut() {
                        parent.is_kept = true;
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes what is not a folder.
    fn without_files(
        &mut self,
        remote: &mut Remote,
        url: Url,
        handle: RemoteHandle,
    ) -> Result<Level, CommandFailure> {
        let mut level = Level { url, handle, folders: Vec::new(), is_kept: false };
        let entries = match remote.list(&level.handle) {
            Ok(entries) => entries,
            Err(error) if error.is_gone() => Vec::new(),
            Err(error) => {
                self.fail_of(remote, error.at(&level.url))?;
                level.is_kept = true;
                Vec::new()
            }
        };
        for RemoteEntry { name, node } in entries {
            let removed = match node {
                Ok(node) if node.is_folder() => {
                    level.folders.push((name, node.handle));
                    continue;
                }
                Ok(_) => remote.remove(&level.handle, &name),
                Err(error) => Err(error),
            };
            match removed {
                Ok(()) => self.removed.files += 1,
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    self.fail_of(remote, error.at(level.url.join(&name)))?;
                    level.is_kept = true;
                }
            }
        }
        Ok(level)
    }

    /// Tells what could not be removed, unless nothing else can be either.
    fn fail_of(&mut self, remote: &Remote, failure: CommandFailure) -> Result<(), CommandFailure> {
        if remote.is_useless() {
            return Err(failure);
        }
        self.fail(&failure);
        Ok(())
    }
}
