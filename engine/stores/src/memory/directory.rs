//! The entries of one directory, by name and in the order of their cookies.
//!
//! A listing goes on behind a cookie, whatever happened in between; the server keeps nothing of it. It has to end however
//! fast others change the directory, and to show once what stays. So a new entry gets a cookie *below* all others: it is
//! behind every reader that has seen an entry, and adds no work in front of a reader. And an entry that gets another name
//! in the same directory keeps its cookie: it is neither shown twice nor missed.

use std::collections::{BTreeMap, HashMap};
use std::mem::size_of;
use std::rc::Rc;

use super::heap;

/// Where an object is in the table.
pub(super) type Index = u32;

/// Entries that there may be room for although there are none.
const CAPACITY_KEPT: usize = 28;

/// What a name takes of the heap, with its two counters.
pub(super) fn name_len(name: &[u8]) -> u64 {
    heap::allocation(16 + name.len() as u64)
}

/// Cookie of `.`.
pub(super) const COOKIE_SELF: u64 = 1;
/// Cookie of `..`.
pub(super) const COOKIE_PARENT: u64 = 2;
/// Cookie of the first entry that a directory gets. Clients show cookies to programs as offsets, which have a sign.
const COOKIE_FIRST: u64 = 1 << 62;

pub(super) struct Directory {
    /// The directory that this one is in; the root is in itself.
    pub(super) parent: Index,
    entries: BTreeMap<u64, Entry>,
    cookies: HashMap<Rc<[u8]>, u64>,
    /// Of the next entry; each is one less than the one before. None is used twice, so a listing goes on right after any
    /// cookie it ever got.
    cookie_next: u64,
    /// What the names take of the heap.
    names_len: u64,
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
            cookie_next: COOKIE_FIRST,
            names_len: 0,
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
        self.names_len += name_len(name);
        let name: Rc<[u8]> = name.into();
        let cookie = self.cookie_next;
        self.cookie_next -= 1;
        self.cookies.insert(name.clone(), cookie);
        self.entries.insert(cookie, Entry { name, index });
    }

    /// Gives an entry another name, which is free. Its cookie stays.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) {
        let Some(cookie) = self.cookies.remove(from) else { return };
        let Some(entry) = self.entries.get_mut(&cookie) else { return };
        entry.name = to.into();
        self.names_len = self.names_len + name_len(to) - name_len(from);
        self.cookies.insert(entry.name.clone(), cookie);
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
            self.names_len -= name_len(name);
            // A table does not become smaller by itself, and there may be many directories that once were large.
            let count = self.cookies.len();
            if self.cookies.capacity() > CAPACITY_KEPT && count < self.cookies.capacity() / 4 {
                self.cookies.shrink_to(2 * count);
            }
        }
    }

    /// What it takes of the heap.
    pub(super) fn heap_len(&self) -> u64 {
        heap::allocation(size_of::<Directory>() as u64)
            + self.names_len
            + heap::tree::<Entry>(self.entries.len() as u64)
            + heap::table::<(Rc<[u8]>, u64)>(self.cookies.capacity() as u64)
    }

    /// What it will take at most with one more entry, of this name.
    pub(super) fn heap_len_with(&self, name: &[u8]) -> u64 {
        let (count, capacity) = (self.entries.len() as u64, self.cookies.capacity() as u64);
        let table = if self.cookies.len() == self.cookies.capacity() {
            heap::larger_table::<(Rc<[u8]>, u64)>(capacity)
        } else {
            heap::table::<(Rc<[u8]>, u64)>(capacity)
        };
        heap::allocation(size_of::<Directory>() as u64)
            + self.names_len
            + name_len(name)
            + heap::tree::<Entry>(count + 1)
            + table
    }

    /// The entries after `cookie`, each with its own.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let rest = (std::ops::Bound::Excluded(cookie), std::ops::Bound::Unbounded);
        self.entries.range(rest).map(|(cookie, entry)| (*cookie, entry))
    }
}
