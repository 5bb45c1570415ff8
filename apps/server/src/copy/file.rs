//! The data of one file: parts in flight, holes left out, and nothing incomplete left behind.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use stag_wire::nfs3::{CreateHow, SetAttributes, Stable, Status};

use super::flight::Flight;
use super::found::{Found, Kind, MODE_MASK};
use super::halt::{Halt, local};
use super::keep;
use super::tree::{Copier, Folder, Source};
use crate::failure::CommandFailure;
use crate::remote::session::{Session, WriteState};
use crate::remote::{RemoteError, RemoteHandle, with_mode};
use crate::url::Place;

/// Parts of one file in flight.
const PARTS_MAX: usize = 4;

/// Octets that are made safe together: what a server that was restarted may ask for once more.
const WINDOW: u64 = 32 << 20;

/// Restarts of a server within one window that are taken without complaint.
const RESTARTS_MAX: usize = 5;

/// Octets of a part of a local copy, and of a look behind the end that a file had.
const PART_LEN: usize = 1 << 20;
const PROBE_LEN: usize = 64 << 10;

/// Zeros of this length become a hole, if the source has holes; otherwise only longer ones, which are not looked
/// for in order to save space, but Calls.
const HOLE_LEN: usize = 4096;
const ZEROS_LEN: usize = 64 << 10;

/// An open source.
enum Input<'i> {
    Local { path: &'i Path, file: File, size: u64, is_sparse: bool },
    Remote { place: &'i Place, session: &'i Session, handle: &'i RemoteHandle, size: u64, hole_len: usize },
}

/// An open target.
struct Target<'t> {
    place: Place,
    out: Out<'t>,
    /// It was not there before.
    is_new: bool,
    /// Owner and group that it was made with.
    owner: (u32, u32),
}

enum Out<'t> {
    /// One that is no file takes its octets in order, as a pipe does.
    Local {
        path: PathBuf,
        file: File,
        is_file: bool,
    },
    Remote {
        session: &'t Session,
        handle: RemoteHandle,
        folder: &'t RemoteHandle,
        name: OsString,
    },
}

/// What is known of a file's data so far.
#[derive(Debug, Default)]
struct Progress {
    /// Where the source ends, once that was seen.
    end: Cell<Option<u64>>,
    /// Octets that were left out.
    holes: Cell<u64>,
    /// How far was written.
    written_to: Cell<u64>,
    state: RefCell<WriteState>,
}

impl Progress {
    fn ends_at(&self, end: u64) {
        self.end.set(Some(self.end.get().map_or(end, |known| known.min(end))));
    }

    fn wrote(&self, to: u64) {
        self.written_to.set(self.written_to.get().max(to));
    }
}

impl Copier {
    /// Copies a file. Returns the handle of the copy, if it is a server's.
    pub(super) async fn file(
        &self,
        source: &Source,
        into: &Rc<Folder>,
        name: &OsStr,
        is_top: bool,
    ) -> Result<Option<RemoteHandle>, Halt> {
        let input = self.open(source)?;
        let target = self.create(source, into, name, is_top).await?;
        self.partial.borrow_mut().push(target.place.clone());
        let copied = self.copy_data(&input, &target).await;
        let copied = match copied {
            Ok(copied) => self.keep_attributes(source, &target).await.map(|()| copied),
            Err(halt) => Err(halt),
        };
        if copied.is_err() {
            self.discard(&target).await;
        }
        self.partial.borrow_mut().retain(|place| *place != target.place);
        let (len, holes) = copied?;
        let mut total = self.copied.borrow_mut();
        total.files += 1;
        total.bytes += len;
        total.hole_bytes += holes;
        self.progress.files(total.files);
        Ok(match target.out {
            Out::Local { .. } => None,
            Out::Remote { handle, .. } => Some(handle),
        })
    }

    fn open<'i>(&'i self, source: &'i Source) -> Result<Input<'i>, Halt> {
        match (&source.place, &source.handle, self.source.session()) {
            (Place::Local(path), ..) => {
                let opened =
                    File::open(path).and_then(|file| Ok((Found::of_metadata(&file.metadata()?), file)));
                let (found, file) = opened.map_err(|error| local(path, &error))?;
                Ok(Input::Local { path, file, size: found.size, is_sparse: found.is_sparse })
            }
            (place, Some(handle), Some(session)) => {
                let Found { size, is_sparse, .. } = source.found;
                let hole_len = if is_sparse { HOLE_LEN } else { ZEROS_LEN };
                Ok(Input::Remote { place, session, handle, size, hole_len })
            }
            _ => unreachable!("a server's files have handles"),
        }
    }

