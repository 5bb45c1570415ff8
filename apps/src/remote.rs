//! A server's files, as the commands use them: one connection, one Call after the other, data in a
//! pipeline.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use stag::nfs::client::{ClientError, ListExports, Mnt, Null, Operation};
use stag::wire::mount3;
use stag::wire::nfs3::{
    Attributes, CreateArguments, CreateHow, CreateReply, DirectoryName, Failure as Failed, FileType,
    FsinfoArguments, FsinfoOk, FsstatArguments, FsstatOk, GetattrArguments, Handle as WireHandle,
    LookupArguments, MkdirArguments, Name, Path, PostOpAttributes, ProcedureResults, ReaddirplusArguments,
    ReadlinkArguments, RemoveArguments, RenameArguments, RmdirArguments, SetAttributes, Status,
    SymlinkArguments, VERIFIER_LEN,
};
use stag::wire::xdr::Item;

use crate::counters::Counters;
use crate::failure::CommandFailure;
use crate::options;
use crate::timings::Timings;
use crate::url::Url;
use any::AnyLink;
use data::Limits;
use mount::{Mount, Results};

mod any;
pub(crate) mod credentials;
mod data;
mod link;
mod mount;
pub(crate) mod session;
mod tcp;

/// Why an operation on a server's file failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteError {
    /// The server's answer.
    Status(Status),
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
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteError::Status(status) => f.write_str(meaning(*status)),
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
        Status::XDev => "lies in another export; use cp and rm",
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
    /// Its name: a single one, neither `.` nor `..`.
    pub name: OsString,
    /// The file.
    pub node: RemoteNode,
}

/// A connection to a server.
pub struct Remote {
    link: AnyLink,
    /// Where it is.
    server: Url,
    /// Where MOUNT is served, when that is known.
    mount: Option<Mount>,
    /// How much the server takes and gives at once.
    limits: Limits,
    /// The exports that were mounted: the names of each, and its handle; the longest first.
    mounted: Vec<(Vec<OsString>, RemoteHandle)>,
}

/// Octets of a READDIRPLUS Reply.
const LISTING_LEN: u32 = 64 << 10;

impl Remote {
    /// Connects.
    pub fn connect(url: &Url) -> Result<Remote, CommandFailure> {
        Remote::connect_with(url, !options::get().no_reconnect)
    }

    /// Connects; whether to do so again when the connection ends is said.
    pub fn connect_with(url: &Url, reconnects: bool) -> Result<Remote, CommandFailure> {
        let server = url.server();
        let link = AnyLink::connect(&server, reconnects).map_err(|error| error.at(&server))?;
        Ok(Remote { link, server, mount: None, limits: Limits::default(), mounted: Vec::new() })
    }

    /// How long the NFS Calls took.
    #[must_use]
    pub fn timings(&self) -> &Timings {
        self.link.timings()
    }

