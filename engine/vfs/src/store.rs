//! The seam between the NFS server and the stores that keep the files.
//!
//! The server decodes, squashes, seals handles and gathers attributes; a [`Store`] knows objects, names,
//! permissions and data. Its procedures are RFC 1813's, and their errors its statuses. A store is owned by one
//! reactor, and no procedure blocks. READ, WRITE, COMMIT and [`Store::commit_changes`] may be [`Progress::Later`]:
//! they take and give data as counted references, which can wait.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::acl::{Lists, SetLists};
use crate::error::FsError;
use crate::identity::UserIdentity;
use crate::types::{
    CreateMode, DeviceId, ObjectId, ObjectKind, ObjectStat, Stability, StoreVerifier, Timestamp, Update,
};
use stag_memory::Shared;

/// Octets to write.
#[derive(Debug)]
pub enum WriteData<'a> {
    /// In a message: they are copied.
    Inline(&'a [u8]),
    /// In buffers that a transfer placed them in, one after the other. A store may keep the buffers, and may leave memory that
    /// it gives up in their place: drop the contents afterwards. They must be of a pool with units of 4096 bytes.
    Placed(&'a mut [Shared]),
}

impl WriteData<'_> {
    /// Octets in all.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            WriteData::Inline(octets) => octets.len(),
            WriteData::Placed(pieces) => pieces.iter().map(Shared::len).sum(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a READ gave, beside the octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDone {
    /// Octets.
    pub count: u32,
    /// Whether they reach the end of the file.
    pub eof: bool,
}

/// What a WRITE did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteDone {
    /// Octets written: fewer than given if the space ended between.
    pub count: u32,
    /// How safe they are.
    pub committed: Stability,
}

/// Names something of one store that is under way. Small and dense, so that an array can be indexed
/// with it; good for one [`Store::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u32);

/// How far something is that a store need not do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress<T> {
    /// It is over.
    Done(T),
    /// It will be: [`Store::poll_later`] will return this ticket.
    Later(Ticket),
}

impl<T> Progress<T> {
    /// What came out, if it is over.
    pub fn done(self) -> Option<T> {
        match self {
            Progress::Done(done) => Some(done),
            Progress::Later(_) => None,
        }
    }
}

/// What came of something that was [`Progress::Later`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// Of a READ.
    Read(ReadDone),
    /// Of a WRITE.
    Write(WriteDone),
    /// Of a COMMIT, or of [`Store::commit_changes`].
    Commit,
}

/// An object to make that is neither file, directory nor symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A block device.
    Block(DeviceId),
    /// A character device.
    Character(DeviceId),
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
}

impl Special {
    /// Its type.
    #[must_use]
    pub const fn kind(&self) -> ObjectKind {
        match self {
            Special::Block(_) => ObjectKind::Block,
            Special::Character(_) => ObjectKind::Character,
            Special::Socket => ObjectKind::Socket,
            Special::Fifo => ObjectKind::Fifo,
        }
    }
}

/// Room for what a symbolic link holds.
pub const LINK_SPACE: usize = 4096;

/// An entry of a directory, as [`Store::list`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The object. A store may leave the generation out where it gives no attributes.
    pub object: ObjectId,
    /// Its name.
    pub name: &'a [u8],
    /// Where the listing goes on after it.
    pub cookie: u64,
    /// Its attributes, if they were asked for and it is one that can be reached.
    pub attributes: Option<ObjectStat>,
}

/// Space and objects of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes for data in all.
    pub bytes_total: u64,
    /// Bytes free.
    pub bytes_free: u64,
    /// Objects in all.
    pub files_total: u64,
    /// Objects free.
    pub files_free: u64,
}

/// The numbers that FSINFO and PATHCONF tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// The largest file, in bytes.
    pub file_len_max: u64,
    /// Hard links of an object.
    pub links_max: u32,
    /// The longest name, in bytes.
    pub name_len_max: u32,
    /// The longest path of a symbolic link, in bytes.
    pub path_len_max: u32,
}

