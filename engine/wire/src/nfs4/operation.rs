//! The table of operations: number, name, which minor versions know them and how, arguments and results.
//!
//! The table decides between NFS4ERR_NOTSUPP and NFS4ERR_OP_ILLEGAL ([`Operation4::lookup`]), also for operations that no
//! server here executes.

use super::attributes::AttributeList;
use super::callback::*;
use super::client_id::*;
use super::directory::{ReaddirArguments4, ReaddirOk4};
use super::extended::*;
use super::files::*;
use super::lock::*;
use super::open::*;
use super::pnfs::*;
use super::session::*;
use super::value::{List, OperationResult};
use super::{Bitmap, Handle4, Name4, Opaque, Path, SessionId, StateId, Status4, Verifier4};
use crate::nfs3::value::numbers;
use crate::xdr::{Encode, Overflow, Reader, Writer, XdrError};

/// What a minor version says of an operation (RFC 8881 section 17, RFC 7862 section 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Requirement {
    /// Every server executes it.
    Required,
    /// A server should execute it.
    Recommended,
    /// A server may execute it, else it answers NFS4ERR_NOTSUPP.
    Optional,
    /// No server may execute it: NFS4ERR_NOTSUPP.
    Forbidden,
    /// This minor version does not have it: NFS4ERR_OP_ILLEGAL.
    Unknown,
}

/// Minor versions of version 4: 0, 1 and 2.
pub const MINOR_VERSIONS: u32 = 3;

/// The largest number of an operation that any minor version has, and one more.
const NUMBERS: usize = 77;

/// An operation with its arguments, or one with its results: what the arrays of COMPOUND and CB_COMPOUND have.
pub trait OperationItem<'a>: Encode + Sized {
    /// Reads what follows the operation's number. `None`: the number has no name, so the length is not known.
    fn decode_numbered(number: u32, reader: &mut Reader<'a>) -> Option<Result<Self, XdrError>>;
}