    /// What this side of the connection counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.link.counters()
    }

    /// The credits that the server granted last.
    #[must_use]
    pub fn credits_granted(&self) -> u32 {
        self.link.credits_granted()
    }

    /// The longest inline Call that both sides agreed on, in octets.
    #[must_use]
    pub fn inline_threshold(&self) -> u32 {
        self.link.inline_threshold()
    }

    /// Makes a NULL Call, and says how long it took.
    pub fn null(&mut self) -> Result<Duration, RemoteError> {
        let finished = self.link.call(&Null)?;
        Ok(self.link.time(&finished))
    }

    /// The paths of the exports.
    pub fn exports(&mut self) -> Result<Vec<String>, RemoteError> {
        let results = self.mount_call(&ListExports)?;
        let exports = results.reply::<ListExports>()?;
        let paths = exports.into_iter().map(|export| String::from_utf8_lossy(export.path.0).into_owned());
        Ok(paths.collect())
    }

    /// Finds the file at these names, the first of which are an export's.
    pub fn find(&mut self, names: &[OsString]) -> Result<RemoteNode, RemoteError> {
        let (mut handle, depth) = self.root(names)?;
        let mut attributes = None;
        for name in &names[depth..] {
            let node = self.child(&handle, name)?;
            (handle, attributes) = (node.handle, Some(node.attributes));
        }
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.attributes(&handle)?,
        };
        Ok(RemoteNode { handle, attributes })
    }

    /// The handle of the export that these names lead into, and how many of them are the export's.
    fn root(&mut self, names: &[OsString]) -> Result<(RemoteHandle, usize), RemoteError> {
        if let Some((export, handle)) = self.mounted.iter().find(|(export, _)| names.starts_with(export)) {
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
        let ok = match (results.reply::<Mnt<'_>>()?, &self.mount) {
            (Ok(ok), _) => ok,
            (Err(status), Some(mount)) => return Err(mount.refusal(path, status)),
            (Err(_), None) => return Err(RemoteError::senseless("MNT")),
        };
        let (export, handle) = (split(path), ok.handle.0.to_vec());
        let depth = export.len();
        self.limits = self.limits.with(self.fsinfo(&handle)?);
        self.mounted.push((export, handle.clone()));
        self.mounted.sort_by_key(|(export, _)| std::cmp::Reverse(export.len()));
        Ok((handle, depth))
    }

    /// Makes a MOUNT Call, wherever that is served.
    fn mount_call<O: Operation>(&mut self, operation: &O) -> Result<Results, RemoteError> {
        let mount = match &mut self.mount {
            Some(mount) => mount,
            mount @ None => mount.insert(Mount::find(&mut self.link, &self.server)?),
        };
        mount.call(&mut self.link, operation)
    }

    /// What the server can do, for the export of this handle.
    fn fsinfo(&mut self, root: &RemoteHandle) -> Result<FsinfoOk, RemoteError> {
        let arguments = FsinfoArguments { root: WireHandle(root) };
        let finished = self.link.call(&arguments)?;
        answer(finished.reply::<FsinfoArguments<'_>>())
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

    /// The attributes of a file.
    pub fn attributes(&mut self, file: &RemoteHandle) -> Result<Attributes, RemoteError> {
        let arguments = GetattrArguments { object: WireHandle(file) };
        let finished = self.link.call(&arguments)?;
        let ok = answer(finished.reply::<GetattrArguments<'_>>())?;
        Ok(ok.attributes)
    }

    /// The file of that name in a folder.
    pub fn child(&mut self, folder: &RemoteHandle, name: &OsStr) -> Result<RemoteNode, RemoteError> {
        let arguments = LookupArguments { what: place(folder, name) };
        let finished = self.link.call(&arguments)?;
        let ok = answer(finished.reply::<LookupArguments<'_>>())?;
        self.node(ok.object.0.to_vec(), ok.attributes)
    }

    /// Lists a folder, without `.` and `..`, in the server's order.
    pub fn list(&mut self, folder: &RemoteHandle) -> Result<Vec<RemoteEntry>, RemoteError> {
        let mut listed = Vec::new();
        let (mut cookie, mut verifier) = (0, [0; VERIFIER_LEN]);
        loop {
            let directory = WireHandle(folder);
            let (dircount, maxcount) = (LISTING_LEN, LISTING_LEN);
            let arguments = ReaddirplusArguments { directory, cookie, verifier, dircount, maxcount };
            let finished = self.link.call(&arguments)?;
            let ok = answer(finished.reply::<ReaddirplusArguments<'_>>())?;
            verifier = ok.verifier;
            let before = cookie;
            for entry in ok.entries {
                cookie = entry.cookie;
                let Some(name) = file_name(entry.name.0)? else { continue };
                let node = match entry.handle {
                    Some(handle) => self.node(handle.0.to_vec(), entry.attributes)?,
                    None => self.child(folder, name)?,
                };
                listed.push(RemoteEntry { name: name.to_owned(), node });
            }
            if ok.eof {
                return Ok(listed);
            }
            if cookie == before {
                return Err(RemoteError::senseless("READDIRPLUS"));
            }
        }
    }

    /// Reads from `offset` into `buffer`, and returns how much of it was filled: all, or up to the file's end.
    pub fn read(
        &mut self,
        file: &RemoteHandle,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, RemoteError> {
        data::read(&mut self.link, self.limits, file, offset, buffer)
    }

    /// Writes all of `data` at `offset`.
    pub fn write(&mut self, file: &RemoteHandle, offset: u64, data: &[u8]) -> Result<(), RemoteError> {
        data::write(&mut self.link, self.limits, file, offset, data)
    }

    /// Makes an empty file, or empties the one that is there.
    pub fn create(
        &mut self,
        folder: &RemoteHandle,
        name: &OsStr,
        mode: u32,
    ) -> Result<RemoteNode, RemoteError> {
        let set = SetAttributes { size: Some(0), ..with_mode(mode) };
        let arguments = CreateArguments { place: place(folder, name), how: CreateHow::Unchecked(set) };
        let finished = self.link.call(&arguments)?;
        self.made(finished.reply::<CreateArguments<'_>>(), folder, name)
    }

    /// Makes a folder.
    pub fn make_folder(
        &mut self,
        folder: &RemoteHandle,
        name: &OsStr,
        mode: u32,
    ) -> Result<RemoteNode, RemoteError> {
        let arguments = MkdirArguments { place: place(folder, name), attributes: with_mode(mode) };
        let finished = self.link.call(&arguments)?;
        self.made(finished.reply::<MkdirArguments<'_>>(), folder, name)
    }

    /// Makes a symbolic link that holds `target`.
    pub fn make_link(
        &mut self,
        folder: &RemoteHandle,
        name: &OsStr,
        target: &[u8],
    ) -> Result<RemoteNode, RemoteError> {
        let (place, attributes) = (place(folder, name), with_mode(0o777));
        let arguments = SymlinkArguments { place, attributes, path: Path(Item::Inline(target)) };
        let finished = self.link.call(&arguments)?;
        self.made(finished.reply::<SymlinkArguments<'_>>(), folder, name)
    }

    /// What a symbolic link holds.
    pub fn read_link(&mut self, link: &RemoteHandle) -> Result<Vec<u8>, RemoteError> {
        let arguments = ReadlinkArguments { symlink: WireHandle(link) };
        let finished = self.link.call(&arguments)?;
        let ok = answer(finished.reply::<ReadlinkArguments<'_>>())?;
        match ok.path.0 {
            Item::Inline(path) => Ok(path.to_vec()),
            Item::Reduced { .. } => Err(RemoteError::senseless("READLINK")),
        }
    }

    /// Removes a name of anything but a folder.
    pub fn remove(&mut self, folder: &RemoteHandle, name: &OsStr) -> Result<(), RemoteError> {
        let arguments = RemoveArguments { object: place(folder, name) };
        let finished = self.link.call(&arguments)?;
        answer(finished.reply::<RemoveArguments<'_>>()).map(drop)
    }

    /// Removes an empty folder.
    pub fn remove_folder(&mut self, folder: &RemoteHandle, name: &OsStr) -> Result<(), RemoteError> {
        let arguments = RmdirArguments { object: place(folder, name) };
        let finished = self.link.call(&arguments)?;
        answer(finished.reply::<RmdirArguments<'_>>()).map(drop)
    }

    /// Gives a file another name or folder.
    pub fn rename(
        &mut self,
        from: (&RemoteHandle, &OsStr),
        to: (&RemoteHandle, &OsStr),
    ) -> Result<(), RemoteError> {
        let arguments = RenameArguments { from: place(from.0, from.1), to: place(to.0, to.1) };
        let finished = self.link.call(&arguments)?;
        answer(finished.reply::<RenameArguments<'_>>()).map(drop)
    }

    /// Space and objects of the export that holds the file.
    pub fn space(&mut self, file: &RemoteHandle) -> Result<FsstatOk, RemoteError> {
        let arguments = FsstatArguments { root: WireHandle(file) };
        let finished = self.link.call(&arguments)?;
        answer(finished.reply::<FsstatArguments<'_>>())
    }

    fn node(
        &mut self,
        handle: RemoteHandle,
        attributes: PostOpAttributes,
    ) -> Result<RemoteNode, RemoteError> {
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.attributes(&handle)?,
        };
        Ok(RemoteNode { handle, attributes })
    }

    /// The object that a CREATE, MKDIR or SYMLINK made: a server need not tell its handle.
    fn made(
        &mut self,
        reply: Result<CreateReply<'_>, ClientError>,
        folder: &RemoteHandle,
        name: &OsStr,
    ) -> Result<RemoteNode, RemoteError> {
        let ok = answer(reply)?;
        match ok.object {
            Some(handle) => self.node(handle.0.to_vec(), ok.attributes),
            None => self.child(folder, name),
        }
    }
}

/// A name of a listing; `None` for `.` and `..`.
fn file_name(octets: &[u8]) -> Result<Option<&OsStr>, RemoteError> {
    let name = OsStr::from_bytes(octets);
    if name == "." || name == ".." {
        return Ok(None);
    }
    // It may become a path of this machine: it must not lead anywhere else.
    if name.is_empty() || octets.iter().any(|octet| matches!(octet, 0 | b'/')) {
        let name = name.display();
        return Err(RemoteError::Broken(format!("lists {name:?}, which is no file's name")));
    }
    Ok(Some(name))
}

fn place<'a>(folder: &'a RemoteHandle, name: &'a OsStr) -> DirectoryName<'a> {
    DirectoryName { directory: WireHandle(folder), name: Name(name.as_bytes()) }
}

fn with_mode(mode: u32) -> SetAttributes {
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
