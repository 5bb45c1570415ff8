//! OPEN in all its forms, CLOSE, OPEN_CONFIRM, OPEN_DOWNGRADE, and delegations.

use super::acl::Ace;
use super::attributes::{AttributeList, AttributeSet};
use super::files::ChangeInfo;
use super::value::unions;
use super::{Bitmap, Name4, OWNER_LEN_MAX, Opaque, StateId, Verifier4};
use crate::nfs3::value::{numbers, records};

records! {
    /// Who opens or locks at a client (state_owner4: open_owner4, lock_owner4).
    StateOwner<'a> {
        /// The client; ignored in 4.1 and later, where the session says it (8881-18.16.3).
        clientid: u64,
        /// The owner's name, of the client's choice.
        owner: Opaque<'a, OWNER_LEN_MAX>,
    }

    /// OPEN4args.
    OpenArguments4<'a> {
        /// The owner's sequence number; ignored in 4.1 and later.
        seqid: u32,
        /// Bits of [`share`].
        share_access: u32,
        /// Bits of [`share`].
        share_deny: u32,
        /// Who opens.
        owner: StateOwner<'a>,
        /// Whether a file is made.
        how: OpenHow<'a>,
        /// Which file, and by what right.
        claim: OpenClaim<'a>,
    }

    /// OPEN4resok.
    OpenOk4<'a> {
        /// The open.
        stateid: StateId,
        /// The directory before and after.
        directory: ChangeInfo,
        /// Bits of [`open_result`].
        flags: u32,
        /// The attributes that were set.
        attributes_set: AttributeSet<'a>,
        /// A delegation, or why there is none.
        delegation: Delegation<'a>,
    }

    /// What EXCLUSIVE4_1 makes a file with (creatverfattr).
    VerifierAndAttributes<'a> {
        /// Tells a retransmission from another client's create.
        verifier: Verifier4,
        /// The attributes, of those in suppattr_exclcreat.
        attributes: AttributeList<'a>,
    }

    /// A claim by a delegation (open_claim_delegate_cur4).
    DelegatedName<'a> {
        /// The delegation.
        stateid: StateId,
        /// The file.
        name: Name4<'a>,
    }

    /// A delegation to read (open_read_delegation4).
    ReadDelegation<'a> {
        /// The delegation.
        stateid: StateId,
        /// It is being recalled already: after a reclaim.
        is_recalled: bool,
        /// Who may open without asking.
        permissions: Ace<'a>,
    }

    /// A delegation to write (open_write_delegation4).
    WriteDelegation<'a> {
        /// The delegation.
        stateid: StateId,
        /// It is being recalled already: after a reclaim.
        is_recalled: bool,
        /// How much the client may keep back.
        space_limit: SpaceLimit,
        /// Who may open without asking.
        permissions: Ace<'a>,
    }

    /// A limit in blocks (nfs_modified_limit4).
    BlockLimit {
        /// Blocks.
        blocks: u32,
        /// Bytes of each.
        block_size: u32,
    }

    /// CLOSE4args.
    CloseArguments4 {
        /// The owner's sequence number; ignored in 4.1 and later.
        seqid: u32,
        /// The open.
        stateid: StateId,
    }

    /// OPEN_CONFIRM4args: of 4.0 only.
    OpenConfirmArguments {
        /// The open.
        stateid: StateId,
        /// The owner's sequence number.
        seqid: u32,
    }

    /// OPEN_DOWNGRADE4args.
    OpenDowngradeArguments {
        /// The open.
        stateid: StateId,
        /// The owner's sequence number; ignored in 4.1 and later.
        seqid: u32,
        /// The access that stays; bits of [`share`].
        share_access: u32,
        /// What stays denied; bits of [`share`].
        share_deny: u32,
    }

    /// WANT_DELEGATION4args.
    WantDelegationArguments {
        /// Which; the bits `WANT` of [`share`].
        want: u32,
        /// For which object, and by what right.
        claim: DelegationClaim,
    }

    /// GET_DIR_DELEGATION4args.
    GetDirDelegationArguments<'a> {
        /// Say later when there is one.
        signal_available: bool,
        /// Which notifications are wanted.
        notifications: Bitmap<'a>,
        /// Delay of those about entries' attributes.
        child_delay: super::Time4,
        /// Delay of those about the directory's attributes.
        directory_delay: super::Time4,
        /// Which attributes of entries.
        child_attributes: Bitmap<'a>,
        /// Which attributes of the directory.
        directory_attributes: Bitmap<'a>,
    }

    /// GET_DIR_DELEGATION4resok.
    DirDelegation<'a> {
        /// The directory's cookie verifier.
        verifier: Verifier4,
        /// The delegation.
        stateid: StateId,
        /// Which notifications there are.
        notifications: Bitmap<'a>,
        /// Which attributes of entries.
        child_attributes: Bitmap<'a>,
        /// Which attributes of the directory.
        directory_attributes: Bitmap<'a>,
    }
}

