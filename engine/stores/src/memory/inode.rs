//! Objects: their attributes, and the table that they are in.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::mem::size_of;

use stag_vfs::{
    Acl, DeviceId, FsError, Guarded, NANOSECONDS, Named, NewAttributes, NewObject, ObjectId, ObjectKind,
    ObjectStat, SetLists, Special, StoreVerifier, TimeUpdate, Timestamp, Update,
};

use super::directory::{Directory, Index};
use super::heap;
use super::pages::Pages;
use super::space::{PAGE_LEN, Space};

const PERMISSIONS: u32 = 0o777;

pub(super) struct Inode {
    pub(super) generation: u64,
    pub(super) mode: u32,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    /// Changes when the object is read, which changes nothing else.
    pub(super) atime: Cell<Timestamp>,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) born: Timestamp,
    /// Of the exclusive CREATE that made it, until the first change.
    pub(super) create_verifier: Option<StoreVerifier>,
    /// Few objects have any: one word for the others.
    pub(super) lists: Option<Box<OwnLists>>,
    pub(super) body: Body,
}

/// The lists that an object has beside its mode.
#[derive(Clone, Copy, Default)]
pub(super) struct Lists<'a> {
    /// Who may access the object.
    pub(super) access: Option<&'a Acl>,
    /// What new objects in this directory get.
    pub(super) default: Option<&'a Acl>,
}

/// Access control lists of an object. `access` is not minimal, and says what `mode` says.
#[derive(Clone, Default)]
pub(super) struct OwnLists {
    access: Option<Acl>,
    default: Option<Acl>,
}

pub(super) enum Body {
    File(Pages),
    Directory(Box<Directory>),
    Symlink(Box<[u8]>),
    Special(Special),
}

impl Body {
    pub(super) fn kind(&self) -> ObjectKind {
        match self {
            Body::File(_) => ObjectKind::Regular,
            Body::Directory(_) => ObjectKind::Directory,
            Body::Symlink(_) => ObjectKind::Symlink,
            Body::Special(special) => special.kind(),
        }
    }
}