/// Declares operations: `Variant = number name [requirement in 4.0, 4.1, 4.2] (arguments) -> (results)`.
macro_rules! operations {
    (
        $(#[$operation_meta:meta])* $operation:ident $(#[$argument_meta:meta])* $argument:ident
        $(#[$outcome_meta:meta])* $outcome:ident
        $($(#[$meta:meta])* $variant:ident = $number:literal $name:literal
            [$($requirement:ident)*] ($arguments:ty) -> ($results:ty);)*
    ) => {
        numbers! {
            $(#[$operation_meta])*
            $operation {
                $($(#[$meta])* $variant = $number,)*
            }
        }

        impl $operation {
            /// Returns its name in the RFCs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($operation::$variant => $name,)*
                }
            }

            /// Returns what a minor version says of it; [`Requirement::Unknown`] for a minor version above 2.
            #[must_use]
            pub const fn requirement(self, minor_version: u32) -> Requirement {
                let requirements: [Requirement; MINOR_VERSIONS as usize] = match self {
                    $($operation::$variant => [$(Requirement::$requirement,)*],)*
                };
                if minor_version < MINOR_VERSIONS {
                    requirements[minor_version as usize]
                } else {
                    Requirement::Unknown
                }
            }

            /// Finds the operation of a number in a minor version, or what its results say:
            /// [`Status4::OpIllegal`] if there is none, [`Status4::NotSupp`] if the version forbids it.
            ///
            /// A server that does not execute an operation which this returns answers [`Status4::NotSupp`].
            #[inline]
            pub const fn lookup(number: u32, minor_version: u32) -> Result<$operation, Status4> {
                // Every operation of a COMPOUND is looked up.
                static ALL: [[Result<$operation, Status4>; MINOR_VERSIONS as usize]; NUMBERS] =
                    $operation::lookups();
                if (number as usize) < NUMBERS && minor_version < MINOR_VERSIONS {
                    ALL[number as usize][minor_version as usize]
                } else {
                    // ILLEGAL itself, and what has no name.
                    Err(Status4::OpIllegal)
                }
            }

            /// What [`Self::lookup`] says of each number in each minor version.
            const fn lookups() -> [[Result<$operation, Status4>; MINOR_VERSIONS as usize]; NUMBERS] {
                let mut all = [[Err(Status4::OpIllegal); MINOR_VERSIONS as usize]; NUMBERS];
                let mut place = 0;
                while place < NUMBERS * MINOR_VERSIONS as usize {
                    let (number, minor_version) = (place / MINOR_VERSIONS as usize, place % MINOR_VERSIONS as usize);
                    if let Some(operation) = $operation::from_number(number as u32) {
                        all[number][minor_version] = match operation.requirement(minor_version as u32) {
                            Requirement::Unknown => Err(Status4::OpIllegal),
                            Requirement::Forbidden => Err(Status4::NotSupp),
                            _ => Ok(operation),
                        };
                    }
                    place += 1;
                }
                all
            }
        }

        $(#[$argument_meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "a value of one pass over a message, never stored")]
        pub enum $argument<'a> {
            $($(#[$meta])* $variant($arguments),)*
        }

        impl $argument<'_> {
            /// Returns which operation.
            #[must_use]
            pub const fn operation(&self) -> $operation {
                match self {
                    $($argument::$variant(_) => $operation::$variant,)*
                }
            }
        }

        impl<'a> OperationItem<'a> for $argument<'a> {
            fn decode_numbered(number: u32, reader: &mut Reader<'a>) -> Option<Result<Self, XdrError>> {
                Some(match $operation::from_number(number)? {
                    $($operation::$variant => reader.value().map($argument::$variant),)*
                })
            }
        }

        /// Writes number and arguments.
        impl Encode for $argument<'_> {
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                writer.value(&self.operation())?;
                match self {
                    $($argument::$variant(arguments) => writer.value(arguments),)*
                }
            }
        }

        $(#[$outcome_meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "a value of one pass over a message, never stored")]
        pub enum $outcome<'a> {
            $($(#[$meta])* $variant($results),)*
        }

        impl $outcome<'_> {
            /// Returns of which operation.
            #[must_use]
            pub const fn operation(&self) -> $operation {
                match self {
                    $($outcome::$variant(_) => $operation::$variant,)*
                }
            }

            /// Returns the status.
            #[must_use]
            pub fn status(&self) -> Status4 {
                match self {
                    $($outcome::$variant(results) => results.status(),)*
                }
            }
        }

        impl<'a> OperationItem<'a> for $outcome<'a> {
            fn decode_numbered(number: u32, reader: &mut Reader<'a>) -> Option<Result<Self, XdrError>> {
                Some(match $operation::from_number(number)? {
                    $($operation::$variant => reader.value().map($outcome::$variant),)*
                })
            }
        }

        /// Writes number and results.
        impl Encode for $outcome<'_> {
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                writer.value(&self.operation())?;
                match self {
                    $($outcome::$variant(results) => writer.value(results),)*
                }
            }
        }
    };
}