    /// Makes the target, or empties the one that is there.
    async fn create<'t>(
        &'t self,
        source: &Source,
        into: &'t Folder,
        name: &OsStr,
        is_top: bool,
    ) -> Result<Target<'t>, Halt> {
        let place = into.place.join(name);
        // Until its owner is the right one, only we may read a copy that keeps the owner.
        let mask = if self.options.preserve { 0o700 } else { MODE_MASK };
        let mode = source.found.mode & mask;
        let same = || CommandFailure::run(format_args!("{}: source and target are the same", source.place));
        match (&place, self.target.session(), &into.handle) {
            (Place::Local(path), ..) => {
                let path = path.clone();
                let failed = |error: &io::Error| Halt::from(local(&path, error));
                let new = File::options().write(true).create_new(true).mode(mode).open(&path);
                let (file, is_new) = match new {
                    Ok(file) => (file, true),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        let there = Found::local(&path, is_top).map_err(|error| failed(&error))?;
                        if self.source.session().is_none()
                            && there.is_some_and(|there| there.id == source.found.id)
                        {
                            return Err(same().into());
                        }
                        if !is_top && there.is_some_and(|there| matches!(there.kind, Kind::Other(_))) {
                            return Err(failed(&error));
                        }
                        let mut options = File::options();
                        options.write(true).truncate(true);
                        if !is_top {
                            // A name that the source chose must not lead out of the tree.
                            options.custom_flags(libc::O_NOFOLLOW);
                        }
                        (options.open(&path).map_err(|error| failed(&error))?, false)
                    }
                    Err(error) => return Err(failed(&error)),
                };
                let metadata = file.metadata().map_err(|error| failed(&error))?;
                let found = Found::of_metadata(&metadata);
                let out = Out::Local { path, file, is_file: metadata.is_file() };
                Ok(Target { place, out, is_new, owner: (found.uid, found.gid) })
            }
            (_, Some(session), Some(folder)) => {
                let (node, is_new) = match session
                    .create(folder, name, CreateHow::Guarded(with_mode(mode)))
                    .await
                {
                    Ok(node) => (node, true),
                    Err(error @ RemoteError::Status(Status::Exist | Status::Acces | Status::Perm)) => {
                        // It may be there, in a folder where nothing can be made.
                        let Ok(node) = session.child(folder, name).await else {
                            return Err(error.at(&place).into());
                        };
                        let there = Found::of_attributes(&node.attributes);
                        match there.kind {
                            Kind::File => {}
                            Kind::Folder => return Err(RemoteError::Status(Status::IsDir).at(&place).into()),
                            _ => return Err(error.at(&place).into()),
                        }
                        if self.source.session().is_some_and(|other| other.is(session))
                            && there.id == source.found.id
                        {
                            return Err(same().into());
                        }
                        let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
                        session.set(&node.handle, empty).await.map_err(|error| error.at(&place))?;
                        (node, false)
                    }
                    Err(error) => return Err(error.at(&place).into()),
                };
                let owner = (node.attributes.uid, node.attributes.gid);
                let out = Out::Remote { session, handle: node.handle, folder, name: name.to_owned() };
                Ok(Target { place, out, is_new, owner })
            }
            _ => unreachable!("a server's folders have handles"),
        }
    }

    /// Copies the data. Returns the length, and how much of it is holes.
    async fn copy_data(&self, input: &Input<'_>, target: &Target<'_>) -> Result<(u64, u64), Halt> {
        let (mut begin, mut holes, mut written_to) = (0, 0, 0);
        let len = loop {
            let mut restarts = 0;
            // Once more, if a server was restarted before the window was safe.
            let done = loop {
                let progress = Progress::default();
                self.window(input, target, begin, &progress).await?;
                let state = *progress.state.borrow();
                if let Out::Remote { session, handle, .. } = &target.out
                    && state.is_unsafe()
                {
                    let verifier = session.commit(handle).await.map_err(|error| error.at(&target.place))?;
                    if !state.is_kept_by(verifier) {
                        restarts += 1;
                        if restarts == RESTARTS_MAX {
                            let what = "the server forgets what was written again and again";
                            return Err(CommandFailure::run(format_args!("{}: {what}", target.place)).into());
                        }
                        continue;
                    }
                }
                break progress;
            };
            holes += done.holes.get();
            written_to = done.written_to.get().max(written_to);
            begin += WINDOW;
            if let Some(end) = done.end.get() {
                break end;
            }
        };
        // A hole at the end.
        if written_to < len {
            self.set_len(target, len).await?;
        }
        Ok((len, holes))
    }

    async fn set_len(&self, target: &Target<'_>, len: u64) -> Result<(), Halt> {
        match &target.out {
            Out::Local { is_file: false, .. } => Ok(()),
            Out::Local { path, file, .. } => file.set_len(len).map_err(|error| local(path, &error).into()),
            Out::Remote { session, handle, .. } => {
                let set = SetAttributes { size: Some(len), ..SetAttributes::default() };
                session.set(handle, set).await.map(drop).map_err(|error| error.at(&target.place).into())
            }
        }
    }

    /// Copies the window that starts at `begin`.
    async fn window(
        &self,
        input: &Input<'_>,
        target: &Target<'_>,
        begin: u64,
        progress: &Progress,
    ) -> Result<(), Halt> {
        let mut flight = Flight::new();
        let begun = match input {
            Input::Local { path, file, size, is_sparse } => {
                let regions = Regions { file, size: *size, is_sparse: *is_sparse };
                self.window_of_file(&mut flight, path, &regions, target, begin, progress).await
            }
            Input::Remote { .. } => self.window_of_server(&mut flight, input, target, begin, progress).await,
        };
        // What is given up must not write any more.
        let ended = flight.below(1).await;
        begun.and(ended)
    }

    async fn window_of_file<'f>(
        &'f self,
        flight: &mut Flight<'f>,
        path: &Path,
        regions: &Regions<'_>,
        target: &'f Target<'_>,
        begin: u64,
        progress: &'f Progress,
    ) -> Result<(), Halt> {
        let failed = |error: &io::Error| Halt::from(local(path, error));
        let window_end = begin + WINDOW;
        let mut at = begin;
        let mut is_first = begin == 0;
        while at < window_end {
            self.check()?;
            let Some((from, to)) = regions.next(at).map_err(|error| failed(&error))? else {
                // A hole up to the end.
                let end = regions.size.max(at);
                if end <= window_end {
                    progress.ends_at(end);
                }
                progress.holes.set(progress.holes.get() + end.min(window_end) - at);
                return Ok(());
            };
            let from = from.min(window_end);
            progress.holes.set(progress.holes.get() + from - at);
            at = from;
            if at == window_end {
                break;
            }
            let len_max = match &target.out {
                Out::Local { .. } => PART_LEN,
                Out::Remote { session, .. } => session.write_len_max(),
            };
            let wanted = (to.min(window_end) - at).min(len_max as u64) as usize;
            flight.below(PARTS_MAX).await?;
            match &target.out {
                Out::Local { path: to_path, file, is_file } => {
                    let mut buffer = vec![0; wanted];
                    let len = read_at(regions.file, at, &mut buffer).map_err(|error| failed(&error))?;
                    put(file, *is_file, at, &buffer[..len]).map_err(|error| local(to_path, &error))?;
                    self.progress.more(len as u64);
                    at += len as u64;
                    progress.wrote(at);
                    if len < wanted {
                        progress.ends_at(at);
                        return Ok(());
                    }
                }
                Out::Remote { session, handle, .. } => {
                    let permit = flight.wait_for(self.allowance.take(wanted)).await;
                    let mut buffer = flight.wait_for(session.buffer(wanted)).await;
                    let len =
                        read_at(regions.file, at, &mut buffer[..wanted]).map_err(|error| failed(&error))?;
                    let is_last = len < wanted
                        || (at + len as u64 >= regions.size
                            && regions.ends_at(at + len as u64).map_err(|error| failed(&error))?);
                    if is_last {
                        progress.ends_at(at + len as u64);
                    }
                    if len > 0 {
                        // One Call that is safe at once, or several and one COMMIT.
                        let stable = if is_first && is_last { Stable::FileSync } else { Stable::Unstable };
                        is_first = false;
                        buffer.shrink_to(len);
                        let offset = at;
                        flight.push(async move {
                            let state = session.write(handle, offset, buffer, stable).await;
                            drop(permit);
                            progress
                                .state
                                .borrow_mut()
                                .merge(state.map_err(|error| error.at(&target.place))?);
                            progress.wrote(offset + len as u64);
                            self.progress.more(len as u64);
                            Ok(())
                        });
                    }
                    at += len as u64;
                    if is_last {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    async fn window_of_server<'f>(
        &'f self,
        flight: &mut Flight<'f>,
        input: &'f Input<'f>,
        target: &'f Target<'_>,
        begin: u64,
        progress: &'f Progress,
    ) -> Result<(), Halt> {
        let Input::Remote { session, size, .. } = input else { unreachable!("a server's file") };
        let (len_max, size) = (session.read_len_max() as u64, *size);
        let window_end = begin + WINDOW;
        if size == 0 {
            progress.ends_at(0);
            return Ok(());
        }
        let in_order = matches!(target.out, Out::Local { is_file: false, .. });
        let mut at = begin;
        // As long as it was when it was looked at.
        while at < window_end.min(size) && progress.end.get().is_none() {
            self.check()?;
            flight.below(if in_order { 1 } else { PARTS_MAX }).await?;
            let len = (window_end.min(size) - at).min(len_max);
            let is_whole = at == 0 && len == size;
            flight.push(self.part(input, target, at, len as usize, is_whole, progress));
            at += len;
        }
        // And what came since.
        while at < window_end && at >= size {
            flight.below(1).await?;
            if progress.end.get().is_some() {
                break;
            }
            self.check()?;
            let len = (window_end - at).min(len_max).min(PROBE_LEN as u64);
            flight.push(self.part(input, target, at, len as usize, false, progress));
            at += len;
        }
        Ok(())
    }

    /// Reads a part from a server, and writes what is not zero.
    async fn part(
        &self,
        input: &Input<'_>,
        target: &Target<'_>,
        mut at: u64,
        len: usize,
        is_whole: bool,
        progress: &Progress,
    ) -> Result<(), Halt> {
        let Input::Remote { place, session, handle, hole_len, .. } = input else {
            unreachable!("a server's file")
        };
        let failed = |error: RemoteError| Halt::from(error.at(place));
        let _permit = self.allowance.take(len).await;
        let end = at + len as u64;
        while at < end {
            let part = session.read(handle, at, (end - at) as usize).await.map_err(failed)?;
            let octets = part.octets().map_err(failed)?;
            self.put_part(target, at, octets, *hole_len, is_whole && part.eof, progress).await?;
            self.progress.more(part.len as u64);
            at += part.len as u64;
            if part.eof {
                progress.ends_at(at);
                break;
            }
        }
        Ok(())
    }

    async fn put_part(
        &self,
        target: &Target<'_>,
        at: u64,
        octets: &[u8],
        hole_len: usize,
        is_whole: bool,
        progress: &Progress,
    ) -> Result<(), Halt> {
        let is_file = !matches!(target.out, Out::Local { is_file: false, .. });
        let hole_len = if is_file { hole_len } else { usize::MAX };
        for (from, to) in runs(octets, hole_len) {
            let (offset, data) = (at + from as u64, &octets[from..to]);
            match &target.out {
                Out::Local { path, file, .. } => {
                    put(file, is_file, offset, data).map_err(|error| local(path, &error))?;
                }
                Out::Remote { session, handle, .. } => {
                    let len_max = session.write_len_max();
                    let is_whole = is_whole && data.len() == octets.len() && data.len() <= len_max;
                    let stable = if is_whole { Stable::FileSync } else { Stable::Unstable };
                    for (index, data) in data.chunks(len_max).enumerate() {
                        let mut buffer = session.buffer(data.len()).await;
                        buffer.copy_from_slice(data);
                        let offset = offset + (index * len_max) as u64;
                        let state = session.write(handle, offset, buffer, stable).await;
                        progress.state.borrow_mut().merge(state.map_err(|error| error.at(&target.place))?);
                    }
                }
            }
            progress.wrote(at + to as u64);
        }
        let data: usize = runs(octets, hole_len).map(|(from, to)| to - from).sum();
        progress.holes.set(progress.holes.get() + (octets.len() - data) as u64);
        Ok(())
    }

    async fn keep_attributes(&self, source: &Source, target: &Target<'_>) -> Result<(), Halt> {
        if !self.options.preserve {
            return Ok(());
        }
        match &target.out {
            Out::Local { is_file: false, .. } => Ok(()),
            Out::Local { path, file, .. } => keep::local(&self.copied, file, target.owner, &source.found)
                .map_err(|error| local(path, &error).into()),
            Out::Remote { session, handle, .. } => {
                keep::remote(&self.copied, session, handle, target.owner, &source.found)
                    .await
                    .map_err(|error| error.at(&target.place).into())
            }
        }
    }

    /// Removes an incomplete file. One that was there before is emptied: its content is lost, but its name, owner
    /// and mode are not ours to remove.
    async fn discard(&self, target: &Target<'_>) {
        let is_gone = match (&target.out, target.is_new) {
            (Out::Local { is_file: false, .. }, _) => return,
            (Out::Local { path, .. }, true) => fs::remove_file(path).is_ok(),
            (Out::Local { file, .. }, false) => file.set_len(0).is_ok(),
            (Out::Remote { session, folder, name, .. }, true) => session.remove(folder, name).await.is_ok(),
            (Out::Remote { session, handle, .. }, false) => {
                let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
                session.set(handle, empty).await.is_ok()
            }
        };
        let what = match (is_gone, target.is_new) {
            (true, true) => return,
            (true, false) => "is empty: its content had been overwritten",
            (false, _) => "is incomplete",
        };
        self.remains.borrow_mut().push((target.place.clone(), what));
    }
}

/// The data of a file of this machine, between its holes.
struct Regions<'r> {
    file: &'r File,
    size: u64,
    is_sparse: bool,
}

impl Regions<'_> {
    /// The next region with data, at `at` or behind it. `None`: there is only a hole.
    fn next(&self, at: u64) -> io::Result<Option<(u64, u64)>> {
        // A size of 0 says nothing, as in /proc.
        let rest = if at < self.size { self.size } else { at + PROBE_LEN as u64 };
        if !self.is_sparse {
            return Ok(Some((at, rest)));
        }
        let from = match rustix::fs::seek(self.file, SeekFrom::Data(at)) {
            Ok(from) => from,
            Err(Errno::NXIO) => return Ok(None),
            // This file system does not say.
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(Some((at, rest))),
            Err(error) => return Err(error.into()),
        };
        let to = rustix::fs::seek(self.file, SeekFrom::Hole(from))?;
        Ok(Some((from, to.max(from + 1))))
    }

    /// Whether the file ends at `at`.
    fn ends_at(&self, at: u64) -> io::Result<bool> {
        Ok(!self.is_sparse && read_at(self.file, at, &mut [0])? == 0)
    }
}

/// Reads until `buffer` is full or the file ends.
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], offset + len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// Writes at a place of a file, or next to anything else.
fn put(mut file: &File, is_file: bool, offset: u64, data: &[u8]) -> io::Result<()> {
    if is_file { file.write_all_at(data, offset) } else { file.write_all(data) }
}

