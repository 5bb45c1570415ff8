//! The entries of one directory, by name and in the order of their cookies.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::inode::Index;

/// Cookie of `.`.
pub(super) const COOKIE_SELF: u64 = 1;
/// Cookie of `..`.
pub(super) const COOKIE_PARENT: u64 = 2;

pub(super) struct Directory {
    /// The directory that this one is in; the root is in itself.
    pub(super) parent: Index,
    entries: BTreeMap<u64, Entry>,
    cookies: HashMap<Rc<[u8]>, u64>,
    /// Of the next entry. None is used twice, so a listing goes on right after any cookie it ever got.
    cookie_next: u64,
}

pub(super) struct Entry {
    pub(super) name: Rc<[u8]>,
    pub(super) index: Index,
}

impl Directory {
    pub(super) fn new(parent: Index) -> Directory {
        Directory {
            parent,
            entries: BTreeMap::new(),
            cookies: HashMap::new(),
            cookie_next: COOKIE_PARENT + 1,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<Index> {
        let cookie = self.cookies.get(name)?;
        self.entries.get(cookie).map(|entry| entry.index)
    }

    /// Adds an entry, whose name is free.
    pub(super) fn insert(&mut self, name: &[u8], index: Index) {
        let name: Rc<[u8]> = name.into();
        let cookie = self.cookie_next;
        self.cookie_next += 1;
        self.cookies.insert(name.clone(), cookie);
        self.entries.insert(cookie, Entry { name, index });
    }

    /// Makes the entry of a name that is there point to another object. Its cookie stays.
    pub(super) fn replace(&mut self, name: &[u8], index: Index) {
        if let Some(entry) = self.cookies.get(name).and_then(|cookie| self.entries.get_mut(cookie)) {
            entry.index = index;
        }
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(cookie) = self.cookies.remove(name) {
            self.entries.remove(&cookie);
        }
    }

    /// The entries after `cookie`, each with its own.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let rest = (std::ops::Bound::Excluded(cookie), std::ops::Bound::Unbounded);
        self.entries.range(rest).map(|(cookie, entry)| (*cookie, entry))
    }
}