/// A file system.
///
/// Every procedure that changes something does all of it, or fails and does nothing, with two exceptions.
/// [`Store::write`] may write a part, and says how much. And a store whose files are the kernel's takes several system
/// calls for one procedure: if a later one fails it takes the earlier ones back, as far as the kernel lets it
/// ([`store of a directory` says what can remain). `now` is the wall clock.
pub trait Store {
    /// Identifies the file system: in handles and attributes.
    fn fsid(&self) -> u64;

    /// Identifies what an [`ObjectId`] is unique in: the same number for all stores of one file system of this machine.
    fn volume(&self) -> u64 {
        self.fsid()
    }

    /// The directory that everything is in.
    fn root(&self) -> ObjectId;

    /// The numbers it keeps to.
    fn limits(&self) -> StoreLimits;

    /// Whether nothing can be changed now, because the files are so: a file system that is mounted read-only.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Fails once the files are no longer where they were when the store was made: their place on the machine leads to
    /// others, which a client that mounts now would expect.
    fn check_place(&self) -> Result<(), FsError> {
        Ok(())
    }

    /// Space and objects now.
    fn usage(&self) -> Usage;

    /// Changes whenever data that was written and not committed may have been lost.
    fn write_verifier(&self) -> StoreVerifier;

    /// ObjectStat of an object. No permission is needed.
    fn attributes(&self, object: ObjectId) -> Result<ObjectStat, FsError>;

    /// ObjectStat of an object that is about to be changed; `None` if something else is changing it at the same time. Then
    /// what it was before and what it is after do not tell what one procedure did (RFC 1813 section 2.6).
    fn before(&self, object: ObjectId) -> Option<ObjectStat> {
        self.attributes(object).ok()
    }

    /// ObjectStat of a file that a WRITE or COMMIT is about to begin on. `None` as of [`Store::before`], and where a store does
    /// them later: others come between, so what the file was before is not told then.
    fn before_transfer(&self, object: ObjectId) -> Option<ObjectStat> {
        self.before(object)
    }

    /// ObjectStat of a file of which a READ or WRITE has just told. As [`Store::attributes`], for a store where that is worth
    /// code of its own.
    #[inline]
    fn after_transfer(&self, object: ObjectId) -> Option<ObjectStat> {
        self.attributes(object).ok()
    }

    /// ObjectStat of the file of which [`Store::finish`] has just told, as they were at some moment since that was over. A
    /// store that has to ask for them may ask once for all transfers of a file that ended together.
    fn attributes_after(&mut self, object: ObjectId) -> Result<ObjectStat, FsError> {
        self.attributes(object)
    }

    /// Sets attributes, if the object's ctime is `guard`.
    fn set_attributes(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        set: &Update,
        guard: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<(), FsError>;

    /// The object of a name, of `.` and of `..`.
    fn lookup(&self, caller: &UserIdentity, directory: ObjectId, name: &[u8]) -> Result<ObjectId, FsError>;

    /// Which of the accesses `wanted` the caller has.
    fn access(&self, caller: &UserIdentity, object: ObjectId, wanted: u32) -> Result<u32, FsError>;

    /// The access control lists of an object beside its mode. No permission is needed. A store that keeps none
    /// has this answer.
    fn lists(&self, object: ObjectId) -> Result<Lists<'_>, FsError> {
        self.attributes(object).map(|_| Lists::default())
    }

    /// Sets access control lists. A store that keeps none takes what a mode can say, and no more.
    fn set_lists(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        set: &SetLists,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let ObjectStat { kind, mode, .. } = self.attributes(object)?;
        if matches!(set.default, Some(Some(_))) || kind == ObjectKind::Symlink {
            return Err(FsError::NotSupported);
        }
        match &set.access {
            Some(Some(acl)) if acl.is_minimal() => {
                let mode = Some(mode & !0o777 | acl.mode_bits());
                let set = Update { mode, ..Update::default() };
                self.set_attributes(caller, object, &set, None, now)
            }
            Some(Some(_)) => Err(FsError::NotSupported),
            Some(None) | None => Ok(()),
        }
    }

