//! A server's files, as the commands use them: one connection, one operation after the other, data in a pipeline.
//!
//! | module | subject |
//! |---|---|
//! | `session` | every Call of NFS, for tasks that share a connection; [`Remote`] waits for the end of each |
//! | `listing` | listing of folders |
//! | `data` | reading and writing while no task runs |
//! | `mount` | MOUNT, on the connection or over TCP |
//! | `link` | one connection, over any fabric |

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::geteuid;
use stag_nfs::client::{AnyOperation, ClientError, ListExports, Mnt, Null, Operation};
use stag_wire::mount3;
use stag_wire::nfs3::{
    Attributes, CreateHow, DirectoryName, Failure as Failed, FileType, FsstatOk, Handle as WireHandle, Name,
    ProcedureResults, SetAttributes, Status,
};

use crate::counters::Counters;
use crate::failure::CommandFailure;
use crate::options;
use crate::timings::Timings;
use crate::url::Url;
pub use link::explain_command;
use listing::Listing;
use mount::{Mount, Results};
use session::Session;

pub mod credentials;
mod data;
mod link;
pub(crate) mod listing;
mod mount;
pub(crate) mod session;

/// Why an operation on a server's file failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteError {
    /// The server's answer.
    Status(Status),
    /// A file cannot get a name there.
    Apart,
    /// The server does not have the program.
    NotServed,
    /// There was no answer, or none that makes sense; or the other end of a copy failed.
    Broken(String),
}

impl RemoteError {
    /// A Reply that makes no sense.
    fn senseless(procedure: &str) -> RemoteError {
        RemoteError::Broken(format!("the server's Reply to {procedure} is malformed"))
    }

    /// The failure of a command, about this file.
    #[must_use]
    pub fn at(self, thing: impl fmt::Display) -> CommandFailure {
        CommandFailure::run(format_args!("{thing}: {self}"))
    }

    /// Whether the server says that there is no such file.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        *self == RemoteError::Status(Status::NoEnt)
    }

    /// Whether a file that was there a moment ago was removed since.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, RemoteError::Status(Status::NoEnt | Status::Stale))
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteError::Status(Status::Acces) if geteuid().is_root() => f.write_str(
                "permission denied; the server may treat root as nobody: export with root_squash=no, or chown the folder",
            ),
            RemoteError::Status(status) => f.write_str(meaning(*status)),
            RemoteError::Apart => f.write_str(
                "lies in another export, or in another file system of the same one; use cp and rm",
            ),
            RemoteError::NotServed => f.write_str("the server does not have this program"),
            RemoteError::Broken(text) => f.write_str(text),
        }
    }
}

/// A status in words; where there is a repair, with it.
fn meaning(status: Status) -> &'static str {
    match status {
        Status::Perm => "not permitted: only its owner may",
        Status::NoEnt => "no such file",
        Status::Io => "the server had an input/output error",
        Status::Acces => "permission denied",
        Status::Exist => "exists already",
        Status::XDev => {
            "another file system is mounted there, which is not exported with this one; export it as well"
        }
        Status::NotDir => "is not a folder",
        Status::IsDir => "is a folder",
        Status::Inval => "not possible with this kind of file",
        Status::FBig => "larger than the server's files may be",
        Status::NoSpc => {
            "no space left in this export (`stag df` shows it); raise its size= or the server's --memory, or remove something"
        }
        Status::RoFs => "the export is read-only",
        Status::NameTooLong => "the name is too long; the limit is 255 octets",
        Status::NotEmpty => "the folder is not empty (rm -r removes it whole)",
        Status::DQuot => "over quota",
        Status::Stale => "the file is gone",
        Status::BadHandle => "the server does not know this handle",
        Status::NotSupp => "not supported by the server",
        Status::Jukebox => "the server wants us to try again later",
        _ => "the server refuses it",
    }
}

/// The server's name for a file.
pub type RemoteHandle = Vec<u8>;

/// A file of the server.
#[derive(Clone, Debug)]
pub struct RemoteNode {
    /// The server's name for it.
    pub handle: RemoteHandle,
    /// What it is.
    pub attributes: Attributes,
}

impl RemoteNode {
    /// Whether it is a folder.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.attributes.file_type == FileType::Directory
    }
}

/// A file in a listing.
#[derive(Clone, Debug)]
pub struct RemoteEntry {
    /// Its name: a single one, neither `.` nor `..`, if `node` is a file.
    pub name: OsString,
    /// The file; or why the server tells nothing of it.
    pub node: Result<RemoteNode, RemoteError>,
}

/// A connection to a server, while no task uses it. Clones are the same one.
#[derive(Clone)]
pub struct Remote {
    session: Session,
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

fn place<'a>(folder: &'a RemoteHandle, name: &'a OsStr) -> DirectoryName<'a> {
    DirectoryName { directory: WireHandle(folder), name: Name(name.as_bytes()) }
}

/// Sets the mode alone.
pub(crate) fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// The fields of a successful NFS procedure, or its status.
fn answer<T, F>(reply: Result<ProcedureResults<T, F>, ClientError>) -> Result<T, RemoteError> {
    reply?.map_err(|Failed { status, .. }| RemoteError::Status(status))
}

impl From<ClientError> for RemoteError {
    fn from(error: ClientError) -> RemoteError {
        RemoteError::Broken(error.to_string())
    }
}
