//! A server's files, as the commands use them: one connection, one operation after the other, data in a pipeline.
//!
//! | module | subject |
//! |---|---|
//! | `session` | every Call of NFS, for tasks that share a connection; [`Remote`] waits for the end of each |
//! | `listing` | listing of folders |
//! | `data` | reading and writing while no task runs |
//! | `mount` | MOUNT, on the connection or over TCP |
//! | `error`, `node` | why an operation failed; files, as the server names them |
//! | `transfer_limits` | how much a server gives and takes at once |
//! | `tcp` | Calls over TCP, beside the connection |
//! | `link` | one connection, over any fabric |

use std::ffi::{OsStr, OsString};
use std::rc::Rc;
use std::time::Duration;

use stag_nfs::client::{AnyOperation, ListExports, Mnt, Null, Operation};
use stag_wire::mount3;
use stag_wire::nfs3::{CreateHow, FsstatOk, Name, SetAttributes};

use crate::counters::Counters;
use crate::failure::CommandFailure;
use crate::options;
use crate::timings::Timings;
use crate::url::Url;
pub use error::RemoteError;
pub use link::explain_command;
use listing::Listing;
use mount::{Mount, Results};
pub(crate) use node::with_mode;
pub use node::{RemoteEntry, RemoteHandle, RemoteNode};
use session::Session;

pub mod credentials;
mod data;
mod error;
mod link;
pub(crate) mod listing;
mod mount;
mod node;
pub(crate) mod session;
mod tcp;
mod transfer_limits;

/// A connection to a server, while no task uses it. Clones are the same one.
#[derive(Clone)]
pub struct Remote {
    session: Session,
}

impl Session {
    /// The connection for use while no task runs.
    pub(crate) fn alone(&self) -> Remote {
        Remote { session: self.clone() }
    }
}

impl Remote {
    /// Connects.
    pub fn connect(url: &Url) -> Result<Remote, CommandFailure> {
        Remote::connect_with(url, !options::get().no_reconnect)
    }

    /// Connects; whether to do so again when the connection ends is said.
    pub fn connect_with(url: &Url, reconnects: bool) -> Result<Remote, CommandFailure> {
        Ok(Remote { session: Session::connect(url, reconnects, Rc::default())? })
    }

