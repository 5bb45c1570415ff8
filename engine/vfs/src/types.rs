//! Objects, attributes, times, and what is asked of them.

use std::time::Duration;

use crate::identity::Guarded;

/// Eight octets that are only compared: of writes, of exclusive creation, of listings.
pub type StoreVerifier = [u8; 8];

/// Names an object of one store, for as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// The object's number; used again after the object is gone.
    pub fileid: u64,
    /// Tells the objects of one number apart.
    pub generation: u64,
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Block device.
    Block,
    /// Character device.
    Character,
    /// Symbolic link.
    Symlink,
    /// Socket.
    Socket,
    /// Named pipe.
    Fifo,
}

/// A point in time: seconds since 1970, UTC, negative before; and nanoseconds after that second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000. What a client asks for may have more: the policy refuses it.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The same, as a duration. `None`: it is before 1970.
    #[must_use]
    pub fn since_epoch(self) -> Option<Duration> {
        Some(Duration::new(self.seconds.try_into().ok()?, self.nanoseconds))
    }

    /// A change attribute for objects whose last change time is this: it grows with the time, a nanosecond at least.
    #[inline]
    #[must_use]
    pub const fn as_change(self) -> u64 {
        (self.seconds as u64).wrapping_mul(NANOSECONDS as u64).wrapping_add(self.nanoseconds as u64)
    }
}

/// Nanoseconds of a second.
pub const NANOSECONDS: u32 = 1_000_000_000;

/// Number of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceId {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// What an object is at a moment: all its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// Which object.
    pub object: ObjectId,
    /// What it is.
    pub kind: ObjectKind,
    /// Permission bits, set-uid, set-gid, sticky: the low 12 bits of a Unix mode.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of storage in use.
    pub used: u64,
    /// Number of a device; zeros for what is none.
    pub device: DeviceId,
    /// Last access to the data.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the attributes.
    pub ctime: Timestamp,
    /// Whether it may have an access control list, which says more than its mode: the store tells
    /// ([`Store::access_acl`](crate::Store::access_acl)).
    pub may_have_acl: bool,
    /// When it was made, if the store knows.
    pub born: Option<Timestamp>,
    /// Another number after each change of the object.
    pub change: u64,
}

impl ObjectStat {
    /// An object of the superuser with this mode and one link; it is empty, and its times are 0.
    #[must_use]
    pub const fn new(object: ObjectId, kind: ObjectKind, mode: u32) -> ObjectStat {
        const EPOCH: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };
        ObjectStat {
            object,
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            device: DeviceId { major: 0, minor: 0 },
            atime: EPOCH,
            mtime: EPOCH,
            ctime: EPOCH,
            may_have_acl: false,
            born: None,
            change: 0,
        }
    }

    /// What permissions depend on, beside access control lists.
    #[inline]
    #[must_use]
    pub fn guarded(&self) -> Guarded {
        let is_directory = self.kind == ObjectKind::Directory;
        Guarded { mode: self.mode, uid: self.uid, gid: self.gid, is_directory }
    }
}

/// What to do with a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUpdate {
    /// It stays.
    #[default]
    Keep,
    /// It becomes the time of the store.
    Now,
    /// It becomes this time.
    To(Timestamp),
}

/// The attributes to set. `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates or extends.
    pub size: Option<u64>,
    /// Last access.
    pub atime: TimeUpdate,
    /// Last change of the data.
    pub mtime: TimeUpdate,
}

/// How a regular file is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// A file of that name is taken as it is, but for its size.
    Unchecked(Update),
    /// The name must be free.
    Guarded(Update),
    /// The name must be free, unless the file was made with the same verifier and is as it was made. A new file has these
    /// attributes; the times may keep the verifier.
    Exclusive(StoreVerifier, Update),
}

/// How safe written data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// It may be lost until it is committed.
    Unstable,
    /// The data is on stable storage.
    DataSync,
    /// The data and the file's attributes are.
    FileSync,
}

/// A lock on octets of a file, from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OctetLock {
    /// The first octet.
    pub first: u64,
    /// The last octet; [`u64::MAX`] stands for the end of the file, however far that moves.
    pub last: u64,
    /// Whether it excludes shared locks too.
    pub exclusive: bool,
}
