//! Operations of 4.2: copies, space, holes, advice (RFC 7862), and extended attributes (RFC 8276).

use super::files::ChangeInfo;
use super::locations::NetLocation;
use super::value::{List, Refusal, unions};
use super::{Bitmap, Name4, Opaque, Stable, StateId, Status4, Time4, Verifier4};
use crate::nfs3::value::{numbers, records};

/// Servers named in one COPY at most. No RFC sets a limit.
pub const COPY_SERVERS_MAX: u32 = 64;
/// Pieces in one READ_PLUS at most. No RFC sets a limit; each takes 20 octets.
pub const CONTENTS_MAX: u32 = 1 << 16;
/// Octets of a pattern, or of data in a READ_PLUS, at most: as large as a READ can be.
pub const CONTENT_LEN_MAX: u32 = 16 << 20;
/// Octets of an extended attribute's value that are parsed at most. Linux keeps 65,536; a server tells longer ones by
/// NFS4ERR_XATTR2BIG, so they must decode.
pub const XATTR_LEN_CAP: u32 = 1 << 20;
/// Names in one LISTXATTRS at most: each takes 4 octets.
pub const XATTR_NAMES_MAX: u32 = 1 << 18;

records! {
    /// CLONE4args.
    CloneArguments {
        /// The open of the saved file.
        source_stateid: StateId,
        /// The open of the current file.
        target_stateid: StateId,
        /// Where it starts in the source.
        source_offset: u64,
        /// Where it starts in the target.
        target_offset: u64,
        /// Octets; 0 means to the end of the source.
        count: u64,
    }

    /// COPY4args.
    CopyArguments<'a> {
        /// The open of the saved file.
        source_stateid: StateId,
        /// The open of the current file.
        target_stateid: StateId,
        /// Where it starts in the source.
        source_offset: u64,
        /// Where it starts in the target.
        target_offset: u64,
        /// Octets; 0 means to the end of the source.
        count: u64,
        /// In ascending order.
        is_consecutive: bool,
        /// Before the answer.
        is_synchronous: bool,
        /// Where the source is, if it is at another server.
        servers: List<'a, NetLocation<'a>, COPY_SERVERS_MAX>,
    }

    /// What was copied or written (write_response4).
    WriteResponse {
        /// The copy that goes on; none if it is done.
        callback_id: Option<StateId>,
        /// Octets.
        count: u64,
        /// How safe they are.
        committed: Stable,
        /// Changes when unstable writes may have been lost.
        verifier: Verifier4,
    }

    /// How a copy is made (copy_requirements4).
    CopyRequirements {
        /// In ascending order.
        is_consecutive: bool,
        /// Before the answer.
        is_synchronous: bool,
    }

    /// COPY4resok.
    CopyOk {
        /// What was copied.
        response: WriteResponse,
        /// How.
        requirements: CopyRequirements,
    }

    /// COPY_NOTIFY4args.
    CopyNotifyArguments<'a> {
        /// The open of the current file.
        stateid: StateId,
        /// The server that will read it.
        destination: NetLocation<'a>,
    }

    /// COPY_NOTIFY4resok.
    CopyNotifyOk<'a> {
        /// How long it may.
        lease_time: Time4,
        /// By what right.
        stateid: StateId,
        /// Where.
        servers: List<'a, NetLocation<'a>, COPY_SERVERS_MAX>,
    }

    /// OFFLOAD_STATUS4resok.
    OffloadStatusOk {
        /// Octets copied so far.
        count: u64,
        /// How it ended, if it did.
        complete: Option<Status4>,
    }

    /// ALLOCATE4args, and DEALLOCATE4args.
    SpaceArguments {
        /// The open.
        stateid: StateId,
        /// First octet.
        offset: u64,
        /// Octets.
        length: u64,
    }

    /// IO_ADVISE4args.
    IoAdviseArguments<'a> {
        /// The open.
        stateid: StateId,
        /// First octet.
        offset: u64,
        /// Octets; 0 means to the end of the file.
        count: u64,
        /// Numbers of [`super::Advice`].
        hints: Bitmap<'a>,
    }

    /// READ_PLUS4resok.
    ReadPlusOk<'a> {
        /// Whether the last octet of the file is among them, or the offset is beyond it.
        eof: bool,
        /// Data and holes, in order.
        contents: List<'a, Content<'a>, CONTENTS_MAX>,
    }

    /// Data (data4). It is not DDP-eligible (8267-6.1-a).
    DataPiece<'a> {
        /// First octet.
        offset: u64,
        /// The data.
        data: Opaque<'a, CONTENT_LEN_MAX>,
    }

    /// A hole (data_info4).
    Hole {
        /// First octet.
        offset: u64,
        /// Octets.
        length: u64,
    }

    /// SEEK4args.
    SeekArguments {
        /// The open.
        stateid: StateId,
        /// From where.
        offset: u64,
        /// For what.
        what: ContentKind,
    }

    /// SEEK4resok.
    SeekOk {
        /// There is none up to the end.
        eof: bool,
        /// Where it is.
        offset: u64,
    }

    /// A pattern to write (app_data_block4).
    DataBlock<'a> {
        /// First octet.
        offset: u64,
        /// Octets of a block.
        block_size: u64,
        /// Blocks.
        block_count: u64,
        /// Where in a block its number goes.
        number_offset: u64,
        /// The first number.
        first_number: u32,
        /// Where in a block the pattern goes.
        pattern_offset: u64,
        /// The pattern.
        pattern: Opaque<'a, CONTENT_LEN_MAX>,
    }

    /// WRITE_SAME4args.
    WriteSameArguments<'a> {
        /// The open.
        stateid: StateId,
        /// How safe the data must be.
        stable: Stable,
        /// What to write.
        block: DataBlock<'a>,
    }

    /// SETXATTR4args.
    SetxattrArguments<'a> {
        /// What to do when there is one of that name, or none.
        option: SetxattrOption,
        /// The name.
        name: Name4<'a>,
        /// The value.
        value: Opaque<'a, XATTR_LEN_CAP>,
    }

    /// LISTXATTRS4args.
    ListxattrsArguments {
        /// Where to go on.
        cookie: u64,
        /// Bytes of the answer at most.
        maxcount: u32,
    }

    /// LISTXATTRS4resok.
    ListxattrsOk<'a> {
        /// Where to go on.
        cookie: u64,
        /// The names.
        names: List<'a, Name4<'a>, XATTR_NAMES_MAX>,
        /// The last name is among them.
        eof: bool,
    }
}

