//! Operations on handles, names, attributes and data: those of every minor version.

use super::attributes::{AttributeList, AttributeSet};
use super::value::{OperationResult, unions};
use super::{Data, DeviceNumber, FileType4, Handle4, Name4, Path, Stable, StateId, Status4, Verifier4};
use crate::nfs3::value::records;
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

records! {
    /// ACCESS4args.
    AccessArguments4 {
        /// Bits of [`access4`] to check.
        access: u32,
    }

    /// ACCESS4resok.
    AccessOk4 {
        /// Bits that the server can check.
        supported: u32,
        /// Bits that the caller has.
        access: u32,
    }

    /// COMMIT4args.
    CommitArguments4 {
        /// First octet.
        offset: u64,
        /// Octets; 0 means to the end of the file.
        count: u32,
    }

    /// CREATE4args.
    CreateArguments4<'a> {
        /// What to make.
        kind: CreateType<'a>,
        /// Its name.
        name: Name4<'a>,
        /// Its attributes.
        attributes: AttributeList<'a>,
    }

    /// CREATE4resok.
    CreateOk4<'a> {
        /// The directory before and after.
        directory: ChangeInfo,
        /// The attributes that were set.
        attributes_set: AttributeSet<'a>,
    }

    /// A directory before and after an operation (change_info4).
    ChangeInfo {
        /// Nothing else changed it between `before` and `after`.
        is_atomic: bool,
        /// Its change attribute before.
        before: u64,
        /// Its change attribute after.
        after: u64,
    }

    /// GETATTR4args.
    GetattrArguments4<'a> {
        /// The attributes asked for.
        request: AttributeSet<'a>,
    }

    /// RENAME4args.
    RenameArguments4<'a> {
        /// The old name, in the saved directory.
        from: Name4<'a>,
        /// The new name, in the current directory.
        to: Name4<'a>,
    }

    /// RENAME4resok.
    RenameOk4 {
        /// The directory of the old name.
        from: ChangeInfo,
        /// The directory of the new name.
        to: ChangeInfo,
    }

    /// SETATTR4args.
    SetattrArguments4<'a> {
        /// The open that allows a change of the size.
        stateid: StateId,
        /// What to set.
        attributes: AttributeList<'a>,
    }

    /// SETATTR4res: a failure too says what was set.
    SetattrResult4<'a> {
        /// The status.
        status: Status4,
        /// The attributes that were set.
        attributes_set: AttributeSet<'a>,
    }

    /// READ4resok.
    ReadOk4<'a> {
        /// Whether the last octet of the file is among them, or the offset is beyond it.
        eof: bool,
        /// The data. DDP-eligible.
        data: Data<'a>,
    }

    /// WRITE4resok.
    WriteOk4 {
        /// Octets written: may be fewer than given.
        count: u32,
        /// How safe they are.
        committed: Stable,
        /// Changes when unstable writes may have been lost.
        verifier: Verifier4,
    }
}

/// ACCESS's bits; RFC 8276 adds those of extended attributes.
pub mod access4 {
    pub use crate::nfs3::access::{DELETE, EXECUTE, EXTEND, LOOKUP, MODIFY, READ};
    /// Read extended attributes.
    pub const XATTR_READ: u32 = 0x40;
    /// Write extended attributes.
    pub const XATTR_WRITE: u32 = 0x80;
    /// List extended attributes.
    pub const XATTR_LIST: u32 = 0x100;
}

unions! {
    /// What CREATE makes (createtype4). A regular file is made by OPEN, and what RFC 7530 has no fields for is
    /// NFS4ERR_BADTYPE.
    CreateType<'a> {
        /// Nothing that CREATE makes.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        Block = 3 (DeviceNumber),
        /// A character device.
        Character = 4 (DeviceNumber),
        /// A symbolic link that holds this. DDP-eligible.
        Symlink = 5 (Path<'a>),
        /// A socket.
        Socket = 6,
        /// A named pipe.
        Fifo = 7,
        /// Nothing that CREATE makes.
        AttributeDirectory = 8,
        /// Nothing that CREATE makes.
        NamedAttribute = 9,
    }
}

impl CreateType<'_> {
    /// Returns the type of the object to make.
    #[must_use]
    pub const fn file_type(&self) -> FileType4 {
        match self {
            CreateType::Regular => FileType4::Regular,
            CreateType::Directory => FileType4::Directory,
            CreateType::Block(_) => FileType4::Block,
            CreateType::Character(_) => FileType4::Character,
            CreateType::Symlink(_) => FileType4::Symlink,
            CreateType::Socket => FileType4::Socket,
            CreateType::Fifo => FileType4::Fifo,
            CreateType::AttributeDirectory => FileType4::AttributeDirectory,
            CreateType::NamedAttribute => FileType4::NamedAttribute,
        }
    }
}

impl OperationResult for SetattrResult4<'_> {
    fn status(&self) -> Status4 {
        self.status
    }
}

/// GETFH4resok and PUTFH4args: a handle. LOOKUP4args, LINK4args, REMOVE4args and SECINFO4args are a name.
pub type GetfhOk<'a> = Handle4<'a>;

/// READ4args.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadArguments4 {
    /// The open, lock or delegation that allows it.
    pub stateid: StateId,
    /// First octet.
    pub offset: u64,
    /// Octets wanted at most.
    pub count: u32,
}

// Its length is fixed, so the remaining octets are checked once.
impl<'a> Decode<'a> for ReadArguments4 {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let stateid = reader.value()?;
        let [offset @ .., c0, c1, c2, c3] = reader.array::<12>()?;
        let count = u32::from_be_bytes([*c0, *c1, *c2, *c3]);
        Ok(ReadArguments4 { stateid, offset: u64::from_be_bytes(*offset), count })
    }
}

impl Encode for ReadArguments4 {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.stateid)?;
        let place = writer.array::<12>()?;
        place[..8].copy_from_slice(&self.offset.to_be_bytes());
        place[8..].copy_from_slice(&self.count.to_be_bytes());
        Ok(())
    }
}

/// What WRITE4args has before its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// The open, lock or delegation that allows it.
    pub stateid: StateId,
    /// Where the first octet goes.
    pub offset: u64,
    /// How safe the data must be.
    pub stable: Stable,
}

impl<'a> Decode<'a> for WriteHead {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let stateid = reader.value()?;
        let [offset @ .., s0, s1, s2, s3] = reader.array::<12>()?;
        let stable = u32::from_be_bytes([*s0, *s1, *s2, *s3]);
        let stable = Stable::from_number(stable).ok_or(XdrError::BadDiscriminant(stable))?;
        Ok(WriteHead { stateid, offset: u64::from_be_bytes(*offset), stable })
    }
}

impl Encode for WriteHead {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.stateid)?;
        let place = writer.array::<12>()?;
        place[..8].copy_from_slice(&self.offset.to_be_bytes());
        place[8..].copy_from_slice(&self.stable.number().to_be_bytes());
        Ok(())
    }
}

records! {
    /// WRITE4args.
    WriteArguments4<'a> {
        /// What is before the data.
        head: WriteHead,
        /// The data. DDP-eligible.
        data: Data<'a>,
    }
}
