//! Copies files and trees between this machine and servers: what `stag cp`, `get` and `put` do.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

use serde::Serialize;
use stag::runtime::Clock;
use stag::wire::nfs3::FileType;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::{Handle, Remote, RemoteError};
use crate::url::{Place, Url};
use crate::values::{Size, Time};

/// Octets read before they are written: several transfers in flight at once.
const WINDOW: usize = 8 << 20;

/// Permission bits, without set-uid and the like.
const MODE_MASK: u32 = 0o777;

/// What was copied; the object of `--json`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Copied {
    /// Files.
    pub files: u64,
    /// Folders made.
    pub folders: u64,
    /// Symbolic links.
    pub links: u64,
    /// Left out: neither file, folder nor symbolic link.
    pub skipped: u64,
    /// Octets of files.
    pub bytes: u64,
    /// Time it took.
    pub seconds: f64,
}

/// What is at a place.
enum Kind {
    Absent,
    File { mode: u32 },
    Folder { mode: u32 },
    Link,
    Other,
}

/// Copies `source` to `target`, or into it if that is a folder, and tells how much it was.
pub fn copy(source: &Place, target: &Place, recursive: bool, out: &mut Output) -> Result<(), Failure> {
    let clock = Clock::start_system();
    let mut copier = Copier::default();
    copier.copy(source, target, recursive)?;
    let elapsed = clock.now();
    let copied = Copied { seconds: elapsed.as_secs_f64(), ..copier.copied };
    out.object(&copied)?;
    if recursive {
        let Copied { files, folders, links, skipped, bytes, .. } = copied;
        let bytes = Size(bytes);
        out.line(format_args!(
            "{files} files, {folders} folders, {links} links, {bytes} in {}",
            Time(elapsed)
        ))?;
        if skipped > 0 {
            out.line(format_args!("{skipped} left out: neither files, folders nor symbolic links"))?;
        }
    }
    Ok(())
}

/// The connections of one command, and its count.
#[derive(Default)]
struct Copier {
    remotes: Vec<(Url, Remote)>,
    copied: Copied,
    buffer: Vec<u8>,
    /// Inside a tree, whose names the source chose: what is there already may be a link to elsewhere, which
    /// must not be followed.
    nested: bool,
}

impl Copier {
    fn copy(&mut self, source: &Place, target: &Place, recursive: bool) -> Result<(), Failure> {
        let kind = self.kind(source, true)?;
        let target = match self.kind(target, true)? {
            Kind::Folder { .. } => match source.name() {
                Some(name) => target.join(name),
                None => target.clone(),
            },
            _ => target.clone(),
        };
        match kind {
            Kind::Absent => return Err(Failure::run(format_args!("{source}: no such file"))),
            Kind::Other => {
                let what = "is neither a file nor a folder nor a symbolic link";
                return Err(Failure::run(format_args!("{source}: {what}")));
            }
            Kind::File { .. } | Kind::Folder { .. } | Kind::Link => {}
        }
        if let Kind::Folder { .. } = kind {
            if !recursive {
                return Err(Failure::run(format_args!("{source}: is a folder; -r copies it")));
            }
            if let (Place::Remote(source), Place::Remote(target)) = (source, &target)
                && source.server() == target.server()
                && target.path.starts_with(&source.path)
            {
                return Err(Failure::run(format_args!("{target}: lies in {source}, which is to be copied")));
            }
        }
        if *source == target {
            return Err(Failure::run(format_args!("{source}: source and target are the same")));
        }
        self.object(source, &target, &kind)?;
        self.nested = true;
        // A stack instead of recursion: a tree may be as deep as it likes.
        let mut folders = vec![(source.clone(), target)];
        if !matches!(kind, Kind::Folder { .. }) {
            folders.clear();
        }
        while let Some((source, target)) = folders.pop() {
            for name in self.names(&source)? {
                let (source, target) = (source.join(&name), target.join(&name));
                let kind = self.kind(&source, false)?;
                self.object(&source, &target, &kind)?;
                if let Kind::Folder { .. } = kind {
                    folders.push((source, target));
                }
            }
        }
        Ok(())
    }

