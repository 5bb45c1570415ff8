//! Byte-range locks: LOCK, LOCKT, LOCKU, RELEASE_LOCKOWNER.

use super::StateId;
use super::open::StateOwner;
use super::value::{Refusal, unions};
use crate::nfs3::value::{numbers, records};

records! {
    /// LOCK4args.
    LockArguments4<'a> {
        /// Which kind.
        kind: LockKind,
        /// It was held before a restart of the server.
        is_reclaim: bool,
        /// First octet.
        offset: u64,
        /// Octets; all ones means to the end.
        length: u64,
        /// Who locks.
        locker: Locker<'a>,
    }

    /// A first lock of an owner for a file (open_to_lock_owner4).
    NewLocker<'a> {
        /// The open owner's sequence number; ignored in 4.1 and later.
        open_seqid: u32,
        /// The open.
        open_stateid: StateId,
        /// The lock owner's sequence number; ignored in 4.1 and later.
        lock_seqid: u32,
        /// The lock owner.
        owner: StateOwner<'a>,
    }

    /// A further lock of an owner for a file (exist_lock_owner4).
    ExistingLocker {
        /// Its locks of the file.
        stateid: StateId,
        /// The lock owner's sequence number; ignored in 4.1 and later.
        lock_seqid: u32,
    }

    /// A lock that conflicts (LOCK4denied).
    LockDenied<'a> {
        /// First octet.
        offset: u64,
        /// Octets; all ones means to the end.
        length: u64,
        /// Which kind.
        kind: LockKind,
        /// Who holds it.
        owner: StateOwner<'a>,
    }

    /// LOCKT4args.
    LocktArguments<'a> {
        /// Which kind.
        kind: LockKind,
        /// First octet.
        offset: u64,
        /// Octets; all ones means to the end.
        length: u64,
        /// Who would lock.
        owner: StateOwner<'a>,
    }

    /// LOCKU4args.
    LockuArguments {
        /// Which kind.
        kind: LockKind,
        /// The lock owner's sequence number; ignored in 4.1 and later.
        seqid: u32,
        /// The owner's locks of the file.
        stateid: StateId,
        /// First octet.
        offset: u64,
        /// Octets; all ones means to the end.
        length: u64,
    }
}

unions! {
    /// Who locks (locker4).
    Locker<'a> {
        /// An owner that has locks of the file.
        Existing = 0 (ExistingLocker),
        /// An owner that has none yet.
        New = 1 (NewLocker<'a>),
    }
}

numbers! {
    /// Kinds of locks (nfs_lock_type4).
    LockKind {
        /// Shared.
        Read = 1,
        /// Exclusive.
        Write = 2,
        /// Shared; the client would wait.
        ReadWaiting = 3,
        /// Exclusive; the client would wait.
        WriteWaiting = 4,
    }
}

/// NFS4ERR_DENIED, which comes with the lock that conflicts.
const DENIED: u32 = super::Status4::Denied.number();

/// LOCK4res.
pub type LockResult<'a> = Result<StateId, Refusal<LockDenied<'a>, DENIED>>;
/// LOCKT4res.
pub type LocktResult<'a> = Result<(), Refusal<LockDenied<'a>, DENIED>>;
