//! Finds an object of which only the number is known: after a restart, or when it was moved.
//!
//! With the capability `CAP_DAC_READ_SEARCH` the kernel opens it by its file handle, and tells its path, which is then
//! walked like any other. Without it the whole tree is read, directory by directory, a slice in each pass; clients are
//! told to try again meanwhile (`NFS3ERR_JUKEBOX`). Directories list the numbers of their entries, so only directories
//! are opened. Every object on the way is noted, so one walk serves all handles of a restart.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType as Kind, OFlags, RawDir};
use rustix::io::Errno;
use stag_disk::system;
use stag_vfs::{FsError, ObjectId, ObjectKind};

use super::object::{handles, open_with, stat, status};
use super::tree::{Index, ROOT, Tree};

/// Entries that a Call looks at by itself, before it tells its client to try again: some milliseconds.
const ENTRIES_PER_CALL: usize = 8192;
/// Entries that one pass looks at.
const ENTRIES_PER_PASS: usize = 1024;
/// What opening a directory counts for, in entries.
const OPEN_COST: usize = 32;
/// The deepest directory that is read. Each level has a descriptor open.
const DEPTH_MAX: usize = 128;
/// Octets of entries that are read at a time.
const CHUNK_LEN: usize = 8 << 10;
/// Objects that are searched for at once, and that are known to be nowhere.
const WANTED_MAX: usize = 4096;
/// How long an object that is nowhere in the export is not searched for again.
const NOWHERE: Duration = Duration::from_secs(30);

/// What is under way, and what was found.
pub(super) struct Search {
    levels: Vec<Level>,
    /// Walks that were begun; the last of them is under way if there are levels.
    walks: u64,
    /// Numbers that were passed: in which directory, under which name.
    passed: HashMap<u64, Hint>,
    passed_max: usize,
    /// What is searched for, and the walk after which it is nowhere if it is not found.
    wanted: HashMap<ObjectId, u64>,
    /// The numbers of those that this walk has to note, however full it is.
    targets: HashSet<u64>,
    /// What is not in the export, and until when that is believed.
    nowhere: HashMap<ObjectId, Duration>,
    /// Why a part of the tree was not seen by the last walk: what was not found may be there.
    missed: Option<Errno>,
}

/// What the kernel says of a file handle.
enum ByHandle {
    Found(Index),
    /// There is no such object any more, or it is not in the export.
    Gone,
    /// It does not say, or not where.
    Unknown,
}

struct Hint {
    directory: u64,
    name: Box<[u8]>,
}

/// A directory on the way from the root to where the walk is.
struct Level {
    fileid: u64,
    name: Box<[u8]>,
    file: OwnedFd,
    /// Directories of the last chunk that have not been entered.
    inner: Vec<Box<[u8]>>,
    is_read: bool,
}

impl Search {
    /// Notes at most `passed_max` names on the way.
    pub(super) fn new(passed_max: usize) -> Search {
        Search {
            levels: Vec::new(),
            walks: 0,
            targets: HashSet::new(),
            passed: HashMap::new(),
            passed_max,
            wanted: HashMap::new(),
            nowhere: HashMap::new(),
            missed: None,
        }
    }

    /// Whether a walk is under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.levels.is_empty()
    }
}

impl Tree {
    /// Finds an object that is not where it was, or not known. [`FsError::Busy`]: not yet.
    pub(super) fn recover(&mut self, id: ObjectId) -> Result<Index, FsError> {
        match self.open_by_handle(id) {
            ByHandle::Found(index) => return Ok(index),
            ByHandle::Gone => return Err(FsError::Stale),
            ByHandle::Unknown => {}
        }
        if let Some(until) = self.search.nowhere.get(&id) {
            if self.now < *until {
                return Err(FsError::Stale);
            }
            self.search.nowhere.remove(&id);
        }
        if let Some(index) = self.follow_hints(id) {
            self.search.wanted.remove(&id);
            return Ok(index);
        }
        let is_busy = self.search.is_busy();
        match self.search.wanted.get(&id) {
            Some(walk) if *walk < self.search.walks || *walk == self.search.walks && !is_busy => {
                return Err(self.give_up(id));
            }
            Some(_) => {}
            None if self.search.wanted.len() == WANTED_MAX => return Err(FsError::Busy),
            None => {
                // What a walk under way has passed already, it may have missed.
                let walk = self.search.walks + 1;
                self.search.wanted.insert(id, walk);
            }
        }
        if !is_busy {
            self.begin_walk();
        }
        self.walk(ENTRIES_PER_CALL);
        if let Some(index) = self.follow_hints(id) {
            self.search.wanted.remove(&id);
            return Ok(index);
        }
        let walk = self.search.wanted.get(&id).copied().unwrap_or(0);
        if self.search.is_busy() || walk > self.search.walks {
            return Err(FsError::Busy);
        }
        Err(self.give_up(id))
    }

