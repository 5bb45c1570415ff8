//! The interface of a store: a file system without permissions.
//!
//! - A step that reads changes nothing and may be run again. It may answer [`Blocked::Waits`]: the operation is run again from
//!   its start when the ticket is done, as soon as [`Store::finish`] took that: what the store has learned is good for this run,
//!   until [`Store::poll_later`] is called again.
//! - A step that changes is the last of its operation. It does all of it, or fails and does nothing; it may be over later
//!   ([`Progress::Later`]).
//!
//! So a store may be slow in every step, and what is above it stays straight-line code. A store is owned by one reactor, and no
//! step blocks.

use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;

use stag_memory::Shared;

use crate::acl::{Acl, SetLists};
use crate::error::FsError;
use crate::identity::UserIdentity;
use crate::name::{NAME_LEN_MAX, PATH_LEN_MAX};
use crate::types::{
    DeviceId, ObjectId, ObjectKind, ObjectStat, OctetLock, Stability, StoreVerifier, TimeUpdate, Timestamp,
    Update,
};
use crate::verifier::has_verifier_times;

/// Names something of one store that is under way. Small and dense, so that an array can be indexed
/// with it; good for one [`Store::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u32);

/// Why a step has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// There will be none.
    Fails(FsError),
    /// Not yet: run the operation again, from its start, when [`Store::poll_later`] returned this ticket and
    /// [`Store::finish`] took it.
    Waits(Ticket),
}

impl From<FsError> for Blocked {
    #[inline]
    fn from(error: FsError) -> Blocked {
        Blocked::Fails(error)
    }
}

/// For a caller that cannot wait: it hears that it should try again.
impl From<Blocked> for FsError {
    #[inline]
    fn from(blocked: Blocked) -> FsError {
        match blocked {
            Blocked::Fails(error) => error,
            Blocked::Waits(_) => FsError::Busy,
        }
    }
}

/// What a step that reads answers.
pub type ReadStep<T> = Result<T, Blocked>;

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

/// What a step that changes something answers.
pub type ChangeStep<T> = Result<Progress<T>, Blocked>;

/// What came of something that a ticket was given for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The answer to a step that reads is there: run its operation again.
    Ready,
    /// A READ is over.
    Read(ReadDone),
    /// A WRITE is over.
    Write(WriteDone),
    /// A COMMIT is over, or [`Store::sync_changes`].
    Commit,
    /// An object was made.
    Made(ObjectStat),
    /// Something else was changed.
    Changed,
}

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

/// What a stretch of a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Octets that were written; zeros may be among them.
    Data,
    /// Nothing: it reads as zeros. The end of each file is followed by one.
    Hole,
}

/// What becomes of the space of a stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceChange {
    /// It is reserved, so that a later WRITE there does not lack space. The data stays as it is; a file that ends before the end
    /// of the stretch becomes as long.
    Reserve,
    /// It is given up: the stretch reads as zeros. The file stays as long as it is.
    Release,
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
    /// Its kind.
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

/// An object to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewObject<'a> {
    /// A regular file; with what an exclusive CREATE is recognized by, if it is one and the store keeps that
    /// ([`Capabilities::keeps_verifiers`]).
    File(Option<StoreVerifier>),
    /// A directory.
    Directory,
    /// A symbolic link that holds this path.
    Symlink(&'a [u8]),
    /// A device, socket or pipe.
    Special(Special),
}

impl NewObject<'_> {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> ObjectKind {
        match self {
            NewObject::File(_) => ObjectKind::Regular,
            NewObject::Directory => ObjectKind::Directory,
            NewObject::Symlink(_) => ObjectKind::Symlink,
            NewObject::Special(special) => special.kind(),
        }
    }
}

/// What a new object is from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAttributes {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Whether somebody asked for that group. Else a file system that gives its own to all objects may do so.
    pub has_asked_gid: bool,
    /// All of the mode's bits.
    pub mode: u32,
    /// Size of a file, if not 0.
    pub size: Option<u64>,
    /// Last access; [`TimeUpdate::Keep`] is now.
    pub atime: TimeUpdate,
    /// Last change of the data; [`TimeUpdate::Keep`] is now.
    pub mtime: TimeUpdate,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct EntryName<'a> {
    /// The directory, as it was seen.
    pub directory: &'a ObjectStat,
    /// The name.
    pub name: &'a [u8],
}

/// Room for what a symbolic link holds.
pub const LINK_SPACE: usize = 4096;

/// Directories between an object and the root, at most, where a store does not say how many.
const DEPTH_MAX: usize = 4096;

/// Where and how a listing starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListStart {
    /// The cookie of the last entry seen, or 0.
    pub cookie: u64,
    /// Whether to show attributes.
    pub attributes: bool,
}

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