    /// What a symbolic link holds. A store that does not have it in memory reads it into `space`.
    fn read_link<'a>(
        &'a self,
        caller: &UserIdentity,
        object: ObjectId,
        space: &'a mut [u8; LINK_SPACE],
        now: Timestamp,
    ) -> Result<&'a [u8], FsError>;

    /// Whether READ copies into payload memory; if so, it is limited to the client's share of payload memory.
    fn reads_take_memory(&self) -> bool {
        false
    }

    /// Appends `count` octets from `offset`, or what there is of them, to `pieces`, without copying.
    ///
    /// `pieces` is never made larger than its capacity: where the file is in more places than that, the READ is
    /// short. So give it room for at least one piece. If it is done later, [`Store::finish`] gives the pieces, or
    /// says why there are none.
    fn read(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        now: Timestamp,
    ) -> Result<Progress<ReadDone>, FsError>;

    /// Writes at `offset`. A failure changed no data; that a program no longer runs as its owner or group may remain.
    fn write(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        stable: Stability,
        now: Timestamp,
    ) -> Result<Progress<WriteDone>, FsError>;

    /// Puts what was written on stable storage.
    fn commit(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<Progress<()>, FsError>;

    /// Begins to put on stable storage what the procedures on names and attributes changed since this was called last,
    /// failed ones too. A Call that changes something is answered when that is over (RFC 1813 section 4.8). It
    /// cannot be refused. A store that has no other storage is done at once.
    fn commit_changes(&mut self) -> Progress<()> {
        Progress::Done(())
    }

    /// The next of those that were [`Progress::Later`] and are over. Called each pass: what was begun since the
    /// last time gets under way. `now` is the reactor's clock.
    fn poll_later(&mut self, now: Duration) -> Option<Ticket> {
        let _ = now;
        None
    }

    /// What came of what [`Store::poll_later`] returned; the octets of a READ are appended to `pieces`, as
    /// [`Store::read`] would.
    fn finish(&mut self, ticket: Ticket, pieces: &mut Vec<Shared>) -> Result<Finished, FsError> {
        let _ = (ticket, pieces);
        Err(FsError::Fault)
    }

    /// What becomes readable when [`Store::poll_later`] has something to return.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// Whether [`Store::poll_later`] has work to do of its own accord, so that the reactor should not sleep.
    fn is_busy(&self) -> bool {
        false
    }

    /// Makes a regular file, or finds the one that `how` allows.
    fn create(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        how: &CreateMode,
        now: Timestamp,
    ) -> Result<ObjectId, FsError>;

    /// Makes a directory.
    fn make_directory(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError>;

    /// Makes a symbolic link that holds `path`.
    fn make_symlink(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        path: &[u8],
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError>;

    /// Makes a device, socket or pipe.
    fn make_special(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        special: Special,
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError>;

    /// Removes a name of anything but a directory.
    fn remove(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError>;

    /// Removes an empty directory.
    fn remove_directory(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError>;

    /// Renames `from` to `to`, replacing what `to` named.
    fn rename(
        &mut self,
        caller: &UserIdentity,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        now: Timestamp,
    ) -> Result<(), FsError>;

    /// Gives an object one more name.
    fn link(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError>;

    /// What a client must send back together with a directory's cookies.
    fn list_verifier(&self, directory: ObjectId) -> Result<StoreVerifier, FsError>;

    /// Shows the entries after `cookie` (from the first, if it is 0) until `visit` returns `false`; that entry
    /// counts as not shown. Returns whether the last entry was shown.
    ///
    /// A cookie stays good as long as the directory: entries that come or go meanwhile change no other's.
    fn list(
        &self,
        caller: &UserIdentity,
        directory: ObjectId,
        start: ListStart,
        now: Timestamp,
        visit: impl FnMut(Listed<'_>) -> bool,
    ) -> Result<bool, FsError>;
}

/// Where and how a listing starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListStart {
    /// The cookie of the last entry seen, or 0.
    pub cookie: u64,
    /// The verifier that came with it.
    pub verifier: StoreVerifier,
    /// Whether to show attributes.
    pub attributes: bool,
}
