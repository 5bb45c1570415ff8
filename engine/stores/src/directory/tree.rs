//! The known part of the export's tree, and the descriptors that are open in it.
//!
//! ```text
//!  fileid ─▶ node: id, names: (directory, name)…, descriptor to look, descriptor to read or write
//!                               └──▶ node … ──▶ root
//! ```
//!
//! A node is used only after its name was seen to lead to it still, and the names of all directories above it, to the
//! root: so what is moved out of the export is out of reach, even with a handle of it. That is checked again when it
//! is older than [`Limits::trust`]. Each name is opened by itself, with no symbolic link followed and no mount
//! crossed, from the descriptor of the directory above: nothing outside can be named.
//!
//! Nodes and descriptors are bounded; those that were not used for the longest time go first. A handle
//! whose node is gone is found again as after a restart ([`super::search`]).

mod above;
mod acl;
mod descriptors;
mod search;

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use stag_vfs::{FsError, ObjectId, ObjectKind, Timestamp};

use super::acl::KnownAcl;
use super::index::{Index, NumberMap, ROOT};
use super::kernel::Kernel;
use super::last_seen::LastSeen;
use super::name_index::NameIndex;
use super::object::{Naming, Place, Stat, object_id, open_with, stat, stat_at, status};
use super::opened::{File, Identified, Marks, MayWait, may_wait};
use super::recent::Recent;
use super::search::Search;

/// The deepest directory, and the most names that are looked at to find an object.
const DEPTH_MAX: usize = 2048;

/// Names that are remembered of one file.
const NAMES_MAX: usize = 8;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Nodes.
    pub(super) objects: usize,
    /// Descriptors.
    pub(super) descriptors: usize,
    /// How long a name is believed that was seen to be right.
    pub(super) trust: Duration,
    /// Whether to let the kernel open by file handle, where it does.
    pub(super) by_handle: bool,
}

pub(super) struct Tree {
    nodes: Vec<Option<Node>>,
    free: Vec<Index>,
    /// A number is of one object at a time.
    by_fileid: NumberMap<u64, Index>,
    /// All but the root.
    recent: Recent,
    /// Those with descriptors, but for the root.
    with_descriptors: Recent,
    descriptors: usize,
    /// How often a node left the table, or its descriptors were closed.
    departures: u64,
    limits: Limits,
    /// The reactor's time.
    pub(super) now: Duration,
    kernel: Rc<Kernel>,
    by_name: NameIndex,
    /// What objects were, if they do not tell at once.
    last_seen: LastSeen,
    /// Whether the log names an entry of another file system already.
    has_told_of_others: bool,
    /// The root, open in the way that the kernel wants to open by file handle.
    mount: Option<File>,
    pub(super) search: Search,
    /// For [`Tree::check_chain`]; kept for its capacity.
    chain: Vec<Index>,
    /// The files are no longer served: nothing is open, and every object is stale.
    is_closed: bool,
}

/// An object that is known.
struct Node {
    id: ObjectId,
    kind: ObjectKind,
    /// A directory has one at most. None: it was moved, and has to be searched for.
    names: Vec<Name>,
    /// When it was made, if that and the number identify it.
    born: Option<Timestamp>,
    /// To look at, and to begin names at. Of an open file it is the descriptor that is open.
    looked: Option<File>,
    /// To read or write the data, or to list.
    opened: Option<Opened>,
    /// When its names, and those above it, were right.
    checked: Option<Duration>,
    /// Names of other nodes that are in it.
    children: u32,
    acl: KnownAcl,
}

struct Name {
    directory: Index,
    name: Box<[u8]>,
}

struct Opened {
    file: File,
    writable: bool,
}

impl Node {
    /// Descriptors that it keeps open.
    fn descriptors(&self) -> usize {
        match (&self.looked, &self.opened) {
            (Some(looked), Some(opened)) => 2 - usize::from(Arc::ptr_eq(looked, &opened.file)),
            (None, None) => 0,
            _ => 1,
        }
    }
}

/// What a node is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// To be opened.
    Descriptor,
    /// To know what it is.
    Attributes,
}

/// Why a node cannot be used.
pub(super) enum Trouble {
    /// The name of this one does not lead to it any more.
    Lost(Index),
    /// The kernel says so.
    Error(Errno),
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Trouble {
        Trouble::Error(error)
    }
}