    fn give_up(&mut self, id: ObjectId) -> FsError {
        self.search.wanted.remove(&id);
        if let Some(error) = self.search.missed {
            return status(error);
        }
        if self.search.nowhere.len() >= WANTED_MAX {
            self.search.nowhere.clear();
        }
        self.search.nowhere.insert(id, self.now.saturating_add(NOWHERE));
        FsError::Stale
    }

    /// Goes on with a walk, for a pass.
    pub(super) fn walk_on(&mut self) {
        if self.search.is_busy() {
            self.walk(ENTRIES_PER_PASS);
        }
    }

    /// Lets the kernel open an object, if it does so for us, and walks to where it is.
    fn open_by_handle(&mut self, id: ObjectId) -> ByHandle {
        let Some(mount) = self.mount() else { return ByHandle::Unknown };
        // A name that is not in the kernel's words: no handle can be put together.
        let mut is_gone = false;
        for handle in handles(id) {
            is_gone = true;
            match system::open_by_handle(mount, &handle) {
                Ok(opened) => match stat(&opened) {
                    Ok(found) if found.fileid == id.fileid => return self.walk_to(id, &opened, found.kind),
                    // Laid out in another file system's way, it is another object's.
                    Ok(_) => {}
                    Err(_) => return ByHandle::Unknown,
                },
                Err(Errno::STALE) => {}
                // For a moment.
                Err(Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::INTR) => return ByHandle::Unknown,
                Err(error) => {
                    // Without the capability, or where a file system has no handles, that is how it is.
                    if !matches!(error, Errno::PERM | Errno::OPNOTSUPP | Errno::OVERFLOW | Errno::NOSYS) {
                        tracing::warn!("open by file handle: {error}; objects are searched for instead");
                    }
                    // It will not be otherwise the next time.
                    self.close_mount();
                    return ByHandle::Unknown;
                }
            }
        }
        if is_gone { ByHandle::Gone } else { ByHandle::Unknown }
    }

    /// Walks to an object that the kernel has opened.
    fn walk_to(&mut self, id: ObjectId, opened: &OwnedFd, kind: ObjectKind) -> ByHandle {
        // What /proc says is only a hint: each name is looked up, and has to lead to the object. Of an object with
        // several names it says one; of a file that was not used since the machine started, none.
        let Ok(root) = self.path_fd(ROOT) else { return ByHandle::Unknown };
        let (Some(path), Some(top)) = (path_of(opened.as_raw_fd()), path_of(root.as_raw_fd())) else {
            return ByHandle::Unknown;
        };
        let Ok(below) = path.strip_prefix(&top) else {
            // A directory has one place, and the kernel knows it.
            let is_outside = kind == ObjectKind::Directory && path.is_absolute() && top.is_absolute();
            return if is_outside { ByHandle::Gone } else { ByHandle::Unknown };
        };
        let mut at = ROOT;
        for component in below.components() {
            let Component::Normal(name) = component else { return ByHandle::Unknown };
            match self.enter(at, name.as_bytes()) {
                Ok((index, _)) => at = index,
                Err(_) => return ByHandle::Unknown,
            }
        }
        if self.id(at) == id { ByHandle::Found(at) } else { ByHandle::Unknown }
    }

    /// Walks to an object by the names that were passed.
    fn follow_hints(&mut self, id: ObjectId) -> Option<Index> {
        let mut names: Vec<&[u8]> = Vec::new();
        let root = self.id(ROOT).fileid;
        let mut at = id.fileid;
        while at != root {
            let hint = self.search.passed.get(&at)?;
            // Longer than any path: names in a circle, of directories that were moved meanwhile.
            if names.len() == DEPTH_MAX {
                return None;
            }
            names.push(&hint.name);
            at = hint.directory;
        }
        let names: Vec<Box<[u8]>> = names.into_iter().rev().map(Box::from).collect();
        let mut at = ROOT;
        for name in names {
            at = self.enter(at, &name).ok()?.0;
        }
        (self.id(at) == id).then_some(at)
    }

