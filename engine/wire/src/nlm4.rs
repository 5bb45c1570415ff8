//! The Network Lock Manager, version 4 (RFC 1813 appendix II), program 100021: locks on ranges of files, and shares.
//! Nothing in it is DDP-eligible (RFC 8267 section 1).
//!
//! ```text
//! TEST, LOCK, CANCEL, UNLOCK      a Call and its Reply
//! X_MSG ──▶   ◀── X_RES           the same as two Calls, one each way, whose Replies say nothing
//! GRANTED                         from the server to the client: a lock that was waited for is there
//! ```
//!
//! Lengths: 0 means to the end of the file, however far that moves.

use crate::nfs3::value::{numbers, opaques, records};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// Program number of NLM.
pub const PROGRAM: u32 = 100_021;
/// The version spoken here: the one for NFS version 3.
pub const VERSION: u32 = 4;

/// Longest name of a caller, in bytes (LM_MAXSTRLEN).
pub const NAME_LEN_MAX: u32 = 1024;
/// Longest cookie, handle or owner, in bytes (MAXNETOBJ_SZ).
pub const OBJECT_LEN_MAX: u32 = 1024;

numbers! {
    /// The procedures of version 4.
    Procedure {
        /// Does nothing.
        Null = 0,
        /// Whether a lock could be had.
        Test = 1,
        /// Takes a lock, or waits for it.
        Lock = 2,
        /// Waits no longer.
        Cancel = 3,
        /// Gives a range back.
        Unlock = 4,
        /// To a client: the lock that it waited for is its own.
        Granted = 5,
        /// TEST, answered by [`Procedure::TestRes`].
        TestMsg = 6,
        /// LOCK, answered by [`Procedure::LockRes`].
        LockMsg = 7,
        /// CANCEL, answered by [`Procedure::CancelRes`].
        CancelMsg = 8,
        /// UNLOCK, answered by [`Procedure::UnlockRes`].
        UnlockMsg = 9,
        /// GRANTED, answered by [`Procedure::GrantedRes`].
        GrantedMsg = 10,
        /// Answers [`Procedure::TestMsg`].
        TestRes = 11,
        /// Answers [`Procedure::LockMsg`].
        LockRes = 12,
        /// Answers [`Procedure::CancelMsg`].
        CancelRes = 13,
        /// Answers [`Procedure::UnlockMsg`].
        UnlockRes = 14,
        /// Answers [`Procedure::GrantedMsg`].
        GrantedRes = 15,
        /// Opens a file, denying others some modes.
        Share = 20,
        /// Ends a share.
        Unshare = 21,
        /// LOCK by a client whose locks do not survive it: it is not monitored.
        NmLock = 22,
        /// The caller restarted: frees all that it had.
        FreeAll = 23,
    }
}

impl Procedure {
    /// One more than the highest number; 16 to 19 are not used.
    pub const COUNT: usize = 24;
}

numbers! {
    /// What became of a request (nlm4_stats).
    Status {
        /// Done.
        Granted = 0,
        /// Another lock is in the way.
        Denied = 1,
        /// The server has no room for more locks.
        DeniedNolocks = 2,
        /// The client will be called when the lock is there.
        Blocked = 3,
        /// The server restarted a moment ago: only locks that were there before are given.
        DeniedGracePeriod = 4,
        /// To wait would be to wait forever.
        Deadlck = 5,
        /// The file system is read-only.
        Rofs = 6,
        /// The handle is of no file.
        StaleFh = 7,
        /// The range goes too far.
        Fbig = 8,
        /// Failed, and will fail again.
        Failed = 9,
    }
}

numbers! {
    /// What a share denies others (fsh4_mode).
    DenyMode {
        /// Nothing.
        None = 0,
        /// Reading.
        Read = 1,
        /// Writing.
        Write = 2,
        /// Both.
        ReadWrite = 3,
    }
}

numbers! {
    /// What a share is for (fsh4_access).
    ShareAccess {
        /// Nothing.
        None = 0,
        /// Reading.
        Read = 1,
        /// Writing.
        Write = 2,
        /// Both.
        ReadWrite = 3,
    }
}

opaques! {
    /// A name (string).
    Name up to NAME_LEN_MAX;

    /// A cookie, an owner or a file handle (netobj).
    Object up to OBJECT_LEN_MAX;
}