impl Inode {
    /// A new object in the directory `parent`, from now on.
    pub(super) fn new(
        what: &NewObject<'_>,
        parent: Index,
        attributes: &NewAttributes,
        now: Timestamp,
    ) -> Inode {
        let (nlink, size, body) = match what {
            NewObject::File(_) => (1, attributes.size.unwrap_or(0), Body::File(Pages::default())),
            NewObject::Directory => (2, PAGE_LEN as u64, Body::Directory(Box::new(Directory::new(parent)))),
            NewObject::Symlink(path) => (1, path.len() as u64, Body::Symlink((*path).into())),
            NewObject::Special(special) => (1, 0, Body::Special(*special)),
        };
        let create_verifier = if let NewObject::File(verifier) = what { *verifier } else { None };
        Inode {
            generation: 0,
            mode: attributes.mode,
            nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            size,
            atime: Cell::new(set_time(attributes.atime, now, now)),
            mtime: set_time(attributes.mtime, now, now),
            ctime: now,
            born: now,
            create_verifier,
            lists: None,
            body,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    /// What permissions depend on, beside the lists.
    #[inline]
    pub(super) fn guarded(&self) -> Guarded {
        Guarded { mode: self.mode, uid: self.uid, gid: self.gid, is_directory: self.is_directory() }
    }

    #[inline]
    pub(super) fn lists(&self) -> Lists<'_> {
        let lists = self.lists.as_deref();
        Lists {
            access: lists.and_then(|lists| lists.access.as_ref()),
            default: lists.and_then(|lists| lists.default.as_ref()),
        }
    }

    /// What it takes of the heap, with its place in the table, but without a file's pages.
    pub(super) fn heap_len(&self) -> u64 {
        let body = match &self.body {
            Body::File(_) | Body::Special(_) => 0,
            Body::Directory(directory) => directory.heap_len(),
            Body::Symlink(path) => heap::allocation(path.len() as u64),
        };
        (size_of::<Option<Inode>>() + size_of::<Index>()) as u64 + body + self.lists_heap_len()
    }

    /// What its access control lists take of the heap.
    pub(super) fn lists_heap_len(&self) -> u64 {
        let Some(lists) = &self.lists else { return 0 };
        let list = |acl: &Option<Acl>| acl.as_ref().map_or(0, |acl| lists_len_max(acl.len()));
        heap::allocation(size_of::<OwnLists>() as u64) + list(&lists.access) + list(&lists.default)
    }

    /// What they may take at most once they are set so.
    pub(super) fn lists_heap_len_with(&self, set: &SetLists) -> u64 {
        let Lists { access, default } = self.lists();
        let list = |old: Option<&Acl>, new: &Option<Option<Acl>>| {
            let len = new.as_ref().map_or(old.map(Acl::len), |new| new.as_ref().map(Acl::len));
            len.map_or(0, lists_len_max)
        };
        heap::allocation(size_of::<OwnLists>() as u64)
            + list(access, &set.access)
            + list(default, &set.default)
    }

    /// How many users and groups its lists name.
    pub(super) fn lists_len(&self) -> usize {
        let Lists { access, default } = self.lists();
        access.map_or(0, Acl::len) + default.map_or(0, Acl::len)
    }

    /// How many more users and groups its lists would name.
    pub(super) fn lists_growth(&self, set: &SetLists) -> i64 {
        let Lists { access, default } = self.lists();
        let growth = |old: Option<&Acl>, new: &Option<Option<Acl>>| {
            let new = new.as_ref().map(|new| new.as_ref().map_or(0, Acl::len) as i64);
            new.map_or(0, |new| new - old.map_or(0, Acl::len) as i64)
        };
        growth(access, &set.access) + growth(default, &set.default)
    }

    /// Sets lists, and the mode that goes with them.
    pub(super) fn set_lists(&mut self, set: &SetLists, mode: Option<u32>, now: Timestamp) {
        let mut lists = self.lists.take().unwrap_or_default();
        self.mode = mode.unwrap_or(self.mode);
        if let Some(access) = &set.access {
            lists.access = access.clone().filter(|acl| !acl.is_minimal());
        }
        if let Some(default) = &set.default {
            lists.default.clone_from(default);
        }
        self.keep(*lists);
        self.changed(now);
    }

    /// Takes over the default list of the directory that it is made in; its mode is what was asked for.
    pub(super) fn inherit(&mut self, default: &Acl) {
        if matches!(self.body, Body::Symlink(_)) {
            return;
        }
        let access = default.inherited(self.mode);
        self.mode = self.mode & !PERMISSIONS | access.mode_bits();
        let default = self.is_directory().then(|| default.clone());
        self.keep(OwnLists { access: Some(access).filter(|acl| !acl.is_minimal()), default });
    }

    fn keep(&mut self, lists: OwnLists) {
        let is_some = lists.access.is_some() || lists.default.is_some();
        self.lists = is_some.then(|| Box::new(lists));
    }

    #[inline]
    pub(super) fn attributes(&self, fileid: u64) -> ObjectStat {
        let (used, device) = match &self.body {
            Body::File(pages) => (pages.count() * PAGE_LEN as u64, DeviceId::default()),
            Body::Special(Special::Block(number) | Special::Character(number)) => (0, *number),
            Body::Directory(_) | Body::Symlink(_) | Body::Special(_) => (self.size, DeviceId::default()),
        };
        ObjectStat {
            object: ObjectId { fileid, generation: self.generation },
            kind: self.body.kind(),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            used,
            device,
            atime: self.atime.get(),
            mtime: self.mtime,
            ctime: self.ctime,
            may_have_acl: self.lists.is_some(),
            born: Some(self.born),
            change: self.ctime.as_change(),
        }
    }

    /// The pages of a regular file.
    pub(super) fn file(&self) -> Result<&Pages, FsError> {
        match &self.body {
            Body::File(pages) => Ok(pages),
            Body::Directory(_) => Err(FsError::IsDirectory),
            Body::Symlink(_) | Body::Special(_) => Err(FsError::Invalid),
        }
    }

    /// The pages of a regular file, to change.
    pub(super) fn file_mut(&mut self) -> Result<&mut Pages, FsError> {
        match &mut self.body {
            Body::File(pages) => Ok(pages),
            Body::Directory(_) => Err(FsError::IsDirectory),
            Body::Symlink(_) | Body::Special(_) => Err(FsError::Invalid),
        }
    }

    /// The entries of a directory.
    pub(super) fn directory(&self) -> Result<&Directory, FsError> {
        if let Body::Directory(directory) = &self.body { Ok(directory) } else { Err(FsError::NotDirectory) }
    }

    /// The entries of a directory, to change.
    pub(super) fn directory_mut(&mut self) -> Result<&mut Directory, FsError> {
        if let Body::Directory(directory) = &mut self.body {
            Ok(directory)
        } else {
            Err(FsError::NotDirectory)
        }
    }

    /// Sets attributes.
    pub(super) fn set(&mut self, set: &Update, space: &mut Space, now: Timestamp) {
        if *set == Update::default() {
            return;
        }
        let now = self.changed(now);
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        if let (Some(size), Body::File(pages)) = (set.size, &mut self.body) {
            if size < self.size {
                pages.truncate(space, size);
            }
            self.size = size;
            self.mtime = now;
        }
        if let Some(mode) = set.mode {
            self.mode = mode;
            if let Some(acl) = self.lists.as_mut().and_then(|lists| lists.access.as_mut()) {
                acl.set_mode_bits(mode);
            }
        }
        self.atime.set(set_time(set.atime, self.atime.get(), now));
        self.mtime = set_time(set.mtime, self.mtime, now);
    }

    /// Notes that the object changed at `now`. Returns its new ctime.
    ///
    /// That is later than the one before, even if the clock is not: clients tell by it that there was a change, and a
    /// guarded SETATTR (RFC 1813 section 3.3.2) depends on it. Several Calls have the same `now`. What an exclusive CREATE
    /// is recognized by ends here (RFC 1813 section 3.3.8).
    #[inline]
    pub(super) fn changed(&mut self, now: Timestamp) -> Timestamp {
        self.create_verifier = None;
        self.ctime = now.max(next_instant(self.ctime));
        self.ctime
    }

    /// Notes that the data changed.
    #[inline]
    pub(super) fn wrote(&mut self, now: Timestamp) {
        self.mtime = self.changed(now);
    }

    /// Notes that the entries of a directory changed.
    pub(super) fn changed_entries(&mut self, now: Timestamp) {
        self.mtime = self.changed(now);
    }
}

/// The time that one which `is` becomes.
fn set_time(set: TimeUpdate, is: Timestamp, now: Timestamp) -> Timestamp {
    match set {
        TimeUpdate::Keep => is,
        TimeUpdate::Now => now,
        TimeUpdate::To(time) => time,
    }
}

/// A nanosecond later; the last time that can be said is its own successor.
#[inline]
fn next_instant(Timestamp { seconds, nanoseconds }: Timestamp) -> Timestamp {
    match (seconds.checked_add(1), nanoseconds + 1) {
        (_, nanoseconds) if nanoseconds < NANOSECONDS => Timestamp { seconds, nanoseconds },
        (Some(seconds), _) => Timestamp { seconds, nanoseconds: 0 },
        (None, _) => Timestamp { seconds, nanoseconds },
    }
}

/// What a list that names `names` users and groups takes of the heap at most: they are in two pieces.
fn lists_len_max(names: usize) -> u64 {
    match names {
        0 => 0,
        _ => heap::allocation((names * size_of::<Named>()) as u64) + heap::allocation(1),
    }
}

/// The table of objects.
pub(super) struct Inodes {
    slots: Vec<Option<Inode>>,
    free: Vec<Index>,
    limit: u32,
    count: u32,
    /// Of the next object: none is used twice, so a handle of a removed object never fits a new one. It starts at a random
    /// number, so one of an earlier run, or of another store, does not fit either.
    generation_next: u64,
}

impl Inodes {
    pub(super) fn new(limit: u32) -> Inodes {
        // Of the operating system's randomness. The upper half of the numbers is left to count in.
        let generation_next = RandomState::new().hash_one(limit) >> 1;
        Inodes { slots: Vec::new(), free: Vec::new(), limit, count: 0, generation_next }
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Objects that can still be made.
    pub(super) fn left(&self) -> u32 {
        self.limit - self.count
    }

    /// Adds an object. Check [`Inodes::left`] first.
    pub(super) fn insert(&mut self, mut inode: Inode) -> Index {
        inode.generation = self.generation_next;
        self.generation_next += 1;
        self.count += 1;
        let slot = Some(inode);
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                if self.slots.len() == self.slots.capacity() {
                    // Doubled, as it would be otherwise, it would be twice as long as what is counted.
                    self.slots.reserve_exact((self.slots.len() / 16).max(64));
                }
                self.slots.push(slot);
                (self.slots.len() - 1) as Index
            }
        }
    }

