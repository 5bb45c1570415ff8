//! Finds an object of which only the number is known: after a restart, or when it was moved.
//!
//! With the capability `CAP_DAC_READ_SEARCH` the kernel opens it by its file handle (`locate.rs`). Without it the whole tree is
//! read, directory by directory, a slice in each pass, or by a helper if that may wait; clients are told to try again meanwhile
//! (`NFS3ERR_JUKEBOX`). Directories list the numbers of their entries, so only directories
//! are opened. Every object on the way is noted, so one walk serves all handles of a restart.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FileType as Kind, OFlags, RawDir};
use rustix::io::Errno;
use stag_vfs::ObjectId;

use super::object::{Place, open_with, stat};
use super::opened::File;

/// Entries that a Call looks at by itself, before it tells its client to try again: some milliseconds.
pub(super) const ENTRIES_PER_CALL: usize = 8192;
/// Entries that one pass looks at.
pub(super) const ENTRIES_PER_PASS: usize = 1024;
/// What opening a directory counts for, in entries.
const OPEN_COST: usize = 32;
/// The deepest directory that is read. Each level has a descriptor open.
pub(super) const DEPTH_MAX: usize = 128;
/// Octets of entries that are read at a time.
const CHUNK_LEN: usize = 8 << 10;
/// Objects that are searched for at once, and that are known to be nowhere.
pub(super) const WANTED_MAX: usize = 4096;
/// How long an object that is nowhere in the export is not searched for again.
pub(super) const NOWHERE: Duration = Duration::from_secs(30);

/// Entries that a helper looks at, before what it found is looked at.
const ENTRIES_PER_JOB: usize = 64 << 10;

/// What is under way, and what was found.
pub(super) struct Search {
    /// `None` while a helper has it.
    pub(super) walk: Option<Walk>,
    /// Walks that were begun; the last of them is under way if [`Search::is_busy`].
    pub(super) walks: u64,
    pub(super) passed_max: usize,
    /// What is searched for, and the walk after which it is nowhere if it is not found.
    pub(super) wanted: HashMap<ObjectId, u64>,
    /// What is not in the export, and until when that is believed.
    pub(super) nowhere: HashMap<ObjectId, Duration>,
    /// There will be no walk any more.
    pub(super) is_stopped: bool,
}

/// A way through the whole tree.
pub(super) struct Walk {
    /// The root, if the walk has not begun at it.
    pub(super) begins: Option<(u64, File)>,
    levels: Vec<Level>,
    /// Numbers that were passed: in which directory, under which name.
    pub(super) passed: HashMap<u64, Hint>,
    passed_max: usize,
    /// The numbers of those that this walk has to note, however full it is.
    pub(super) targets: HashSet<u64>,
    /// Why a part of the tree was not seen by the last walk: what was not found may be there.
    pub(super) missed: Option<Errno>,
    /// What is in it of other file systems is not entered.
    place: Place,
}

/// Where a number was passed.
pub(super) struct Hint {
    pub(super) directory: u64,
    pub(super) name: Box<[u8]>,
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
    /// Notes at most `passed_max` names on the way through what is in this file system.
    pub(super) fn new(passed_max: usize, place: Place) -> Search {
        let walk = Walk {
            begins: None,
            levels: Vec::new(),
            passed: HashMap::new(),
            passed_max,
            targets: HashSet::new(),
            missed: None,
            place,
        };
        Search {
            walk: Some(walk),
            walks: 0,
            passed_max,
            wanted: HashMap::new(),
            nowhere: HashMap::new(),
            is_stopped: false,
        }
    }

    /// Whether a walk is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.walk.as_ref().is_none_or(Walk::is_under_way)
    }

    /// Ends the walk under way for good, and closes what it has open.
    pub(super) fn stop(&mut self) {
        self.walk = None;
        self.is_stopped = true;
    }

    /// Whether a walk is under way that the reactor has to go on with.
    pub(super) fn is_busy(&self) -> bool {
        self.walk.as_ref().is_some_and(Walk::is_under_way)
    }

    /// The walk under way, for a helper to go on with.
    pub(super) fn lend(&mut self) -> Option<Walk> {
        self.walk.take_if(|walk| walk.is_under_way())
    }

    /// What a helper had comes back; `None`: it was lost.
    pub(super) fn give_back(&mut self, walk: Option<Walk>, place: Place) {
        if self.is_stopped {
            return;
        }
        self.walk = walk.or_else(|| Search::new(self.passed_max, place).walk);
    }
}

impl Walk {
    pub(super) fn is_under_way(&self) -> bool {
        self.begins.is_some() || !self.levels.is_empty()
    }

    /// Goes on as far as a helper does.
    pub(super) fn go_far(&mut self) {
        self.go_on(ENTRIES_PER_JOB);
    }

    fn begin(&mut self, fileid: u64, root: &File) {
        let flags = OFlags::RDONLY.union(OFlags::DIRECTORY);
        match open_with(root.as_fd(), b".", flags) {
            Ok(file) => {
                let name = Box::default();
                self.levels.push(Level { fileid, name, file, inner: Vec::new(), is_read: false });
            }
            Err(error) => self.miss(error),
        }
    }

    /// Looks at about `budget` entries.
    pub(super) fn go_on(&mut self, budget: usize) {
        if let Some((fileid, root)) = self.begins.take() {
            self.begin(fileid, &root);
        }
        let mut left = budget;
        while left > 0 {
            let Some(level) = self.levels.last_mut() else { return };
            if let Some(name) = level.inner.pop() {
                left = left.saturating_sub(OPEN_COST);
                let flags = OFlags::RDONLY.union(OFlags::DIRECTORY);
                let opened = open_with(level.file.as_fd(), &name, flags);
                let (file, found) = match opened.and_then(|file| Ok((stat(&file)?, file))) {
                    Ok((found, file)) => (file, found),
                    Err(error) => {
                        self.miss(error);
                        continue;
                    }
                };
                if found.place() == self.place && self.levels.len() < DEPTH_MAX {
                    let fileid = found.fileid;
                    self.levels.push(Level { fileid, name, file, inner: Vec::new(), is_read: false });
                }
            } else if level.is_read {
                self.levels.pop();
            } else {
                left = left.saturating_sub(self.read_chunk());
            }
        }
    }

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