/// Bits of share_access and share_deny, and what a client wants of delegations.
pub mod share {
    /// To read, or against readers.
    pub const READ: u32 = 1;
    /// To write, or against writers.
    pub const WRITE: u32 = 2;
    /// Both.
    pub const BOTH: u32 = 3;
    /// No access, or nothing denied.
    pub const NONE: u32 = 0;
    /// The bits of share_access that say which delegation is wanted.
    pub const WANT_MASK: u32 = 0xff00;
    /// No preference.
    pub const WANT_NO_PREFERENCE: u32 = 0;
    /// One to read.
    pub const WANT_READ_DELEGATION: u32 = 0x100;
    /// One to write.
    pub const WANT_WRITE_DELEGATION: u32 = 0x200;
    /// Any.
    pub const WANT_ANY_DELEGATION: u32 = 0x300;
    /// None.
    pub const WANT_NO_DELEGATION: u32 = 0x400;
    /// No more signals or pushes.
    pub const WANT_CANCEL: u32 = 0x500;
    /// Say when there is one.
    pub const WANT_SIGNAL_WHEN_AVAILABLE: u32 = 0x1_0000;
    /// Push it when there is one.
    pub const WANT_PUSH_WHEN_UNCONTENDED: u32 = 0x2_0000;
}

/// Bits of OPEN's rflags.
pub mod open_result {
    /// OPEN_CONFIRM must follow (4.0).
    pub const CONFIRM: u32 = 2;
    /// Locks behave as those of POSIX.
    pub const LOCKTYPE_POSIX: u32 = 4;
    /// The file stays while it is open, when it is removed.
    pub const PRESERVE_UNLINKED: u32 = 8;
    /// CB_NOTIFY_LOCK may come for locks.
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

unions! {
    /// Whether OPEN makes a file (openflag4).
    OpenHow<'a> {
        /// Only one that is there.
        NoCreate = 0,
        /// One is made.
        Create = 1 (CreateHow4<'a>),
    }

    /// What OPEN does when the name is taken (createhow4).
    CreateHow4<'a> {
        /// Takes the file that is there, and sets the size if asked to.
        Unchecked = 0 (AttributeList<'a>),
        /// Fails.
        Guarded = 1 (AttributeList<'a>),
        /// Fails, but for a file that was made with the same verifier.
        Exclusive = 2 (Verifier4),
        /// As `Exclusive`, with attributes: 4.1 and later.
        Exclusive41 = 3 (VerifierAndAttributes<'a>),
    }

    /// Which file is opened, and by what right (open_claim4).
    OpenClaim<'a> {
        /// A name in the current directory.
        Null = 0 (Name4<'a>),
        /// The current file, which was open before a restart of the server, with this delegation.
        Previous = 1 (DelegationType),
        /// A name in the current directory, by a delegation.
        DelegateCurrent = 2 (DelegatedName<'a>),
        /// A name in the current directory, by a delegation from before a restart of the client.
        DelegatePrevious = 3 (Name4<'a>),
        /// The current file.
        Handle = 4,
        /// The current file, by a delegation.
        DelegateCurrentHandle = 5 (StateId),
        /// The current file, by a delegation from before a restart of the client.
        DelegatePreviousHandle = 6,
    }

    /// For which object a delegation is wanted, and by what right (deleg_claim4).
    DelegationClaim {
        /// The current object, which had this delegation before a restart of the server.
        Previous = 1 (DelegationType),
        /// The current object.
        Handle = 4,
        /// The current object, by a delegation from before a restart of the client.
        PreviousHandle = 6,
    }

    /// A delegation (open_delegation4).
    Delegation<'a> {
        /// None.
        None = 0,
        /// One to read.
        Read = 1 (ReadDelegation<'a>),
        /// One to write.
        Write = 2 (WriteDelegation<'a>),
        /// None, and why: 4.1 and later.
        NoneWhy = 3 (WhyNoDelegation),
    }

    /// Why there is no delegation (open_none_delegation4).
    WhyNoDelegation {
        /// It was not wanted.
        NotWanted = 0,
        /// Others use the file; whether the server will push one.
        Contention = 1 (bool),
        /// The server lacks resources; whether it will signal.
        Resource = 2 (bool),
        /// Not for such objects.
        NotSupportedType = 3,
        /// None to write for such objects.
        WriteNotSupportedType = 4,
        /// No upgrade.
        NotSupportedUpgrade = 5,
        /// No downgrade.
        NotSupportedDowngrade = 6,
        /// The want was cancelled.
        Cancelled = 7,
        /// It is a directory.
        IsDirectory = 8,
    }

    /// How much a client may keep back (nfs_space_limit4).
    SpaceLimit {
        /// Up to this size of the file.
        Size = 1 (u64),
        /// This many blocks.
        Blocks = 2 (BlockLimit),
    }

    /// GET_DIR_DELEGATION4res_non_fatal.
    DirDelegationOutcome<'a> {
        /// There is one.
        Granted = 0 (DirDelegation<'a>),
        /// There is none; whether the server will signal.
        Unavailable = 1 (bool),
    }
}

numbers! {
    /// Which delegation (open_delegation_type4).
    DelegationType {
        /// None.
        None = 0,
        /// To read.
        Read = 1,
        /// To write.
        Write = 2,
        /// None, and why.
        NoneWhy = 3,
    }
}