/// Space and objects of a store. All 0: it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// The limits of a store.
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

impl Default for StoreLimits {
    /// What the protocols can say, and no hard links.
    fn default() -> StoreLimits {
        StoreLimits {
            file_len_max: i64::MAX as u64,
            links_max: 1,
            name_len_max: NAME_LEN_MAX,
            path_len_max: PATH_LEN_MAX,
        }
    }
}

/// What a store does beyond the least. All `false`: the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// READ copies into payload memory, so it is limited to the client's share of that.
    pub reads_take_memory: bool,
    /// READ and WRITE ask [`policy::admit_read`](crate::policy::admit_read) and [`policy::admit_write`](crate::policy::admit_write) themselves, when they examine the file, and WRITE
    /// sets the mode that [`policy::mode_after_write`](crate::policy::mode_after_write) says. Else all that is done before, which costs a [`Store::stat`].
    pub admits_transfers: bool,
    /// READ, WRITE and COMMIT are mostly over later, so what a file was before says nothing of them.
    pub finishes_transfers_later: bool,
    /// It keeps access control lists.
    pub keeps_lists: bool,
    /// It keeps the verifier of an exclusive CREATE ([`NewObject::File`]). Else the times of the new file keep it.
    pub keeps_verifiers: bool,
    /// Each reactor of a group has a store of the same files.
    pub is_at_every_reactor: bool,
    /// Files change by steps of this store only, and each change raises [`ObjectStat::change`]. So its values around a step that
    /// is done at once tell what that step did. Else it is a time, which may stand still, and others may change files as well.
    pub counts_changes: bool,
    /// Locks of clients have to be taken by [`Store::lock_octets`] as well, because others use the files too and see such locks.
    pub locks_below: bool,
}

/// What a store is. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreProfile {
    /// Identifies the file system: in handles and attributes.
    pub fsid: u64,
    /// Identifies what an [`ObjectId`] is unique in: the same number for all stores of one file system of this machine.
    pub volume: u64,
    /// The directory that everything is in.
    pub root: ObjectId,
    /// Its limits.
    pub limits: StoreLimits,
    /// The user that every caller is here; `None` if each is itself.
    pub acts_as: Option<UserIdentity>,
    /// What it does beyond the least.
    pub can: Capabilities,
}

impl StoreProfile {
    /// A store that does the least, whose files are its own.
    #[must_use]
    pub fn new(fsid: u64, root: ObjectId) -> StoreProfile {
        let (limits, can) = (StoreLimits::default(), Capabilities::default());
        StoreProfile { fsid, volume: fsid, root, limits, acts_as: None, can }
    }
}

/// A file system.
///
/// It knows objects, names and data, and no permissions: [`Volume`](crate::Volume) asks first, and hands down what it saw. A
/// store whose files others change too compares that, or acts as the `user`, for whom everything is done. A store whose files
/// are the kernel's takes several system calls for one step: if a later one fails it takes the earlier ones back, as far as
/// the kernel lets it. [`Store::write`] may write a part, and says how much. `now` is the wall clock.
///
/// A store has to say what it is, what its objects are and are named, and what is in files. All else has a default: of a store that
/// nothing can change.
///
/// It is `Any`, so that a program that made a store can find its own kind again.
pub trait Store: Any {
    /// What it is. Asked once.
    fn profile(&self) -> StoreProfile;

    /// Whether nothing can be changed now, because the files are so: a file system that is mounted read-only.
    fn is_read_only(&self) -> bool {
        false
    }

    /// The files are no longer served: the store gives up what it keeps of them, and what it has open. Every object is stale from
    /// now on.
    fn give_up_files(&mut self) {}

    /// Fails once the files are no longer where they were when the store was made: their place on the machine leads to
    /// others, which a client that mounts now would expect.
    fn check_place(&self) -> ReadStep<()> {
        Ok(())
    }

    /// Changes whenever data that was written and not committed may have been lost. A store that commits each WRITE needs none.
    fn write_verifier(&self) -> StoreVerifier {
        StoreVerifier::default()
    }

    /// Space and objects now.
    fn usage(&self) -> ReadStep<Usage> {
        Ok(Usage::default())
    }

    /// What an object is.
    fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat>;

    /// What a directory is in which names are looked up: as [`Store::stat`], or as it was at a moment since [`Store::poll_later`] was
    /// called last, if this server has not changed it since. A store that has to ask may ask once for all look-ups that come together.
    #[inline(always)]
    fn stat_to_search(&self, directory: ObjectId) -> ReadStep<ObjectStat> {
        self.stat(directory)
    }