operations! {
    /// An operation of COMPOUND (nfs_opnum4).
    Operation4
    /// An operation and its arguments (nfs_argop4).
    Argument4
    /// An operation and its results (nfs_resop4).
    Outcome4

    /// Which of some accesses the caller has.
    Access = 3 "ACCESS" [Required Required Required] (AccessArguments4) -> (Result<AccessOk4, Status4>);
    /// Ends an open.
    Close = 4 "CLOSE" [Required Required Required] (CloseArguments4) -> (Result<StateId, Status4>);
    /// Puts earlier unstable writes on stable storage.
    Commit = 5 "COMMIT" [Required Required Required] (CommitArguments4) -> (Result<Verifier4, Status4>);
    /// Makes what is no regular file. Link text is DDP-eligible.
    Create = 6 "CREATE" [Required Required Required] (CreateArguments4<'a>) -> (Result<CreateOk4<'a>, Status4>);
    /// Gives up delegations from before a restart of the client.
    Delegpurge = 7 "DELEGPURGE" [Optional Optional Optional] (u64) -> (Result<(), Status4>);
    /// Returns a delegation.
    Delegreturn = 8 "DELEGRETURN" [Optional Optional Optional] (StateId) -> (Result<(), Status4>);
    /// Attributes of the current object.
    Getattr = 9 "GETATTR" [Required Required Required] (GetattrArguments4<'a>) -> (Result<AttributeList<'a>, Status4>);
    /// The current handle.
    Getfh = 10 "GETFH" [Required Required Required] (()) -> (Result<Handle4<'a>, Status4>);
    /// Gives the saved object one more name, in the current directory.
    Link = 11 "LINK" [Required Optional Optional] (Name4<'a>) -> (Result<ChangeInfo, Status4>);
    /// Locks a range of octets.
    Lock = 12 "LOCK" [Required Required Required] (LockArguments4<'a>) -> (LockResult<'a>);
    /// Whether a range could be locked.
    Lockt = 13 "LOCKT" [Required Required Required] (LocktArguments<'a>) -> (LocktResult<'a>);
    /// Unlocks a range of octets.
    Locku = 14 "LOCKU" [Required Required Required] (LockuArguments) -> (Result<StateId, Status4>);
    /// Goes to a name in the current directory.
    Lookup = 15 "LOOKUP" [Required Required Required] (Name4<'a>) -> (Result<(), Status4>);
    /// Goes to the parent of the current directory.
    Lookupp = 16 "LOOKUPP" [Required Required Required] (()) -> (Result<(), Status4>);
    /// Fails if attributes are as given.
    Nverify = 17 "NVERIFY" [Required Required Required] (AttributeList<'a>) -> (Result<(), Status4>);
    /// Opens a regular file, and makes it.
    Open = 18 "OPEN" [Required Required Required] (OpenArguments4<'a>) -> (Result<OpenOk4<'a>, Status4>);
    /// Goes to the directory of named attributes.
    Openattr = 19 "OPENATTR" [Optional Optional Optional] (bool) -> (Result<(), Status4>);
    /// Confirms the first open of an owner.
    OpenConfirm = 20 "OPEN_CONFIRM" [Required Forbidden Forbidden] (OpenConfirmArguments) -> (Result<StateId, Status4>);
    /// Reduces what an open allows and denies.
    OpenDowngrade = 21 "OPEN_DOWNGRADE" [Required Required Required] (OpenDowngradeArguments) -> (Result<StateId, Status4>);
    /// Sets the current handle.
    Putfh = 22 "PUTFH" [Required Required Required] (Handle4<'a>) -> (Result<(), Status4>);
    /// Goes to the public handle.
    Putpubfh = 23 "PUTPUBFH" [Required Required Required] (()) -> (Result<(), Status4>);
    /// Goes to the root.
    Putrootfh = 24 "PUTROOTFH" [Required Required Required] (()) -> (Result<(), Status4>);
    /// Data of the current file. DDP-eligible.
    Read = 25 "READ" [Required Required Required] (ReadArguments4) -> (Result<ReadOk4<'a>, Status4>);
    /// Lists the current directory.
    Readdir = 26 "READDIR" [Required Required Required] (ReaddirArguments4<'a>) -> (Result<ReaddirOk4<'a>, Status4>);
    /// What the current link holds. DDP-eligible.
    Readlink = 27 "READLINK" [Required Optional Optional] (()) -> (Result<Path<'a>, Status4>);
    /// Removes a name.
    Remove = 28 "REMOVE" [Required Required Required] (Name4<'a>) -> (Result<ChangeInfo, Status4>);
    /// Gives an object another name or directory.
    Rename = 29 "RENAME" [Required Required Required] (RenameArguments4<'a>) -> (Result<RenameOk4, Status4>);
    /// Renews a lease.
    Renew = 30 "RENEW" [Required Forbidden Forbidden] (u64) -> (Result<(), Status4>);
    /// Makes the saved handle the current one.
    Restorefh = 31 "RESTOREFH" [Required Required Required] (()) -> (Result<(), Status4>);
    /// Saves the current handle.
    Savefh = 32 "SAVEFH" [Required Required Required] (()) -> (Result<(), Status4>);
    /// Security flavors of a name.
    Secinfo = 33 "SECINFO" [Required Required Required] (Name4<'a>) -> (Result<SecinfoOk<'a>, Status4>);
    /// Sets attributes.
    Setattr = 34 "SETATTR" [Required Required Required] (SetattrArguments4<'a>) -> (SetattrResult4<'a>);
    /// Makes a client id.
    Setclientid = 35 "SETCLIENTID" [Required Forbidden Forbidden] (SetclientidArguments<'a>) -> (SetclientidResult<'a>);
    /// Confirms a client id.
    SetclientidConfirm = 36 "SETCLIENTID_CONFIRM" [Required Forbidden Forbidden] (ClientIdAndVerifier) -> (Result<(), Status4>);
    /// Fails unless attributes are as given.
    Verify = 37 "VERIFY" [Required Required Required] (AttributeList<'a>) -> (Result<(), Status4>);
    /// Puts data into the current file. DDP-eligible.
    Write = 38 "WRITE" [Required Required Required] (WriteArguments4<'a>) -> (Result<WriteOk4, Status4>);
    /// Forgets a lock owner.
    ReleaseLockowner = 39 "RELEASE_LOCKOWNER" [Required Forbidden Forbidden] (StateOwner<'a>) -> (Result<(), Status4>);
    /// Changes how callbacks are made.
    BackchannelCtl = 40 "BACKCHANNEL_CTL" [Unknown Required Required] (BackchannelCtlArguments<'a>) -> (Result<(), Status4>);
    /// Binds a connection to a session.
    BindConnToSession = 41 "BIND_CONN_TO_SESSION" [Unknown Required Required] (BindConnArguments) -> (Result<BindConnOk, Status4>);
    /// Makes a client id, and says who is who.
    ExchangeId = 42 "EXCHANGE_ID" [Unknown Required Required] (ExchangeIdArguments<'a>) -> (Result<ExchangeIdOk<'a>, Status4>);
    /// Makes a session, and confirms a client id.
    CreateSession = 43 "CREATE_SESSION" [Unknown Required Required] (CreateSessionArguments<'a>) -> (Result<CreateSessionOk, Status4>);
    /// Ends a session.
    DestroySession = 44 "DESTROY_SESSION" [Unknown Required Required] (SessionId) -> (Result<(), Status4>);
    /// Forgets revoked state.
    FreeStateid = 45 "FREE_STATEID" [Unknown Required Required] (StateId) -> (Result<(), Status4>);
    /// Asks for a delegation of the current directory.
    GetDirDelegation = 46 "GET_DIR_DELEGATION" [Unknown Optional Optional] (GetDirDelegationArguments<'a>) -> (Result<DirDelegationOutcome<'a>, Status4>);
    /// Where a device is.
    Getdeviceinfo = 47 "GETDEVICEINFO" [Unknown Optional Optional] (GetdeviceinfoArguments<'a>) -> (GetdeviceinfoResult<'a>);
    /// Which devices there are.
    Getdevicelist = 48 "GETDEVICELIST" [Unknown Optional Forbidden] (GetdevicelistArguments) -> (Result<GetdevicelistOk<'a>, Status4>);
    /// Commits what was written through a layout.
    Layoutcommit = 49 "LAYOUTCOMMIT" [Unknown Optional Optional] (LayoutcommitArguments<'a>) -> (Result<Option<u64>, Status4>);
    /// Asks for a layout.
    Layoutget = 50 "LAYOUTGET" [Unknown Optional Optional] (LayoutgetArguments) -> (LayoutgetResult<'a>);
    /// Returns layouts.
    Layoutreturn = 51 "LAYOUTRETURN" [Unknown Optional Optional] (LayoutreturnArguments<'a>) -> (Result<Option<StateId>, Status4>);
    /// Security flavors of the current object or its parent.
    SecinfoNoName = 52 "SECINFO_NO_NAME" [Unknown Recommended Recommended] (SecinfoStyle) -> (Result<SecinfoOk<'a>, Status4>);
    /// Begins a request of a session.
    Sequence = 53 "SEQUENCE" [Unknown Required Required] (SequenceArguments) -> (Result<SequenceOk, Status4>);
    /// Sets a secret state verifier.
    SetSsv = 54 "SET_SSV" [Unknown Required Required] (SetSsvArguments<'a>) -> (Result<Opaque<'a, SSV_LEN_MAX>, Status4>);
    /// Which states are still good.
    TestStateid = 55 "TEST_STATEID" [Unknown Required Required] (TestStateidArguments<'a>) -> (Result<TestStateidOk<'a>, Status4>);
    /// Asks for a delegation of the current object.
    WantDelegation = 56 "WANT_DELEGATION" [Unknown Optional Optional] (WantDelegationArguments) -> (Result<Delegation<'a>, Status4>);
    /// Ends a client id.
    DestroyClientid = 57 "DESTROY_CLIENTID" [Unknown Required Required] (u64) -> (Result<(), Status4>);
    /// Ends reclaiming.
    ReclaimComplete = 58 "RECLAIM_COMPLETE" [Unknown Required Required] (bool) -> (Result<(), Status4>);
    /// Reserves space.
    Allocate = 59 "ALLOCATE" [Unknown Unknown Optional] (SpaceArguments) -> (Result<(), Status4>);
    /// Copies between files at the server.
    Copy = 60 "COPY" [Unknown Unknown Optional] (CopyArguments<'a>) -> (CopyResult);
    /// Announces a copy to another server.
    CopyNotify = 61 "COPY_NOTIFY" [Unknown Unknown Optional] (CopyNotifyArguments<'a>) -> (Result<CopyNotifyOk<'a>, Status4>);
    /// Makes a hole.
    Deallocate = 62 "DEALLOCATE" [Unknown Unknown Optional] (SpaceArguments) -> (Result<(), Status4>);
    /// Says how a file will be used.
    IoAdvise = 63 "IO_ADVISE" [Unknown Unknown Optional] (IoAdviseArguments<'a>) -> (Result<Bitmap<'a>, Status4>);
    /// Tells errors of devices.
    Layouterror = 64 "LAYOUTERROR" [Unknown Unknown Optional] (LayouterrorArguments<'a>) -> (Result<(), Status4>);
    /// Tells how devices are used.
    Layoutstats = 65 "LAYOUTSTATS" [Unknown Unknown Optional] (LayoutstatsArguments<'a>) -> (Result<(), Status4>);
    /// Ends a copy.
    OffloadCancel = 66 "OFFLOAD_CANCEL" [Unknown Unknown Optional] (StateId) -> (Result<(), Status4>);
    /// How far a copy is.
    OffloadStatus = 67 "OFFLOAD_STATUS" [Unknown Unknown Optional] (StateId) -> (Result<OffloadStatusOk, Status4>);
    /// Data and holes of the current file.
    ReadPlus = 68 "READ_PLUS" [Unknown Unknown Optional] (ReadArguments4) -> (Result<ReadPlusOk<'a>, Status4>);
    /// The next data or hole.
    Seek = 69 "SEEK" [Unknown Unknown Optional] (SeekArguments) -> (Result<SeekOk, Status4>);
    /// Writes a pattern.
    WriteSame = 70 "WRITE_SAME" [Unknown Unknown Optional] (WriteSameArguments<'a>) -> (Result<WriteResponse, Status4>);
    /// Shares blocks between files.
    Clone = 71 "CLONE" [Unknown Unknown Optional] (CloneArguments) -> (Result<(), Status4>);
    /// Value of an extended attribute (RFC 8276).
    Getxattr = 72 "GETXATTR" [Unknown Unknown Optional] (Name4<'a>) -> (Result<Opaque<'a, XATTR_LEN_CAP>, Status4>);
    /// Sets an extended attribute (RFC 8276).
    Setxattr = 73 "SETXATTR" [Unknown Unknown Optional] (SetxattrArguments<'a>) -> (XattrChangeResult);
    /// Names of extended attributes (RFC 8276).
    Listxattrs = 74 "LISTXATTRS" [Unknown Unknown Optional] (ListxattrsArguments) -> (Result<ListxattrsOk<'a>, Status4>);
    /// Removes an extended attribute (RFC 8276).
    Removexattr = 75 "REMOVEXATTR" [Unknown Unknown Optional] (Name4<'a>) -> (XattrChangeResult);
    /// Stands for numbers that are no operation.
    Illegal = 10044 "ILLEGAL" [Unknown Unknown Unknown] (()) -> (Result<(), Status4>);
}

operations! {
    /// An operation of CB_COMPOUND (nfs_cb_opnum4).
    CbOperation
    /// An operation and its arguments (nfs_cb_argop4).
    CbArgument
    /// An operation and its results (nfs_cb_resop4).
    CbOutcome

    /// Attributes that the client may have changed.
    Getattr = 3 "CB_GETATTR" [Optional Optional Optional] (CbGetattrArguments<'a>) -> (CbGetattrResult<'a>);
    /// Recalls a delegation.
    Recall = 4 "CB_RECALL" [Optional Optional Optional] (CbRecallArguments<'a>) -> (Result<(), Status4>);
    /// Recalls layouts.
    Layoutrecall = 5 "CB_LAYOUTRECALL" [Unknown Optional Optional] (CbLayoutrecallArguments<'a>) -> (Result<(), Status4>);
    /// Tells changes of a directory.
    Notify = 6 "CB_NOTIFY" [Unknown Optional Optional] (CbNotifyArguments<'a>) -> (Result<(), Status4>);
    /// Offers a delegation.
    PushDeleg = 7 "CB_PUSH_DELEG" [Unknown Optional Optional] (CbPushDelegArguments<'a>) -> (Result<(), Status4>);
    /// Asks the client to return some objects.
    RecallAny = 8 "CB_RECALL_ANY" [Unknown Optional Optional] (CbRecallAnyArguments<'a>) -> (Result<(), Status4>);
    /// Signals that objects can be had again.
    RecallableObjAvail = 9 "CB_RECALLABLE_OBJ_AVAIL" [Unknown Optional Optional] (CbRecallAnyArguments<'a>) -> (Result<(), Status4>);
    /// Asks the client to use fewer slots.
    RecallSlot = 10 "CB_RECALL_SLOT" [Unknown Required Required] (u32) -> (Result<(), Status4>);
    /// Begins a request of a session.
    Sequence = 11 "CB_SEQUENCE" [Unknown Optional Optional] (CbSequenceArguments<'a>) -> (Result<CbSequenceOk, Status4>);
    /// Forgets wants.
    WantsCancelled = 12 "CB_WANTS_CANCELLED" [Unknown Optional Optional] (CbWantsCancelledArguments) -> (Result<(), Status4>);
    /// Signals that a lock may be free.
    NotifyLock = 13 "CB_NOTIFY_LOCK" [Unknown Optional Optional] (CbNotifyLockArguments<'a>) -> (Result<(), Status4>);
    /// Tells changes of devices.
    NotifyDeviceid = 14 "CB_NOTIFY_DEVICEID" [Unknown Optional Optional] (List<'a, Notification<'a>, NOTIFICATIONS_MAX>) -> (Result<(), Status4>);
    /// Tells how a copy ended.
    Offload = 15 "CB_OFFLOAD" [Unknown Unknown Optional] (CbOffloadArguments<'a>) -> (Result<(), Status4>);
    /// Stands for numbers that are no operation.
    Illegal = 10044 "CB_ILLEGAL" [Unknown Unknown Unknown] (()) -> (Result<(), Status4>);
}

impl Operation4 {
    /// Tells whether its arguments have a DDP-eligible item (8267-2-a): WRITE's data, and the text of a link that CREATE makes.
    #[must_use]
    pub const fn has_eligible_argument(self) -> bool {
        matches!(self, Operation4::Write | Operation4::Create)
    }

    /// Tells whether its results have a DDP-eligible item (8267-2-a): the data of READ, and the text of READLINK. They take the
    /// Write chunks in order (8267-6.4.1-c). Nothing of callbacks is eligible.
    #[must_use]
    pub const fn has_eligible_result(self) -> bool {
        matches!(self, Operation4::Read | Operation4::Readlink)
    }
}

impl<'a> Argument4<'a> {
    /// Returns the attributes among the arguments, still in XDR.
    #[must_use]
    pub const fn attributes(&self) -> Option<AttributeList<'a>> {
        match self {
            Argument4::Setattr(arguments) => Some(arguments.attributes),
            Argument4::Create(arguments) => Some(arguments.attributes),
            Argument4::Verify(list) | Argument4::Nverify(list) => Some(*list),
            Argument4::Open(arguments) => match arguments.how {
                OpenHow::Create(CreateHow4::Unchecked(list) | CreateHow4::Guarded(list)) => Some(list),
                OpenHow::Create(CreateHow4::Exclusive41(both)) => Some(both.attributes),
                _ => None,
            },
            _ => None,
        }
    }
}

impl<'a> Outcome4<'a> {
    /// Returns the attributes among the results, still in XDR: GETATTR's, or those of each of READDIR's entries.
    pub fn attributes(&self) -> impl Iterator<Item = AttributeList<'a>> + use<'a> {
        let (one, entries) = match self {
            Outcome4::Getattr(Ok(list)) => (Some(*list), None),
            Outcome4::Readdir(Ok(list)) => (None, Some(list.entries)),
            _ => (None, None),
        };
        one.into_iter().chain(entries.into_iter().flatten().map(|entry| entry.attributes))
    }
}