impl Tree {
    /// The tree at `path`, to which symbolic links may lead: what it is then, is what is exported. `waits`: what may wait in its
    /// file system, if that is known.
    pub(super) fn open(path: &Path, limits: Limits, waits: Option<MayWait>) -> Result<Tree, Errno> {
        let flags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        let root = openat(CWD, path, flags, Mode::empty())?;
        let found = stat(&root)?;
        let naming = Naming::of(root.as_fd());
        let id = object_id(root.as_fd(), c"", &found, naming)?;
        // Who may not list it does not open by handle either.
        let flags = OFlags::RDONLY.union(OFlags::DIRECTORY);
        let mount = limits.by_handle.then(|| open_with(root.as_fd(), b".", flags).ok()).flatten();
        let waits = waits.unwrap_or_else(|| may_wait(&root));
        let kernel = Rc::new(Kernel::new(waits, Marks { place: found.place(), naming }));
        let mount = mount.map(|mount| kernel.file(mount));
        let node = Node {
            id,
            kind: ObjectKind::Directory,
            names: Vec::new(),
            born: None,
            looked: Some(kernel.file(root)),
            opened: None,
            checked: None,
            children: 0,
            acl: KnownAcl::default(),
        };
        Ok(Tree {
            nodes: vec![Some(node)],
            free: Vec::new(),
            by_fileid: NumberMap::from_iter([(id.fileid, ROOT)]),
            recent: Recent::new(),
            with_descriptors: Recent::new(),
            descriptors: 1 + usize::from(mount.is_some()),
            departures: 0,
            limits,
            now: Duration::ZERO,
            kernel,
            by_name: NameIndex::new(limits.objects),
            last_seen: LastSeen::new(),
            has_told_of_others: false,
            mount,
            search: Search::new(limits.objects, found.place()),
            chain: Vec::new(),
            is_closed: false,
        })
    }

    /// How long a name is believed.
    pub(super) fn trust(&self) -> Duration {
        self.limits.trust
    }

    pub(super) fn place(&self) -> Place {
        self.kernel.marks().place
    }

    /// Who makes its system calls.
    pub(super) fn kernel(&self) -> &Rc<Kernel> {
        &self.kernel
    }

    /// What to open file handles with, if the kernel does that for us.
    pub(super) fn mount(&self) -> Option<File> {
        self.mount.clone()
    }

    /// The kernel does not.
    pub(super) fn close_mount(&mut self) {
        self.descriptors -= usize::from(self.mount.take().is_some());
    }

    /// A place of a node that was handed out stays valid for as long as this number stays.
    pub(super) fn departures(&self) -> u64 {
        self.departures
    }

    /// Descriptors that are open.
    pub(super) fn descriptors(&self) -> usize {
        self.descriptors
    }