    fn begin_walk(&mut self) {
        self.search.walks += 1;
        self.search.passed.clear();
        self.search.missed = None;
        let walk = self.search.walks;
        // Those that are not asked for any more.
        self.search.wanted.retain(|_, needed| *needed + 1 >= walk);
        self.search.targets = self.search.wanted.keys().map(|id| id.fileid).collect();
        let Ok(root) = self.path_fd(ROOT) else { return };
        let flags = OFlags::RDONLY.union(OFlags::DIRECTORY);
        match open_with(root.as_fd(), b".", flags) {
            Ok(file) => {
                let fileid = self.id(ROOT).fileid;
                self.search.levels.push(Level {
                    fileid,
                    name: Box::default(),
                    file,
                    inner: Vec::new(),
                    is_read: false,
                });
            }
            Err(error) => self.search.miss(error),
        }
    }

    /// Looks at about `budget` entries.
    fn walk(&mut self, budget: usize) {
        let place = self.place();
        let search = &mut self.search;
        let mut left = budget;
        while left > 0 {
            let Some(level) = search.levels.last_mut() else { return };
            if let Some(name) = level.inner.pop() {
                left = left.saturating_sub(OPEN_COST);
                let flags = OFlags::RDONLY.union(OFlags::DIRECTORY);
                let opened = open_with(level.file.as_fd(), &name, flags);
                let (file, found) = match opened.and_then(|file| Ok((stat(&file)?, file))) {
                    Ok((found, file)) => (file, found),
                    Err(error) => {
                        search.miss(error);
                        continue;
                    }
                };
                if found.place() == place && search.levels.len() < DEPTH_MAX {
                    let fileid = found.fileid;
                    search.levels.push(Level { fileid, name, file, inner: Vec::new(), is_read: false });
                }
            } else if level.is_read {
                search.levels.pop();
            } else {
                left = left.saturating_sub(search.read_chunk());
            }
        }
    }
}

impl Search {
    /// Notes that a directory could not be read.
    fn miss(&mut self, error: Errno) {
        // Gone or moved by now, or not for us to see: nothing there is in reach.
        let is_out_of_reach = matches!(
            error,
            Errno::NOENT
                | Errno::NOTDIR
                | Errno::ACCESS
                | Errno::PERM
                | Errno::XDEV
                | Errno::LOOP
                | Errno::STALE
        );
        if !is_out_of_reach && self.missed.replace(error).is_none() {
            tracing::warn!("a search for objects by number could not read a directory: {error}");
        }
    }

    /// Reads the next entries of the innermost directory. Returns how many.
    fn read_chunk(&mut self) -> usize {
        let Some(level) = self.levels.last_mut() else { return 0 };
        let mut space = [MaybeUninit::uninit(); CHUNK_LEN];
        let mut entries = RawDir::new(&level.file, &mut space);
        let mut count = 1;
        let mut found_wanted = false;
        let mut missed = None;
        loop {
            let entry = match entries.next() {
                Some(Ok(entry)) => entry,
                ended => {
                    level.is_read = true;
                    if let Some(Err(error)) = ended {
                        missed = Some(error);
                    }
                    break;
                }
            };
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                count += 1;
                let fileid = entry.ino();
                if matches!(entry.file_type(), Kind::Directory | Kind::Unknown) {
                    level.inner.push(name.into());
                }
                let is_wanted = self.targets.contains(&fileid);
                found_wanted |= is_wanted;
                if is_wanted || self.passed.len() < self.passed_max {
                    self.passed.insert(fileid, Hint { directory: level.fileid, name: name.into() });
                }
            }
            if entries.is_buffer_empty() {
                break;
            }
        }
        if found_wanted {
            // The way there, if there was no room for it.
            for pair in 1..self.levels.len() {
                let (above, level) = (&self.levels[pair - 1], &self.levels[pair]);
                let hint = Hint { directory: above.fileid, name: level.name.clone() };
                self.passed.insert(level.fileid, hint);
            }
        }
        if let Some(error) = missed {
            self.miss(error);
        }
        count
    }
}

/// Where the kernel says that a descriptor leads.
fn path_of(descriptor: i32) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{descriptor}");
    let path = rustix::fs::readlink(Path::new(OsStr::new(&link)), Vec::new()).ok()?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())))
}