    /// What an object is that a step has just changed, or [`Store::finish`] has just told of; at some moment since that was
    /// over. `None`: it would have to be waited for, or something else changed the object while a step on names or attributes was
    /// under way that was over later: then this does not tell what that step did (RFC 1813 section 2.6). A store that has to ask
    /// may ask once for all transfers of a file that ended together.
    #[inline(always)]
    fn stat_after(&self, object: ObjectId) -> Option<ObjectStat> {
        self.stat(object).ok()
    }

    /// What an object was when it was last seen, for who cannot wait and does not need to know it as it is now. `None`: that is not
    /// known.
    fn stat_seen(&self, object: ObjectId) -> Option<ObjectStat> {
        let _ = object;
        None
    }

    /// Whether something else is changing an object at this time. Then what it was before and what it is after do not tell
    /// what one operation did (RFC 1813 section 2.6).
    fn is_changing(&self, object: ObjectId) -> bool {
        let _ = object;
        false
    }

    /// The object of a name, or of `..`: the directory above, and of the root itself.
    fn entry(&self, at: EntryName<'_>) -> ReadStep<ObjectStat>;

    /// Whether a directory is `other`, or lies in it.
    fn lies_within(&self, directory: ObjectId, other: ObjectId) -> ReadStep<bool> {
        let mut at = self.stat(directory)?;
        for _ in 0..DEPTH_MAX {
            if at.object == other {
                return Ok(true);
            }
            let above = self.entry(EntryName { directory: &at, name: b".." })?;
            if above.object == at.object {
                return Ok(false);
            }
            at = above;
        }
        Err(FsError::NameTooLong.into())
    }

    /// Shows the entries after a cookie (from the first, if it is 0) until `visit` returns `false`; that entry counts as not
    /// shown. Returns whether the last entry was shown.
    ///
    /// A cookie stays good as long as the directory: entries that come or go meanwhile change no other's.
    fn list(
        &self,
        directory: ObjectId,
        start: ListStart,
        now: Timestamp,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> ReadStep<bool>;

    /// What a symbolic link holds. A store that does not have it in memory reads it into `space`.
    fn link_target<'a>(
        &'a self,
        object: ObjectId,
        space: &'a mut [u8; LINK_SPACE],
        now: Timestamp,
    ) -> ReadStep<&'a [u8]> {
        let _ = (object, space, now);
        Err(FsError::Invalid.into())
    }

