//! Makes the files of a run on a scratch export, and removes them. Nothing else there is changed.

use std::ffi::{OsStr, OsString};

use stag_conform::files::{LINK_TARGET, ScratchFiles, content};
use stag_server::failure::CommandFailure;
use stag_server::remote::{Remote, RemoteError, RemoteHandle, credentials};
use stag_server::seed::random_seed;
use stag_server::url::Url;

/// A folder of this run's own, with files and a symbolic link in it. Removed when dropped.
pub(super) struct ScratchFolder {
    url: Url,
    handle: RemoteHandle,
}

/// The names in the folder.
const NAMES: [&str; 3] = ["file", "target", "link"];

impl ScratchFolder {
    /// Makes it in the export or folder that `url` names.
    ///
    /// # Errors
    ///
    /// The server is not there, or does not let this user make files there.
    pub(super) fn make(url: &Url) -> Result<(ScratchFolder, ScratchFiles), CommandFailure> {
        let at = |error: RemoteError| error.at(url);
        let mut remote = Remote::connect_with(url, false)?;
        let export = remote.find(&url.path).map_err(at)?.handle;
        let name = OsString::from(format!("stag-conform-{:08x}", random_seed()));
        let handle = remote.make_folder(&export, &name, 0o700).map_err(at)?.handle;
        let folder = ScratchFolder { url: url.join(&name), handle };
        let [file, target, link] = NAMES.map(OsStr::new);
        let handle = &folder.handle;
        let file = remote.create(handle, file, 0o600).map_err(at)?.handle;
        remote.write(&file, 0, &content()).map_err(at)?;
        let target = remote.create(handle, target, 0o600).map_err(at)?.handle;
        remote.make_link(handle, link, LINK_TARGET).map_err(at)?;
        let link = remote.child(handle, link).map_err(at)?.handle;
        let credential = credentials::encode();
        let files = ScratchFiles { folder: handle.clone(), file, target, link, credential };
        Ok((folder, files))
    }

    fn remove(&self) -> Result<(), CommandFailure> {
        let at = |error: RemoteError| error.at(&self.url);
        let mut remote = Remote::connect_with(&self.url, false)?;
        let (name, parent) = remote.folder_of(&self.url)?;
        for name in NAMES {
            match remote.remove(&self.handle, OsStr::new(name)) {
                Err(error) if !error.is_absent() => return Err(at(error)),
                _ => {}
            }
        }
        remote.remove_folder(&parent, name).map_err(at)
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if let Err(failure) = self.remove() {
            eprintln!("stag: {failure}; remove that folder, it is of this run");
        }
    }
}