/// The parts of `octets` between holes, which are blocks of `hole_len` zeros.
fn runs(octets: &[u8], hole_len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    let next = move |from: usize, zero: bool| -> usize {
        let mut at = from;
        while at < octets.len() {
            let end = octets.len().min(at.saturating_add(hole_len));
            // The last block counts as a hole only if it is whole: the size is set by a write, which is cheaper.
            if (is_zero(&octets[at..end]) && end - at == hole_len) != zero {
                break;
            }
            at = end;
        }
        at
    };
    std::iter::from_fn(move || {
        let from = next(at, true);
        at = next(from, false);
        (from < octets.len()).then_some((from, at))
    })
}

fn is_zero(octets: &[u8]) -> bool {
    // In short chunks: most data differs early.
    octets.chunks(64).all(|chunk| chunk.iter().fold(0, |sum, octet| sum | octet) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_data_lie_between_whole_blocks_of_zeros() {
        let all = |octets: &[u8], len| runs(octets, len).collect::<Vec<_>>();
        assert_eq!(all(&[], 4), []);
        assert_eq!(all(&[0; 8], 4), []);
        // A short end is data.
        assert_eq!(all(&[0; 10], 4), [(8, 10)]);
        assert_eq!(all(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], 4), [(0, 4), (8, 12)]);
        assert_eq!(all(&[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 0], 4), [(4, 13)]);
        assert_eq!(all(&[0; 10], usize::MAX), [(0, 10)]);
    }
}