records! {
    /// A lock that is in the way (nlm4_holder).
    Holder<'a> {
        /// Whether it excludes readers.
        exclusive: bool,
        /// The process that has it.
        svid: u32,
        /// Its owner.
        owner: Object<'a>,
        /// First octet.
        offset: u64,
        /// Octets; 0 is to the end.
        len: u64,
    }

    /// A range of a file, and who wants it (nlm4_lock).
    Lock<'a> {
        /// The client's name.
        caller: Name<'a>,
        /// The file's handle.
        file: Object<'a>,
        /// Tells owners of one client apart.
        owner: Object<'a>,
        /// The process: an int, but any 32 bits will do.
        svid: u32,
        /// First octet.
        offset: u64,
        /// Octets; 0 is to the end.
        len: u64,
    }

    /// Arguments of TEST and GRANTED (nlm4_testargs).
    TestArguments<'a> {
        /// Comes back in the answer.
        cookie: Object<'a>,
        /// Whether it is to exclude readers.
        exclusive: bool,
        /// The range.
        lock: Lock<'a>,
    }

    /// Arguments of LOCK and NM_LOCK (nlm4_lockargs).
    LockArguments<'a> {
        /// Comes back in the answer.
        cookie: Object<'a>,
        /// Whether to wait for it.
        block: bool,
        /// Whether it is to exclude readers.
        exclusive: bool,
        /// The range.
        lock: Lock<'a>,
        /// Whether the client had it before the server restarted.
        reclaim: bool,
        /// The client's NSM state.
        state: u32,
    }

    /// Arguments of CANCEL (nlm4_cancargs).
    CancelArguments<'a> {
        /// Comes back in the answer.
        cookie: Object<'a>,
        /// As in the LOCK.
        block: bool,
        /// As in the LOCK.
        exclusive: bool,
        /// As in the LOCK.
        lock: Lock<'a>,
    }

    /// Arguments of UNLOCK (nlm4_unlockargs).
    UnlockArguments<'a> {
        /// Comes back in the answer.
        cookie: Object<'a>,
        /// The range.
        lock: Lock<'a>,
    }

    /// Results of all but TEST and the shares (nlm4_res).
    Results<'a> {
        /// As in the arguments.
        cookie: Object<'a>,
        /// What became of it.
        status: Status,
    }

    /// Results of TEST (nlm4_testres).
    TestResults<'a> {
        /// As in the arguments.
        cookie: Object<'a>,
        /// What would become of the lock.
        outcome: Tested<'a>,
    }

    /// A share (nlm4_share).
    Share<'a> {
        /// The client's name.
        caller: Name<'a>,
        /// The file's handle.
        file: Object<'a>,
        /// Tells owners of one client apart.
        owner: Object<'a>,
        /// What others are denied.
        mode: DenyMode,
        /// What it is for.
        access: ShareAccess,
    }

    /// Arguments of SHARE and UNSHARE (nlm4_shareargs).
    ShareArguments<'a> {
        /// Comes back in the answer.
        cookie: Object<'a>,
        /// The share.
        share: Share<'a>,
        /// Whether the client had it before the server restarted.
        reclaim: bool,
    }

    /// Results of SHARE and UNSHARE (nlm4_shareres).
    ShareResults<'a> {
        /// As in the arguments.
        cookie: Object<'a>,
        /// What became of it.
        status: Status,
        /// Means nothing.
        sequence: u32,
    }

    /// Arguments of FREE_ALL (nlm4_notify).
    FreeAllArguments<'a> {
        /// The client.
        name: Name<'a>,
        /// Its NSM state.
        state: u32,
    }
}

/// What TEST found (nlm4_testrply).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tested<'a> {
    /// [`Status::Denied`], by this lock.
    Denied(Holder<'a>),
    /// Any other status; [`Status::Granted`]: nothing is in the way.
    Other(Status),
}

impl Tested<'_> {
    /// The status.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Tested::Denied(_) => Status::Denied,
            Tested::Other(status) => *status,
        }
    }
}

impl<'a> Decode<'a> for Tested<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.value()? {
            Status::Denied => reader.value().map(Tested::Denied),
            status => Ok(Tested::Other(status)),
        }
    }
}

impl Encode for Tested<'_> {
    /// # Panics
    ///
    /// If [`Tested::Other`] says [`Status::Denied`], which has a holder.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        assert!(*self != Tested::Other(Status::Denied), "a lock is denied because of another");
        writer.value(&self.status())?;
        if let Tested::Denied(holder) = self { writer.value(holder) } else { Ok(()) }
    }
}
