//! Files that a run makes on a scratch export, and the NFS Calls on them. Nothing else there is changed.

use std::ffi::{OsStr, OsString};

use stag::wire::nfs3::{PROGRAM, VERSION};
use stag::wire::rpc::{ReplyHeader, flavor};
use stag::wire::xdr::Reader;

use super::message::Words;
use crate::failure::CommandFailure;
use crate::remote::{Remote, RemoteError, credentials};
use crate::seed::random_seed;
use crate::url::Url;

/// Octets of the file: odd, and more than any threshold that checks agree on.
pub const FILE_LEN: usize = 20_001;

/// What the symbolic link says.
pub const LINK_TARGET: &[u8] = b"nowhere-in-particular";

/// The octets of the file.
#[must_use]
pub fn content() -> Vec<u8> {
    (0..FILE_LEN).map(|index| (index * 7 + index / 251) as u8).collect()
}

/// A folder of this run's own, with a file and a symbolic link in it. Removed when dropped.
pub struct ScratchFiles {
    /// The folder's.
    url: Url,
    /// Handle of the folder.
    pub folder: Vec<u8>,
    /// Handle of a file that holds [`content`].
    pub file: Vec<u8>,
    /// Handle of a file that checks write into.
    pub target: Vec<u8>,
    /// Handle of the symbolic link.
    pub link: Vec<u8>,
    credential: Vec<u8>,
}

/// Octets of a file's attributes.
const ATTRIBUTES_LEN: usize = 84;

/// The names in the folder.
const NAMES: [&str; 3] = ["file", "target", "link"];

impl ScratchFiles {
    /// Makes them in the export or folder that `url` names.
    ///
    /// # Errors
    ///
    /// The server is not there, or does not let this user make files there.
    pub fn make(url: &Url) -> Result<ScratchFiles, CommandFailure> {
        let at = |error: RemoteError| error.at(url);
        let mut remote = Remote::connect_with(url, false)?;
        let export = remote.find(&url.path).map_err(at)?.handle;
        let name = OsString::from(format!("stag-conform-{:08x}", random_seed()));
        let folder = remote.make_folder(&export, &name, 0o700).map_err(at)?.handle;
        let mut files = ScratchFiles {
            url: url.join(&name),
            folder,
            file: Vec::new(),
            target: Vec::new(),
            link: Vec::new(),
            credential: credentials::encode(),
        };
        let [file, target, link] = NAMES.map(OsStr::new);
        files.file = remote.create(&files.folder, file, 0o600).map_err(at)?.handle;
        remote.write(&files.file, 0, &content()).map_err(at)?;
        files.target = remote.create(&files.folder, target, 0o600).map_err(at)?.handle;
        remote.make_link(&files.folder, link, LINK_TARGET).map_err(at)?;
        files.link = remote.child(&files.folder, link).map_err(at)?.handle;
        Ok(files)
    }

    fn remove(&self) -> Result<(), CommandFailure> {
        let at = |error: RemoteError| error.at(&self.url);
        let mut remote = Remote::connect_with(&self.url, false)?;
        let (name, parent) = remote.folder_of(&self.url)?;
        for name in NAMES {
            match remote.remove(&self.folder, OsStr::new(name)) {
                Err(error) if !error.is_absent() => return Err(at(error)),
                _ => {}
            }
        }
        remote.remove_folder(&parent, name).map_err(at)
    }

    /// The start of a Call of NFS version 3: the RPC header, with the credential of this process.
    #[must_use]
    pub fn call(&self, xid: u32, number: u32) -> Words {
        Words::default()
            .words(&[xid, 0, 2, PROGRAM, VERSION, number, flavor::AUTH_SYS])
            .opaque(&self.credential)
            .words(&[0, 0])
    }
}

impl Drop for ScratchFiles {
    fn drop(&mut self) {
        if let Err(failure) = self.remove() {
            eprintln!("stag: {failure}; remove that folder, it is of this run");
        }
    }
}

/// What a READ's results say, as far as the transport is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResults {
    /// NFS status.
    pub status: u32,
    /// Octets read, by the count.
    pub count: u32,
    /// Octets of the data, by its own length word.
    pub length: u32,
    /// What stands behind the length word.
    pub inline: Vec<u8>,
}

impl ReadResults {
    /// Reads the results of a READ whose data may be elsewhere. `None`: they are not so.
    #[must_use]
    pub fn of(payload: &[u8]) -> Option<ReadResults> {
        let mut reader = Reader::new(payload);
        ReplyHeader::parse(&mut reader).ok()?;
        let status = reader.u32().ok()?;
        if reader.u32().ok()? != 0 {
            reader.opaque_fixed(ATTRIBUTES_LEN).ok()?;
        }
        if status != 0 {
            return Some(ReadResults { status, count: 0, length: 0, inline: reader.rest().to_vec() });
        }
        let (count, _, length) = (reader.u32().ok()?, reader.u32().ok()?, reader.u32().ok()?);
        Some(ReadResults { status, count, length, inline: reader.rest().to_vec() })
    }
}

/// The NFS status of any Reply. `None`: there are no results.
#[must_use]
pub fn status(payload: &[u8]) -> Option<u32> {
    let mut reader = Reader::new(payload);
    ReplyHeader::parse(&mut reader).ok()?.is_success().then(|| reader.u32().ok())?
}