    /// How long the NFS Calls took.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.session.inner.borrow().link.timings().clone()
    }

    /// What this side of the connection counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.session.inner.borrow().link.counters()
    }

    /// The credits that the server granted last.
    #[must_use]
    pub fn credits_granted(&self) -> u32 {
        self.session.inner.borrow().link.credits_granted()
    }

    /// The longest inline Call that both sides agreed on, in octets.
    #[must_use]
    pub fn inline_threshold(&self) -> u32 {
        self.session.inner.borrow().link.inline_threshold()
    }

    /// Whether a Call failed in a way in which all others will: no connection, no answer, no such program.
    #[must_use]
    pub fn is_useless(&self) -> bool {
        self.session.is_useless()
    }

    /// Makes a NULL Call, and says how long it took.
    pub fn null(&mut self) -> Result<Duration, RemoteError> {
        let link = &mut self.session.inner.borrow_mut().link;
        let finished = link.call(&AnyOperation::new(&Null))?;
        Ok(link.time(&finished))
    }

    /// The paths of the exports.
    pub fn exports(&mut self) -> Result<Vec<String>, RemoteError> {
        let results = self.mount_call(&ListExports)?;
        let exports = results.reply::<ListExports>()?;
        let paths = exports.into_iter().map(|export| String::from_utf8_lossy(export.path.0).into_owned());
        Ok(paths.collect())
    }

    /// The exports, if a URL names the server and nothing that is in it. An export named `/` is in it: a URL that ends with a slash names
    /// that.
    pub fn exports_at(&mut self, url: &Url) -> Result<Option<Vec<String>>, CommandFailure> {
        if !url.path.is_empty() {
            return Ok(None);
        }
        let exports = self.exports().map_err(|error| error.at(url))?;
        Ok(Some(exports).filter(|exports| !url.is_root || !exports.iter().any(|export| export == "/")))
    }

    /// Finds the file at these names, the first of which are an export's.
    pub fn find(&mut self, names: &[OsString]) -> Result<RemoteNode, RemoteError> {
        let (mut handle, depth) = self.root(names)?;
        let mut attributes = None;
        for name in &names[depth..] {
            let node = self.child(&handle, name)?;
            (handle, attributes) = (node.handle, Some(node.attributes));
        }
        self.session.wait_for(self.session.node(handle, attributes))
    }

    /// The handle of the export that these names lead into, and how many of them are the export's.
    fn root(&mut self, names: &[OsString]) -> Result<(RemoteHandle, usize), RemoteError> {
        let is_in = |(export, _): &&(Vec<OsString>, RemoteHandle)| names.starts_with(export);
        if let Some((export, handle)) = self.session.inner.borrow().mounted.iter().find(is_in) {
            return Ok((handle.clone(), export.len()));
        }
        let exports = self.exports()?;
        let split = |path: &String| -> Vec<OsString> {
            path.split('/').filter(|name| !name.is_empty()).map(Into::into).collect()
        };
        // An export may lie in another one: the longest path is meant.
        let found = exports.iter().filter(|path| names.starts_with(&split(path)));
        let Some(path) = found.max_by_key(|path| split(path).len()) else {
            let exports = exports.join(", ");
            return Err(RemoteError::Broken(format!("is in no export; the server has: {exports}")));
        };
        let arguments = Mnt(mount3::PathArguments { path: Name(path.as_bytes()) });
        let results = self.mount_call(&arguments)?;
        let ok = match (results.reply::<Mnt<'_>>()?, &self.session.inner.borrow().mount) {
            (Ok(ok), _) => ok,
            (Err(status), Some(mount)) => return Err(mount.refusal(path, status)),
            (Err(_), None) => return Err(RemoteError::senseless("MNT")),
        };
        let (export, handle) = (split(path), ok.handle.0.to_vec());
        let depth = export.len();
        let info = self.session.wait_for(self.session.fsinfo(&handle))?;
        let inner = &mut *self.session.inner.borrow_mut();
        inner.limits = inner.limits.with(info);
        inner.mounted.push((export, handle.clone()));
        inner.mounted.sort_by_key(|(export, _)| std::cmp::Reverse(export.len()));
        Ok((handle, depth))
    }

    /// Makes a MOUNT Call, wherever that is served.
    fn mount_call<O: Operation>(&mut self, operation: &O) -> Result<Results, RemoteError> {
        let inner = &mut *self.session.inner.borrow_mut();
        let mount = match &mut inner.mount {
            Some(mount) => mount,
            mount @ None => mount.insert(Mount::find(&mut *inner.link, &inner.server)?),
        };
        mount.call(&mut *inner.link, operation)
    }

    /// The last name of a URL, and the folder that it is in.
    pub fn folder_of<'u>(&mut self, url: &'u Url) -> Result<(&'u OsStr, RemoteHandle), CommandFailure> {
        let Some(name) = url.name() else {
            return Err(CommandFailure::run(format_args!("{url}: names a server; add an export and a path")));
        };
        let parent = url.parent();
        match self.find(&parent.path) {
            Ok(folder) => Ok((name, folder.handle)),
            Err(_) if self.query_export(&url.path) => Err(CommandFailure::run(format_args!(
                "{url}: is an export; clients can neither make, move nor remove it"
            ))),
            Err(error) => Err(error.at(&parent)),
        }
    }

    /// Whether these names are those of an export.
    fn query_export(&mut self, names: &[OsString]) -> bool {
        let exports = self.exports().unwrap_or_default();
        exports.iter().any(|path| path.split('/').filter(|name| !name.is_empty()).eq(names.iter()))
    }

    /// The file of that name in a folder.
    pub fn child(&mut self, folder: &RemoteHandle, name: &OsStr) -> Result<RemoteNode, RemoteError> {
        self.session.wait_for(self.session.child(folder, name))
    }

    /// Lists a folder, without `.` and `..`, in the server's order.
    pub fn list(&mut self, folder: &RemoteHandle) -> Result<Vec<RemoteEntry>, RemoteError> {
        self.session.wait_for(async {
            let (mut entries, mut listing) = (Vec::new(), Listing::default());
            while !listing.is_over {
                entries.extend(self.session.list(folder, &mut listing).await?);
            }
            Ok(entries)
        })
    }

    /// Reads from `offset` into `buffer`, and returns how much of it was filled: all, or up to the file's end.
    pub fn read(
        &mut self,
        file: &RemoteHandle,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, RemoteError> {
        data::read(&self.session, file, offset, buffer)
    }

    /// Writes all of `data` at `offset`.
    pub fn write(&mut self, file: &RemoteHandle, offset: u64, data: &[u8]) -> Result<(), RemoteError> {
        data::write(&self.session, file, offset, data)
    }

    /// Makes an empty file, or empties the one that is there.
    pub fn create(
        &mut self,
        folder: &RemoteHandle,
        name: &OsStr,
        mode: u32,
    ) -> Result<RemoteNode, RemoteError> {
        let how = CreateHow::Unchecked(SetAttributes { size: Some(0), ..with_mode(mode) });
        self.session.wait_for(self.session.create(folder, name, how))
    }

    /// Makes a folder.
    pub fn make_folder(
        &mut self,
        folder: &RemoteHandle,
        name: &OsStr,
        mode: u32,
    ) -> Result<RemoteNode, RemoteError> {
        self.session.wait_for(self.session.make_folder(folder, name, mode))
    }

    /// Makes a symbolic link that holds `target`.
    pub fn make_link(
        &mut self,
        folder: &RemoteHandle,
        name: &OsStr,
        target: &[u8],
    ) -> Result<RemoteNode, RemoteError> {
        self.session.wait_for(self.session.make_link(folder, name, target))
    }

    /// What a symbolic link holds.
    pub fn read_link(&mut self, link: &RemoteHandle) -> Result<Vec<u8>, RemoteError> {
        self.session.wait_for(self.session.read_link(link))
    }

    /// Removes a name of anything but a folder.
    pub fn remove(&mut self, folder: &RemoteHandle, name: &OsStr) -> Result<(), RemoteError> {
        self.session.wait_for(self.session.remove(folder, name))
    }

    /// Removes an empty folder.
    pub fn remove_folder(&mut self, folder: &RemoteHandle, name: &OsStr) -> Result<(), RemoteError> {
        self.session.wait_for(self.session.remove_folder(folder, name))
    }

    /// Gives a file another name or folder.
    pub fn rename(
        &mut self,
        from: (&RemoteHandle, &OsStr),
        to: (&RemoteHandle, &OsStr),
    ) -> Result<(), RemoteError> {
        self.session.wait_for(self.session.rename(from, to))
    }

    /// Space and objects of the export that holds the file.
    pub fn space(&mut self, file: &RemoteHandle) -> Result<FsstatOk, RemoteError> {
        self.session.wait_for(self.session.space(file))
    }
}