    /// Takes an object out.
    pub(super) fn remove(&mut self, index: Index) -> Inode {
        let inode = self.slots[index as usize].take().expect("an entry names an object that is there");
        self.free.push(index);
        self.count -= 1;
        inode
    }

    /// Where the object is that `object` names, if it is still there.
    #[inline]
    pub(super) fn find(&self, object: ObjectId) -> Result<Index, FsError> {
        let index = object.fileid.wrapping_sub(1);
        let slot = usize::try_from(index).ok().and_then(|index| self.slots.get(index));
        match slot.and_then(Option::as_ref) {
            Some(inode) if inode.generation == object.generation => Ok(index as Index),
            _ => Err(FsError::Stale),
        }
    }

    /// What names the object at `index`.
    #[inline]
    pub(super) fn id(&self, index: Index) -> ObjectId {
        ObjectId { fileid: fileid(index), generation: self[index].generation }
    }
}

/// The number of the object at `index`. Never 0: some clients do not show such entries.
#[inline]
pub(super) fn fileid(index: Index) -> u64 {
    u64::from(index) + 1
}

impl std::ops::Index<Index> for Inodes {
    type Output = Inode;

    #[inline]
    fn index(&self, index: Index) -> &Inode {
        self.slots[index as usize].as_ref().expect("an entry names an object that is there")
    }
}

impl std::ops::IndexMut<Index> for Inodes {
    #[inline]
    fn index_mut(&mut self, index: Index) -> &mut Inode {
        self.slots[index as usize].as_mut().expect("an entry names an object that is there")
    }
}