    /// The access control list of an object that was `seen` so. `None`: its mode says all.
    fn access_acl(&self, seen: &ObjectStat) -> ReadStep<Option<Cow<'_, Acl>>> {
        let _ = seen;
        Ok(None)
    }

    /// The list that new objects in a directory inherit. `None`: it has none, or is no directory.
    fn default_acl(&self, directory: ObjectId) -> ReadStep<Option<Cow<'_, Acl>>> {
        let _ = directory;
        Ok(None)
    }

    /// Whether an exclusive CREATE with this verifier made the file, and it is as it was made.
    fn is_made_by(&self, seen: &ObjectStat, verifier: StoreVerifier) -> ReadStep<bool> {
        Ok(has_verifier_times(seen, verifier))
    }

    /// Sets attributes; a `mode` is all of the bits. `seen` is what the object was.
    fn update(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &Update,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let _ = (user, seen, set, now);
        Err(FsError::ReadOnly.into())
    }

    /// Makes an object. [`FsError::Exists`] if the name is taken.
    fn make(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        what: NewObject<'_>,
        attributes: &NewAttributes,
        now: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        let _ = (user, at, what, attributes, now);
        Err(FsError::ReadOnly.into())
    }

    /// Gives an object, which is no directory, one more name. [`FsError::Exists`] if that is taken.
    fn link(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        at: EntryName<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let _ = (user, seen, at, now);
        Err(FsError::ReadOnly.into())
    }

    /// Removes a name, which was seen to be this object's. [`FsError::NotEmpty`] for a directory with entries.
    fn remove(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        seen: &ObjectStat,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let _ = (user, at, seen, now);
        Err(FsError::ReadOnly.into())
    }

    /// Renames `from`, which was seen to be `moved`, to `to`, which was seen to be `replaced`. [`FsError::NotEmpty`] if that is a
    /// directory with entries.
    fn rename(
        &mut self,
        user: &UserIdentity,
        from: EntryName<'_>,
        to: EntryName<'_>,
        seen: RenameSeen<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let _ = (user, from, to, seen, now);
        Err(FsError::ReadOnly.into())
    }

    /// As [`Store::rename`] to a name that was not looked up: [`FsError::Exists`] if it is taken. `None`: the store cannot tell at
    /// once, so the name has to be looked up first.
    fn rename_to_free(
        &mut self,
        user: &UserIdentity,
        from: EntryName<'_>,
        to: EntryName<'_>,
        moved: &ObjectStat,
        now: Timestamp,
    ) -> Option<Result<(), FsError>> {
        let _ = (user, from, to, moved, now);
        None
    }

    /// Sets access control lists, and the mode that goes with them. Does all of it, or fails and changes no list.
    fn set_lists(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &SetLists,
        mode: Option<u32>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let _ = (user, seen, set, mode, now);
        Err(FsError::NotSupported.into())
    }

    /// Where in a file, from `offset` on, the next octet of this kind is; `None`: there is no data up to the end. `offset` is
    /// before the end, as it was seen. A store that does not tell holes has data up to the end.
    fn seek(&self, seen: &ObjectStat, offset: u64, kind: ExtentKind) -> ReadStep<Option<u64>> {
        Ok(Some(match kind {
            ExtentKind::Data => offset,
            ExtentKind::Hole => seen.size,
        }))
    }

    /// Changes the space of octets of a file, which are at least one, and end where a file can end. A failure for lack of space
    /// or memory may leave some of it reserved, and changes nothing else.
    fn change_space(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        octets: Range<u64>,
        change: SpaceChange,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let _ = (user, seen, octets, change, now);
        Err(FsError::NotSupported.into())
    }

    /// Locks octets of a file where others that have the files see it, for all clients of this server together: at least as it is
    /// wanted. `Some`: another's lock is in the way, and nothing has changed. It never waits for that to go.
    ///
    /// What was locked may be given back by [`Store::relax_locks`] while an operation waits to be run again. So the answer is good for
    /// this run.
    ///
    /// # Errors
    ///
    /// [`FsError::Busy`]: too many files are locked. [`FsError::AccessDenied`]: the file may be read only, and the lock is
    /// exclusive. [`FsError::NotSupported`]: the files have no such locks.
    fn lock_octets(&mut self, object: ObjectId, wanted: &OctetLock) -> ReadStep<Option<OctetLock>> {
        let _ = (object, wanted);
        Err(FsError::NotSupported.into())
    }

    /// Gives back what [`Store::lock_octets`] locked of the octets from `first` to `last`, as far as it is more than `kept`: those
    /// locks, in the order of their octets. It cannot be refused, and comes before what is locked after it.
    fn relax_locks(&mut self, object: ObjectId, first: u64, last: u64, kept: &[OctetLock]) -> Progress<()> {
        let _ = (object, first, last, kept);
        Progress::Done(())
    }

    /// The lock of others, not taken by [`Store::lock_octets`] here, that would be in the way of such a lock.
    fn find_lock(&mut self, object: ObjectId, wanted: &OctetLock) -> ReadStep<Option<OctetLock>> {
        let _ = (object, wanted);
        Ok(None)
    }

    /// Appends `count` octets from `offset`, or fewer at the end of the file, to `pieces`, without copying.
    ///
    /// `pieces` is never made larger than its capacity: where the file is in more places than that, the READ is
    /// short. So give it room for at least one piece. If it is done later, [`Store::finish`] gives the pieces, or
    /// says why there are none.
    fn read(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        now: Timestamp,
    ) -> ChangeStep<ReadDone>;

    /// Writes at `offset`. A failure changed no data; that a program no longer runs as its owner or group may remain.
    fn write(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        stability: Stability,
        now: Timestamp,
    ) -> ChangeStep<WriteDone> {
        let _ = (user, object, offset, data, stability, now);
        Err(FsError::ReadOnly.into())
    }

    /// Puts what was written to a file on stable storage. A store that answers each WRITE with [`Stability::FileSync`] has done it.
    fn commit(&mut self, object: ObjectId, offset: u64, count: u32) -> ChangeStep<()> {
        let _ = (object, offset, count);
        Ok(Progress::Done(()))
    }

    /// What an earlier operation changed at these may still be on its way to stable storage: the next
    /// [`Store::sync_changes`] includes it.
    fn note_changed(&mut self, objects: &[&ObjectStat]) {
        let _ = objects;
    }

    /// Begins to put on stable storage what steps on names and attributes changed since this was called last, failed ones too.
    /// A Call that changes something is answered when that is over (RFC 1813 section 4.8). It cannot be refused. A store
    /// that has no other storage is done at once.
    fn sync_changes(&mut self) -> Progress<()> {
        Progress::Done(())
    }

    /// The next ticket whose matter is over. Called each pass: what was begun since the last time gets under way. `now` is the
    /// reactor's clock.
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
}

/// What was seen at the two names of a rename.
#[derive(Clone, Copy, Debug)]
pub struct RenameSeen<'a> {
    /// The object at the first.
    pub moved: &'a ObjectStat,
    /// The object at the second, if there is one.
    pub replaced: Option<&'a ObjectStat>,
}
