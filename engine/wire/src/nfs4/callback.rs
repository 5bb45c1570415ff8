//! Callbacks: arguments and results of the operations of CB_COMPOUND.

use super::attributes::{AttributeList, AttributeSet, Fsid};
use super::extended::WriteResponse;
use super::open::{Delegation, StateOwner};
use super::pnfs::LayoutIoMode;
use super::session::{ReferringCall, SequenceArguments};
use super::value::{List, unions};
use super::{Bitmap, Handle4, Opaque, SessionId, StateId, Status4};
use crate::nfs3::value::records;
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// Changes in one CB_NOTIFY at most. No RFC sets a limit; the back channel's request size does.
pub const NOTIFICATIONS_MAX: u32 = 1024;
/// Octets of the values of one notification at most. No RFC sets a limit.
pub const NOTIFICATION_LEN_MAX: u32 = 1 << 16;
/// Referring calls, or lists of them, in one CB_SEQUENCE at most. No RFC sets a limit; there are as many as slots.
pub const REFERRING_MAX: u32 = 1024;

records! {
    /// CB_GETATTR4args.
    CbGetattrArguments<'a> {
        /// Whose attributes.
        handle: Handle4<'a>,
        /// Which: size and change.
        request: AttributeSet<'a>,
    }

    /// CB_RECALL4args.
    CbRecallArguments<'a> {
        /// The delegation.
        stateid: StateId,
        /// The file will be truncated: what is dirty need not be written back.
        will_truncate: bool,
        /// The file.
        handle: Handle4<'a>,
    }

    /// CB_LAYOUTRECALL4args.
    CbLayoutrecallArguments<'a> {
        /// Layout type.
        layout_type: u32,
        /// For what.
        io_mode: LayoutIoMode,
        /// Layouts have changed: what is dirty must not go through them.
        has_changed: bool,
        /// Which.
        what: LayoutRecall<'a>,
    }

    /// A part of a file's layouts (layoutrecall_file4).
    LayoutRecallFile<'a> {
        /// The file.
        handle: Handle4<'a>,
        /// First octet.
        offset: u64,
        /// Octets.
        length: u64,
        /// The layouts.
        stateid: StateId,
    }

    /// Changes of one directory or device (notify4).
    Notification<'a> {
        /// Which kinds.
        mask: Bitmap<'a>,
        /// Of each kind, in order, what changed.
        values: Opaque<'a, NOTIFICATION_LEN_MAX>,
    }

    /// CB_NOTIFY4args.
    CbNotifyArguments<'a> {
        /// The delegation.
        stateid: StateId,
        /// The directory.
        handle: Handle4<'a>,
        /// The changes.
        changes: List<'a, Notification<'a>, NOTIFICATIONS_MAX>,
    }

    /// CB_PUSH_DELEG4args.
    CbPushDelegArguments<'a> {
        /// The file.
        handle: Handle4<'a>,
        /// The delegation.
        delegation: Delegation<'a>,
    }

    /// CB_RECALL_ANY4args, and CB_RECALLABLE_OBJ_AVAIL4args.
    CbRecallAnyArguments<'a> {
        /// How many the client may keep.
        objects_to_keep: u32,
        /// Of which kinds.
        kinds: Bitmap<'a>,
    }

    /// Requests of a session (referring_call_list4).
    ReferringCalls<'a> {
        /// The session.
        session: SessionId,
        /// The requests.
        calls: List<'a, ReferringCall, REFERRING_MAX>,
    }

    /// CB_SEQUENCE4args.
    CbSequenceArguments<'a> {
        /// As of SEQUENCE.
        sequence: SequenceArguments,
        /// Requests whose replies must be taken before this callback.
        referring: List<'a, ReferringCalls<'a>, REFERRING_MAX>,
    }

    /// CB_SEQUENCE4resok.
    CbSequenceOk {
        /// The session.
        session: SessionId,
        /// The request's.
        sequence_id: u32,
        /// The request's.
        slot: u32,
        /// The highest slot that the client accepts now.
        highest_slot: u32,
        /// The highest slot that the client wants the server to use.
        target_highest_slot: u32,
    }

    /// CB_WANTS_CANCELLED4args.
    CbWantsCancelledArguments {
        /// Wants refused for contention are forgotten.
        contended: bool,
        /// Wants refused for resources are forgotten.
        resourced: bool,
    }

    /// CB_NOTIFY_LOCK4args.
    CbNotifyLockArguments<'a> {
        /// The file.
        handle: Handle4<'a>,
        /// Who may try again.
        owner: StateOwner<'a>,
    }

    /// CB_OFFLOAD4args.
    CbOffloadArguments<'a> {
        /// The file.
        handle: Handle4<'a>,
        /// The copy.
        stateid: StateId,
        /// How it ended.
        outcome: OffloadOutcome,
    }
}

unions! {
    /// Which layouts are recalled (layoutrecall4).
    LayoutRecall<'a> {
        /// Those of a part of a file.
        File = 1 (LayoutRecallFile<'a>),
        /// Those of a file system.
        FileSystem = 2 (Fsid),
        /// All of the client.
        All = 3,
    }
}

/// How a copy ended (offload_info4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadOutcome {
    /// All of it.
    Done(WriteResponse),
    /// It failed, after this many octets.
    Failed(Status4, u64),
}

impl<'a> Decode<'a> for OffloadOutcome {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.value()? {
            Status4::Ok => reader.value().map(OffloadOutcome::Done),
            status => Ok(OffloadOutcome::Failed(status, reader.u64()?)),
        }
    }
}

impl Encode for OffloadOutcome {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            OffloadOutcome::Done(response) => {
                writer.value(&Status4::Ok)?;
                writer.value(response)
            }
            OffloadOutcome::Failed(status, octets) => {
                writer.value(status)?;
                writer.u64(*octets)
            }
        }
    }
}

/// Kinds of objects that CB_RECALL_ANY recalls: numbers in a bitmap.
pub mod recallable {
    /// Delegations to read.
    pub const READ_DELEGATION: u32 = 0;
    /// Delegations to write.
    pub const WRITE_DELEGATION: u32 = 1;
    /// Delegations of directories.
    pub const DIRECTORY_DELEGATION: u32 = 2;
    /// Layouts of files.
    pub const FILE_LAYOUT: u32 = 3;
    /// Layouts of blocks.
    pub const BLOCK_LAYOUT: u32 = 4;
}

/// CB_GETATTR4res.
pub type CbGetattrResult<'a> = Result<AttributeList<'a>, Status4>;