    /// Objects that are known.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    fn node(&self, index: Index) -> &Node {
        self.nodes[index as usize].as_ref().expect("an index is of a node that is there")
    }

    fn node_mut(&mut self, index: Index) -> &mut Node {
        self.nodes[index as usize].as_mut().expect("an index is of a node that is there")
    }

    pub(super) fn id(&self, index: Index) -> ObjectId {
        self.node(index).id
    }

    /// A name of a node that was just found, and the descriptor of the directory that it is in. AGAIN: that was closed to make room
    /// for others, while the node itself is trusted; STALE: it has no name.
    fn name(&self, index: Index) -> Result<(File, &[u8]), Errno> {
        let name = self.node(index).names.first().ok_or(Errno::STALE)?;
        let directory = self.node(name.directory).looked.clone().ok_or(Errno::AGAIN)?;
        Ok((directory, &name.name))
    }

    /// The node that is known under a number.
    pub(super) fn known(&self, fileid: u64) -> Option<Index> {
        self.by_fileid.get(&fileid).copied()
    }

    /// The node of an object that is known.
    pub(super) fn known_as(&self, id: ObjectId) -> Option<Index> {
        self.known(id.fileid).filter(|index| self.id(*index) == id)
    }

    /// The descriptor of a node, to look at it and to begin names at it. The node was just found.
    pub(super) fn path_fd(&self, index: Index) -> Result<File, FsError> {
        self.node(index).looked.clone().ok_or(FsError::Busy)
    }

    /// Finds an object, wherever it is by now, and opens it to be looked at.
    pub(super) fn find(&mut self, id: ObjectId) -> Result<Index, FsError> {
        match self.find_trusted(id) {
            Some(index) => Ok(index),
            None => self.find_as(id, Wanted::Descriptor).map(|(index, _)| index),
        }
    }

    /// An object that is known, open, and whose name is still believed.
    #[inline]
    fn find_trusted(&mut self, id: ObjectId) -> Option<Index> {
        let index = self.known_as(id).filter(|index| !self.is_closed && self.is_trusted(*index))?;
        if index != ROOT {
            self.recent.touch(index);
            self.with_descriptors.touch(index);
        }
        Some(index)
    }

    /// Finds an object; and says what it is if that was seen on the way.
    fn find_as(&mut self, id: ObjectId, wanted: Wanted) -> Result<(Index, Option<Stat>), FsError> {
        if self.is_closed {
            return Err(FsError::Stale);
        }
        // Each round loses a name that was wrong, so few are needed.
        for _ in 0..2 * NAMES_MAX {
            let known = self.known(id.fileid).filter(|index| self.node(*index).id == id);
            let Some(index) = known else { return self.recover(id).map(|index| (index, None)) };
            match self.check_chain(index, wanted) {
                Ok(seen) => return Ok((index, seen)),
                Err(Trouble::Error(error)) => return Err(status(error)),
                Err(Trouble::Lost(lost)) if lost == index => {
                    if self.is_deleted(index) {
                        self.remove(index);
                        return Err(FsError::Stale);
                    }
                    return self.recover(id).map(|index| (index, None));
                }
                Err(Trouble::Lost(lost)) => match self.recover(self.id(lost)) {
                    Ok(_) => {}
                    // A directory above it is gone: perhaps it has another name elsewhere.
                    Err(FsError::Stale) => self.drop_first_name(index, lost),
                    Err(other) => return Err(other),
                },
            }
        }
        Err(FsError::Busy)
    }

    /// Finds an object, and what it is. It may not be open then: see [`Tree::open`].
    pub(super) fn find_stat(&mut self, id: ObjectId) -> Result<(Index, Stat), FsError> {
        let found = self.find_stat_now(id)?;
        if !self.kernel.knows_what_is_open() {
            self.last_seen.note(id, found.1);
        }
        Ok(found)
    }

    /// What an object was when it was last seen.
    pub(super) fn last_seen(&self, id: ObjectId) -> Option<Stat> {
        self.last_seen.get(id)
    }

    #[inline]
    fn find_stat_now(&mut self, id: ObjectId) -> Result<(Index, Stat), FsError> {
        let index = match self.find_trusted(id) {
            Some(index) => index,
            None => match self.find_as(id, Wanted::Attributes)? {
                (index, Some(found)) => return Ok((index, found)),
                (index, None) => index,
            },
        };
        let looked = self.node(index).looked.as_ref().ok_or(FsError::Busy)?;
        let found = self.kernel.stat(looked).map_err(status)?;
        if found.nlink == 0 {
            self.remove(index);
            return Err(FsError::Stale);
        }
        Ok((index, found))
    }

    /// Whether the last name of what is open here is gone.
    fn is_deleted(&self, index: Index) -> bool {
        let looked = self.node(index).looked.as_ref();
        looked.is_some_and(|looked| self.kernel.stat(looked).is_ok_and(|found| found.nlink == 0))
    }

    fn is_trusted(&self, index: Index) -> bool {
        let node = self.node(index);
        let fresh = |checked| self.now < self.limits.trust.saturating_add(checked);
        index == ROOT || node.looked.is_some() && node.checked.is_some_and(fresh)
    }

    /// Sees that names lead from the root to a node, and opens what is not open.
    ///
    /// The last of them, `index`, is opened if its descriptor is wanted. If it was looked at by its name, this is what it is.
    fn check_chain(&mut self, index: Index, wanted: Wanted) -> Result<Option<Stat>, Trouble> {
        let mut chain = std::mem::take(&mut self.chain);
        let result = self.collect_chain(index, &mut chain).and_then(|()| {
            let mut seen = None;
            // From the top: each is looked up in the one above it.
            for at in chain.iter().rev() {
                seen = Some(self.check(*at, if *at == index { wanted } else { Wanted::Descriptor })?);
            }
            Ok(seen)
        });
        // The deepest first, so that those above it stay longer: others need them too.
        for index in chain.drain(..) {
            if index != ROOT && self.nodes[index as usize].is_some() {
                self.recent.touch(index);
            }
        }
        self.chain = chain;
        if result.is_ok() && index != ROOT {
            self.recent.touch(index);
            self.with_descriptors.touch(index);
        }
        result
    }

    /// The nodes that have to be checked, beginning with `index`.
    fn collect_chain(&mut self, index: Index, chain: &mut Vec<Index>) -> Result<(), Trouble> {
        let mut at = index;
        while !self.is_trusted(at) {
            let Some(name) = self.node(at).names.first() else { return Err(Trouble::Lost(at)) };
            let directory = name.directory;
            if chain.len() == DEPTH_MAX {
                if self.leads_to_root(at) {
                    return Err(Trouble::Error(Errno::NAMETOOLONG));
                }
                // Somebody turned directories over while we looked: names in a circle.
                self.drop_names(at);
                return Err(Trouble::Lost(at));
            }
            chain.push(at);
            at = directory;
        }
        Ok(())
    }

    /// Sees that a node's name leads to it. The directory above it was just checked.
    fn check(&mut self, index: Index, wanted: Wanted) -> Result<Stat, Trouble> {
        let node = self.node(index);
        let (id, looked) = (node.id, node.looked.is_some());
        let Some(name) = node.names.first() else { return Err(Trouble::Lost(index)) };
        let above = self.node(name.directory);
        let checked = if name.directory == ROOT { Some(self.now) } else { above.checked };
        let Some(directory) = above.looked.clone() else { return Err(Trouble::Error(Errno::AGAIN)) };
        let has_birth = node.born.is_some();
        let glanced = if looked || wanted == Wanted::Attributes && has_birth {
            self.kernel.stat_at(&directory, &name.name, looked).map(Some)
        } else {
            Ok(None)
        };
        let found = match glanced {
            Ok(Some(found)) if self.same_as_known(&found) == Some(index) => Ok(Some((None, found))),
            // The open descriptor keeps the number from being used again, so it is another object.
            Ok(Some(_)) if looked => Ok(None),
            Ok(_) => self
                .kernel
                .identify(&directory, &name.name)
                .map(|Identified { file, id: is, found }| (is == id).then_some((Some(file), found))),
            Err(error) => Err(error),
        };
        match found {
            Ok(Some((opened, found))) => {
                if let Some(opened) = opened {
                    self.node_mut(index).born = found.settled_birth();
                    self.set_looked(index, opened);
                }
                self.node_mut(index).checked = checked;
                Ok(found)
            }
            // Something else has the name, or nothing.
            Ok(None) | Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::STALE) => {
                self.drop_name(index, 0);
                if self.node(index).names.is_empty() {
                    return Err(Trouble::Lost(index));
                }
                // Its other names are in other directories: the caller begins again.
                self.node_mut(index).checked = None;
                self.check_chain_again(index, wanted)
            }
            Err(error) => Err(Trouble::Error(error)),
        }
    }

    /// The known object that this is by its number, and by what keeps that from being another's: a descriptor that is open, or
    /// the time of birth.
    fn same_as_known(&self, found: &Stat) -> Option<Index> {
        let index = self.known(found.fileid).filter(|_| found.place() == self.place())?;
        let node = self.node(index);
        let is_same = node.looked.is_some() || node.born.is_some() && node.born == found.born_at();
        (is_same && node.kind == found.kind).then_some(index)
    }

    /// Checks a node by another of its names.
    fn check_chain_again(&mut self, index: Index, wanted: Wanted) -> Result<Stat, Trouble> {
        // At most `NAMES_MAX` deep: each time a name is gone. It is not trusted, so it is looked at.
        self.check_chain(index, wanted)?.ok_or(Trouble::Error(Errno::AGAIN))
    }

    /// The descriptor of an object that was just found, which is opened if it is not.
    pub(super) fn open_to_look(&mut self, index: Index) -> Result<File, Errno> {
        if let Some(looked) = &self.node(index).looked {
            return Ok(looked.clone());
        }
        let (directory, name) = self.name(index)?;
        let Identified { file: opened, id: is, found } = self.kernel.identify(&directory, name)?;
        // Somebody may have moved another object there since the name was checked.
        if is != self.id(index) {
            return Err(Errno::AGAIN);
        }
        self.node_mut(index).born = found.settled_birth();
        self.set_looked(index, opened);
        self.node(index).looked.clone().ok_or(Errno::AGAIN)
    }

    /// Looks a name up in a directory that was just found.
    pub(super) fn enter(&mut self, directory: Index, name: &[u8]) -> Result<(Index, Stat), FsError> {
        self.check_depth(directory)?;
        let above = self.path_fd(directory)?;
        let identified = self.kernel.identify(&above, name).map_err(|error| {
            if error == Errno::XDEV && !std::mem::replace(&mut self.has_told_of_others, true) {
                let name = String::from_utf8_lossy(name);
                tracing::warn!(
                    "{name:?} in an exported directory: it belongs to another file system (a mount, a subvolume, or a layer \
                     of an overlay), which is not exported with it; give it an export of its own"
                );
            }
            status(error)
        })?;
        let found = identified.found;
        Ok((self.note_identified(directory, name, identified), found))
    }

    /// Notes what a name in a directory that was just found leads to.
    pub(super) fn note_identified(
        &mut self,
        directory: Index,
        name: &[u8],
        Identified { file, id, found }: Identified,
    ) -> Index {
        let index = self.note(directory, name, id, found.kind);
        self.node_mut(index).born = found.settled_birth();
        if self.node(index).looked.is_none() {
            self.set_looked(index, file);
        }
        let above = self.node(directory).checked;
        let checked = if directory == ROOT { Some(self.now) } else { above };
        self.node_mut(index).checked = checked;
        self.with_descriptors.touch(index);
        index
    }

    /// Looks a name up in a directory that was just found. If it is a known object's, that is one system call.
    pub(super) fn look_up(&mut self, directory: Index, name: &[u8]) -> Result<(Index, Stat), FsError> {
        self.check_depth(directory)?;
        let above = self.path_fd(directory)?;
        let is_open = !self.kernel.is_immediate() && self.is_open_as(directory, name);
        // What is not open is opened in any case, where a look at a name is one of what it opens.
        if !is_open && !self.kernel.is_immediate() {
            return self.enter(directory, name);
        }
        let found = self.kernel.stat_at(&above, name, is_open).map_err(status)?;
        let Some(index) = self.same_as_known(&found) else { return self.enter(directory, name) };
        self.note_name(directory, name, index);
        let above = self.node(directory).checked;
        if index != ROOT {
            self.node_mut(index).checked = if directory == ROOT { Some(self.now) } else { above };
            if self.node(index).looked.is_some() {
                self.with_descriptors.touch(index);
            }
        }
        Ok((index, found))
    }

    /// What a name in a directory is that was just found, noted for later but not opened.
    pub(super) fn glance(&mut self, directory: Index, text: &CStr) -> Result<(ObjectId, Stat), Errno> {
        let above = self.node(directory).looked.as_ref().ok_or(Errno::AGAIN)?;
        let found = stat_at(above.as_fd(), text)?;
        let name = text.to_bytes();
        if found.place() != self.place() {
            return Err(Errno::XDEV);
        }
        if let Some(index) = self.same_as_known(&found) {
            self.note_name(directory, name, index);
            return Ok((self.id(index), found));
        }
        let id = object_id(above.as_fd(), text, &found, self.kernel.marks().naming)?;
        self.note(directory, name, id, found.kind);
        Ok((id, found))
    }

    /// Remembers that an object has a name.
    pub(super) fn note(&mut self, directory: Index, name: &[u8], id: ObjectId, kind: ObjectKind) -> Index {
        let index = match self.known(id.fileid) {
            Some(ROOT) => return ROOT,
            // What had the number before is gone. (Names in it are wrong by now, which will be seen.)
            Some(index) if self.node(index).id != id => {
                self.drop_names(index);
                self.close(index);
                let node = self.node_mut(index);
                (node.id, node.kind, node.checked, node.born) = (id, kind, None, None);
                node.acl = KnownAcl::default();
                index
            }
            Some(index) => index,
            None => self.add(id, kind),
        };
        self.note_name(directory, name, index);
        index
    }

    /// Remembers that a known object has a name.
    fn note_name(&mut self, directory: Index, name: &[u8], index: Index) {
        if index == ROOT {
            return;
        }
        self.recent.touch(index);
        self.by_name.note(directory, name, index);
        let kind = self.node(index).kind;
        let names = &self.node(index).names;
        if let Some(at) = names.iter().position(|known| known.directory == directory && *known.name == *name)
        {
            self.node_mut(index).names.swap(0, at);
            return;
        }
        if kind == ObjectKind::Directory {
            self.drop_names(index);
        } else if names.len() == NAMES_MAX {
            self.drop_name(index, NAMES_MAX - 1);
        }
        // The newest first: it is the likeliest to be right.
        self.node_mut(index).names.insert(0, Name { directory, name: name.into() });
        self.node_mut(directory).children += 1;
    }

    /// Whether an object is open that was known under this name: then the kernel has in memory what has the name now.
    fn is_open_as(&self, directory: Index, name: &[u8]) -> bool {
        let index = self.by_name.get(directory, name);
        let node = self.nodes[index as usize].as_ref();
        node.is_some_and(|node| {
            let has_name = || node.names.iter().any(|own| own.directory == directory && *own.name == *name);
            node.looked.is_some() && has_name()
        })
    }

    fn add(&mut self, id: ObjectId, kind: ObjectKind) -> Index {
        if self.len() >= self.limits.objects {
            self.evict();
        }
        let node = Node {
            id,
            kind,
            names: Vec::new(),
            born: None,
            looked: None,
            opened: None,
            checked: None,
            children: 0,
            acl: KnownAcl::default(),
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = Some(node);
                index
            }
            None => {
                self.nodes.push(Some(node));
                (self.nodes.len() - 1) as Index
            }
        };
        self.by_fileid.insert(id.fileid, index);
        index
    }

    /// Forgets the node that was not used for the longest time; not a directory that others are in.
    fn evict(&mut self) {
        const TRIES: usize = 64;
        for _ in 0..TRIES {
            let Some(oldest) = self.recent.oldest() else { return };
            if self.node(oldest).children == 0 {
                return self.remove(oldest);
            }
            self.recent.touch(oldest);
        }
    }

    /// Forgets a node. One that others are in stays, without a name.
    pub(super) fn remove(&mut self, index: Index) {
        if index == ROOT {
            return;
        }
        self.drop_names(index);
        self.close(index);
        if self.node(index).children > 0 {
            return;
        }
        self.recent.remove(index);
        if let Some(node) = self.nodes[index as usize].take() {
            self.by_fileid.remove(&node.id.fileid);
        }
        self.free.push(index);
    }

    /// A name is no longer that of the object with this number, if it is known.
    pub(super) fn forget_name(&mut self, directory: Index, name: &[u8], fileid: u64, was_last: bool) {
        let Some(index) = self.known(fileid).filter(|index| *index != ROOT) else { return };
        let names = &self.node(index).names;
        let at = names.iter().position(|known| known.directory == directory && *known.name == *name);
        if let Some(at) = at {
            self.drop_name(index, at);
        }
        if was_last {
            self.remove(index);
        }
    }

    fn drop_name(&mut self, index: Index, at: usize) {
        let name = self.node_mut(index).names.remove(at);
        self.node_mut(name.directory).children -= 1;
    }

    fn drop_names(&mut self, index: Index) {
        while !self.node(index).names.is_empty() {
            self.drop_name(index, 0);
        }
    }

    /// Drops the first name of the node above which `lost` stands, on the way up from `index`.
    fn drop_first_name(&mut self, index: Index, lost: Index) {
        let mut at = index;
        for _ in 0..DEPTH_MAX {
            let Some(above) = self.node(at).names.first().map(|name| name.directory) else { return };
            if above == lost {
                return self.drop_name(at, 0);
            }
            at = above;
        }
    }

    /// Notes a file that was just made as `name` and is open to be read and written.
    pub(super) fn note_made(&mut self, directory: Index, name: &[u8], made: Identified) -> (Index, File) {
        let Identified { file, id, found } = made;
        let index = self.note(directory, name, id, found.kind);
        let above = self.node(directory).checked;
        self.node_mut(index).checked = if directory == ROOT { Some(self.now) } else { above };
        (index, self.keep_opened(index, file, true))
    }
}