    /// Copies one object; of a folder, itself alone.
    fn object(&mut self, source: &Place, target: &Place, kind: &Kind) -> Result<(), Failure> {
        match *kind {
            // It was there when the folder was listed: somebody was faster.
            Kind::Absent => {}
            Kind::File { mode } => {
                self.copied.bytes += self.file(source, target, mode)?;
                self.copied.files += 1;
            }
            Kind::Folder { mode } => {
                self.make_folder(target, mode)?;
                self.copied.folders += 1;
            }
            Kind::Link => {
                let held = self.read_link(source)?;
                self.make_link(target, &held)?;
                self.copied.links += 1;
            }
            Kind::Other => self.copied.skipped += 1,
        }
        Ok(())
    }

    fn remote(&mut self, url: &Url) -> Result<&mut Remote, Failure> {
        let server = url.server();
        let index = match self.remotes.iter().position(|(known, _)| *known == server) {
            Some(index) => index,
            None => {
                let remote = Remote::connect(&server)?;
                self.remotes.push((server, remote));
                self.remotes.len() - 1
            }
        };
        Ok(&mut self.remotes[index].1)
    }

    /// What is at a place; a symbolic link of this machine is followed if so wished.
    fn kind(&mut self, place: &Place, follow: bool) -> Result<Kind, Failure> {
        match place {
            Place::Local(path) => {
                let metadata = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
                let metadata = match metadata {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kind::Absent),
                    metadata => metadata.map_err(|error| local(path, &error))?,
                };
                let mode = metadata.mode() & MODE_MASK;
                let file_type = metadata.file_type();
                Ok(match () {
                    () if file_type.is_file() => Kind::File { mode },
                    () if file_type.is_dir() => Kind::Folder { mode },
                    () if file_type.is_symlink() => Kind::Link,
                    () => Kind::Other,
                })
            }
            Place::Remote(url) => {
                let attributes = match self.remote(url)?.find(&url.path) {
                    Err(error) if error.is_absent() => return Ok(Kind::Absent),
                    node => node.map_err(|error| error.at(url))?.attributes,
                };
                let mode = attributes.mode & MODE_MASK;
                Ok(match attributes.file_type {
                    FileType::Regular => Kind::File { mode },
                    FileType::Directory => Kind::Folder { mode },
                    FileType::Symlink => Kind::Link,
                    _ => Kind::Other,
                })
            }
        }
    }

    fn names(&mut self, folder: &Place) -> Result<Vec<OsString>, Failure> {
        match folder {
            Place::Local(path) => {
                let entries = fs::read_dir(path).map_err(|error| local(path, &error))?;
                let names = entries.map(|entry| Ok(entry?.file_name()));
                names.collect::<io::Result<_>>().map_err(|error| local(path, &error))
            }
            Place::Remote(url) => {
                let remote = self.remote(url)?;
                let node = remote.find(&url.path).map_err(|error| error.at(url))?;
                let entries = remote.list(&node.handle).map_err(|error| error.at(url))?;
                Ok(entries.into_iter().map(|entry| entry.name).collect())
            }
        }
    }

    fn make_folder(&mut self, target: &Place, mode: u32) -> Result<(), Failure> {
        match target {
            Place::Local(path) => {
                // The owner can always go on to fill it.
                match fs::DirBuilder::new().mode(mode | 0o700).create(path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_folder(path) => Ok(()),
                    made => made.map_err(|error| local(path, &error)),
                }
            }
            Place::Remote(url) => {
                let remote = self.remote(url)?;
                let (name, folder) = remote.folder_of(url)?;
                match remote.make_folder(&folder, name, mode | 0o700) {
                    Err(RemoteError::Status(stag::wire::nfs3::Status::Exist))
                        if remote.child(&folder, name).is_ok_and(|node| node.is_folder()) =>
                    {
                        Ok(())
                    }
                    made => made.map(drop).map_err(|error| error.at(url)),
                }
            }
        }
    }

    fn read_link(&mut self, link: &Place) -> Result<OsString, Failure> {
        match link {
            Place::Local(path) => fs::read_link(path).map(Into::into).map_err(|error| local(path, &error)),
            Place::Remote(url) => {
                let remote = self.remote(url)?;
                let node = remote.find(&url.path).map_err(|error| error.at(url))?;
                remote.read_link(&node.handle).map(OsString::from_vec).map_err(|error| error.at(url))
            }
        }
    }

    fn make_link(&mut self, target: &Place, held: &OsStr) -> Result<(), Failure> {
        match target {
            Place::Local(path) => symlink(held, path).map_err(|error| local(path, &error)),
            Place::Remote(url) => {
                let remote = self.remote(url)?;
                let (name, folder) = remote.folder_of(url)?;
                let made = remote.make_link(&folder, name, held.as_bytes());
                made.map(drop).map_err(|error| error.at(url))
            }
        }
    }

    fn file(&mut self, source: &Place, target: &Place, mode: u32) -> Result<u64, Failure> {
        let mut reader = self.open(source)?;
        let mut writer = self.create(target, mode)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(WINDOW, 0);
        let mut offset = 0;
        loop {
            let len = self.read(source, &mut reader, offset, &mut buffer)?;
            self.write(target, &mut writer, offset, &buffer[..len])?;
            offset += len as u64;
            // A window that is not full was the last: one Call less for each small file.
            if len < buffer.len() {
                break;
            }
        }
        self.buffer = buffer;
        Ok(offset)
    }

    fn open(&mut self, source: &Place) -> Result<End, Failure> {
        match source {
            Place::Local(path) => File::open(path).map(End::Local).map_err(|error| local(path, &error)),
            Place::Remote(url) => {
                let node = self.remote(url)?.find(&url.path).map_err(|error| error.at(url))?;
                Ok(End::Remote(node.handle))
            }
        }
    }

    fn create(&mut self, target: &Place, mode: u32) -> Result<End, Failure> {
        match target {
            Place::Local(path) => {
                let mut options = File::options();
                options.write(true).create(true).truncate(true).mode(mode);
                if self.nested {
                    options.custom_flags(libc::O_NOFOLLOW);
                }
                options.open(path).map(End::Local).map_err(|error| local(path, &error))
            }
            Place::Remote(url) => {
                let remote = self.remote(url)?;
                let (name, folder) = remote.folder_of(url)?;
                let node = remote.create(&folder, name, mode).map_err(|error| error.at(url))?;
                Ok(End::Remote(node.handle))
            }
        }
    }

    /// Fills `buffer`, or as much of it as there is.
    fn read(
        &mut self,
        source: &Place,
        end: &mut End,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Failure> {
        match (source, end) {
            (Place::Remote(url), End::Remote(handle)) => {
                self.remote(url)?.read(handle, offset, buffer).map_err(|error| error.at(url))
            }
            (_, End::Local(file)) => {
                read_full(file, buffer).map_err(|error| Failure::run(format_args!("{source}: {error}")))
            }
            _ => unreachable!("what was opened at {source} is of another kind"),
        }
    }

    fn write(&mut self, target: &Place, end: &mut End, offset: u64, data: &[u8]) -> Result<(), Failure> {
        match (target, end) {
            (Place::Remote(url), End::Remote(handle)) => {
                self.remote(url)?.write(handle, offset, data).map_err(|error| error.at(url))
            }
            (_, End::Local(file)) => {
                file.write_all(data).map_err(|error| Failure::run(format_args!("{target}: {error}")))
            }
            _ => unreachable!("what was made at {target} is of another kind"),
        }
    }
}

/// An open file.
enum End {
    Local(File),
    Remote(Handle),
}

/// Reads until `buffer` is full or the source ends.
pub fn read_full(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match source.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// Whether it is a folder itself, and not a link to one.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

fn local(path: &Path, error: &io::Error) -> Failure {
    Failure::run(format_args!("{}: {error}", path.display()))
}
