//! The search of a tree for an object of which only the number is known (`../search.rs`).

use rustix::io::Errno;
use stag_vfs::{FsError, ObjectId};

use super::super::index::{Index, ROOT};
use super::super::locate::Located;
use super::super::object::status;
use super::super::search::{DEPTH_MAX, ENTRIES_PER_CALL, ENTRIES_PER_PASS, NOWHERE, WANTED_MAX, Walk};
use super::Tree;

impl Tree {
    /// Finds an object that is not where it was, or not known. [`FsError::Busy`]: not yet.
    pub(in super::super) fn recover(&mut self, id: ObjectId) -> Result<Index, FsError> {
        // It is not known whether it has to be searched for.
        if self.kernel().is_missing() {
            return Err(FsError::Busy);
        }
        if let Some(found) = self.open_by_handle(id) {
            return found;
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
        if self.kernel().is_missing() {
            return Err(FsError::Busy);
        }
        let is_under_way = self.search.is_under_way();
        match self.search.wanted.get(&id) {
            Some(walk) if *walk < self.search.walks || *walk == self.search.walks && !is_under_way => {
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
        if !is_under_way {
            self.begin_walk();
        }
        if self.kernel().is_immediate() {
            self.walk(ENTRIES_PER_CALL);
        } else {
            let (root, walk) = (self.path_fd(ROOT)?, self.search.walks);
            if !self.kernel().has_searched(&root, walk) {
                return Err(FsError::Busy);
            }
        }
        if let Some(index) = self.follow_hints(id) {
            self.search.wanted.remove(&id);
            return Ok(index);
        }
        let walk = self.search.wanted.get(&id).copied().unwrap_or(0);
        if self.search.is_under_way() || walk > self.search.walks {
            return Err(FsError::Busy);
        }
        Err(self.give_up(id))
    }

    fn give_up(&mut self, id: ObjectId) -> FsError {
        self.search.wanted.remove(&id);
        if let Some(error) = self.search.walk.as_ref().and_then(|walk| walk.missed) {
            return status(error);
        }
        if self.search.nowhere.len() >= WANTED_MAX {
            self.search.nowhere.clear();
        }
        self.search.nowhere.insert(id, self.now.saturating_add(NOWHERE));
        FsError::Stale
    }

    /// A helper is done with a part of the walk; `None`: it was lost.
    pub(in super::super) fn take_back(&mut self, walk: Option<Walk>) {
        let place = self.place();
        self.search.give_back(walk, place);
    }

    /// Goes on with a walk, for a pass, unless a helper does that.
    pub(in super::super) fn walk_on(&mut self) {
        if self.search.is_busy() && self.kernel().is_immediate() {
            self.walk(ENTRIES_PER_PASS);
        }
    }

    fn walk(&mut self, budget: usize) {
        if let Some(walk) = &mut self.search.walk {
            walk.go_on(budget);
        }
    }

    /// Lets the kernel open an object, if it does so for us. `None`: it has to be searched for.
    fn open_by_handle(&mut self, id: ObjectId) -> Option<Result<Index, FsError>> {
        let mount = self.mount()?;
        let root = self.path_fd(ROOT).ok()?;
        let located = match self.kernel().clone().locate(&mount, &root, id) {
            Ok(located) => located,
            Err(error) => return Some(Err(status(error))),
        };
        match &*located {
            Located::Found(way) => {
                let mut at = ROOT;
                for (name, found) in way {
                    at = self.note_identified(at, name, found.clone());
                }
                // The root by another name would be in a circle.
                (self.id(at) == id).then_some(Ok(at))
            }
            Located::Gone => Some(Err(FsError::Stale)),
            Located::Unknown => None,
            Located::Refused(error) => {
                if !matches!(*error, Errno::PERM | Errno::OPNOTSUPP | Errno::OVERFLOW | Errno::NOSYS) {
                    tracing::warn!("open by file handle: {error}; objects are searched for instead");
                }
                // It will not be otherwise the next time.
                self.close_mount();
                None
            }
        }
    }

    /// Walks to an object by the names that were passed.
    fn follow_hints(&mut self, id: ObjectId) -> Option<Index> {
        let mut names: Vec<&[u8]> = Vec::new();
        let root = self.id(ROOT).fileid;
        let mut at = id.fileid;
        while at != root {
            let hint = self.search.walk.as_ref()?.passed.get(&at)?;
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
        let walk = self.search.walks;
        // Those that are not asked for any more.
        self.search.wanted.retain(|_, needed| *needed + 1 >= walk);
        let root = self.path_fd(ROOT).ok().map(|root| (self.id(ROOT).fileid, root));
        let targets = self.search.wanted.keys().map(|id| id.fileid).collect();
        let Some(walk) = &mut self.search.walk else { return };
        walk.passed.clear();
        walk.missed = None;
        walk.targets = targets;
        walk.begins = root;
    }
}