unions! {
    /// A piece of a file (read_plus_content).
    Content<'a> {
        /// Data.
        Data = 0 (DataPiece<'a>),
        /// A hole.
        Hole = 1 (Hole),
    }
}

numbers! {
    /// What is looked for (data_content4).
    ContentKind {
        /// Data.
        Data = 0,
        /// A hole.
        Hole = 1,
    }
}

numbers! {
    /// What SETXATTR does when there is an attribute of that name, or none (setxattr_option4).
    SetxattrOption {
        /// Makes or replaces it.
        Either = 0,
        /// Fails if there is one.
        Create = 1,
        /// Fails if there is none.
        Replace = 2,
    }
}

numbers! {
    /// How a file will be used (IO_ADVISE_type4): bits of [`IoAdviseArguments::hints`].
    Advice {
        /// No advice.
        Normal = 0,
        /// In ascending order.
        Sequential = 1,
        /// In descending order.
        SequentialBackwards = 2,
        /// In no order.
        Random = 3,
        /// Soon.
        WillNeed = 4,
        /// Soon, if it costs little.
        WillNeedOpportunistic = 5,
        /// Not soon.
        DontNeed = 6,
        /// Once.
        NoReuse = 7,
        /// For reading.
        Read = 8,
        /// For writing.
        Write = 9,
        /// Close to where it starts.
        InitProximity = 10,
    }
}

/// COPY4res: if the requirements cannot be met, those that could.
pub type CopyResult = Result<CopyOk, Refusal<CopyRequirements, { Status4::OffloadNoReqs.number() }>>;
/// SETXATTR4res and REMOVEXATTR4res: the object before and after.
pub type XattrChangeResult = Result<ChangeInfo, Status4>;
