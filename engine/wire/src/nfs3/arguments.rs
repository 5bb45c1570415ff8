//! Arguments of the procedures, in the order of their numbers. NULL has none.

use super::value::records;
use super::{Data, DeviceNumber, FileType, Handle, Name, Path, SetAttributes, Stable, Time, Verifier};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

records! {
    /// A name in a directory (diropargs3).
    DirectoryName<'a> {
        /// The directory.
        directory: Handle<'a>,
        /// The name.
        name: Name<'a>,
    }

    /// GETATTR3args.
    GetattrArguments<'a> {
        /// Whose attributes.
        object: Handle<'a>,
    }

    /// SETATTR3args.
    SetattrArguments<'a> {
        /// Whose attributes.
        object: Handle<'a>,
        /// What to set.
        attributes: SetAttributes,
        /// The object's ctime must be this one (sattrguard3).
        guard: Option<Time>,
    }

    /// LOOKUP3args.
    LookupArguments<'a> {
        /// What to look up.
        what: DirectoryName<'a>,
    }

    /// ACCESS3args.
    AccessArguments<'a> {
        /// On what.
        object: Handle<'a>,
        /// Bits of [`super::access`] to check.
        access: u32,
    }

    /// READLINK3args.
    ReadlinkArguments<'a> {
        /// The symbolic link.
        symlink: Handle<'a>,
    }

    /// CREATE3args.
    CreateArguments<'a> {
        /// The new name.
        place: DirectoryName<'a>,
        /// What to do when it is taken.
        how: CreateHow,
    }

    /// MKDIR3args.
    MkdirArguments<'a> {
        /// The new name.
        place: DirectoryName<'a>,
        /// Initial attributes.
        attributes: SetAttributes,
    }

    /// SYMLINK3args.
    SymlinkArguments<'a> {
        /// The new name.
        place: DirectoryName<'a>,
        /// Initial attributes.
        attributes: SetAttributes,
        /// What the link holds. DDP-eligible.
        path: Path<'a>,
    }

    /// MKNOD3args.
    MknodArguments<'a> {
        /// The new name.
        place: DirectoryName<'a>,
        /// What to make.
        what: MknodData,
    }

    /// REMOVE3args.
    RemoveArguments<'a> {
        /// What to remove.
        object: DirectoryName<'a>,
    }

    /// RMDIR3args.
    RmdirArguments<'a> {
        /// What to remove.
        object: DirectoryName<'a>,
    }

    /// RENAME3args.
    RenameArguments<'a> {
        /// The old name.
        from: DirectoryName<'a>,
        /// The new name.
        to: DirectoryName<'a>,
    }

    /// LINK3args.
    LinkArguments<'a> {
        /// The object.
        file: Handle<'a>,
        /// Its additional name.
        link: DirectoryName<'a>,
    }

    /// READDIR3args.
    ReaddirArguments<'a> {
        /// The directory.
        directory: Handle<'a>,
        /// Where to go on: 0, or the cookie of the last entry seen.
        cookie: u64,
        /// Zero with cookie 0, else as the server gave it.
        verifier: Verifier,
        /// Bytes of READDIR3resok at most.
        count: u32,
    }

    /// READDIRPLUS3args.
    ReaddirplusArguments<'a> {
        /// The directory.
        directory: Handle<'a>,
        /// Where to go on: 0, or the cookie of the last entry seen.
        cookie: u64,
        /// Zero with cookie 0, else as the server gave it.
        verifier: Verifier,
        /// Bytes of ids, names and cookies at most.
        dircount: u32,
        /// Bytes of READDIRPLUS3resok at most.
        maxcount: u32,
    }

    /// FSSTAT3args.
    FsstatArguments<'a> {
        /// Any object of the file system.
        root: Handle<'a>,
    }

    /// FSINFO3args.
    FsinfoArguments<'a> {
        /// Any object of the file system.
        root: Handle<'a>,
    }

    /// PATHCONF3args.
    PathconfArguments<'a> {
        /// Any object of the file system.
        object: Handle<'a>,
    }

    /// COMMIT3args.
    CommitArguments<'a> {
        /// The file.
        file: Handle<'a>,
        /// First octet.
        offset: u64,
        /// Octets; 0 means to the end of the file.
        count: u32,
    }
}

/// READ3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadArguments<'a> {
    /// The file.
    pub file: Handle<'a>,
    /// First octet.
    pub offset: u64,
    /// Octets wanted at most.
    pub count: u32,
}

// The fields behind the handle have a fixed length, so the remaining octets are checked once.
impl<'a> Decode<'a> for ReadArguments<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let file = reader.value()?;
        let [offset @ .., c0, c1, c2, c3] = reader.array::<12>()?;
        let count = u32::from_be_bytes([*c0, *c1, *c2, *c3]);
        Ok(ReadArguments { file, offset: u64::from_be_bytes(*offset), count })
    }
}

impl Encode for ReadArguments<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.file)?;
        let place = writer.array::<12>()?;
        place[..8].copy_from_slice(&self.offset.to_be_bytes());
        place[8..].copy_from_slice(&self.count.to_be_bytes());
        Ok(())
    }
}

/// WRITE3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteArguments<'a> {
    /// The file.
    pub file: Handle<'a>,
    /// Where the first octet goes.
    pub offset: u64,
    /// Octets to write: the length of `data`, or the Call is malformed in NFS's own terms.
    pub count: u32,
    /// How safe the data must be.
    pub stable: Stable,
    /// The data. DDP-eligible.
    pub data: Data<'a>,
}

// As of `ReadArguments`.
impl<'a> Decode<'a> for WriteArguments<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let file = reader.value()?;
        let [offset @ .., c0, c1, c2, c3, s0, s1, s2, s3] = reader.array::<16>()?;
        let count = u32::from_be_bytes([*c0, *c1, *c2, *c3]);
        let stable = u32::from_be_bytes([*s0, *s1, *s2, *s3]);
        Ok(WriteArguments {
            file,
            offset: u64::from_be_bytes(*offset),
            count,
            stable: Stable::from_number(stable).ok_or(XdrError::BadDiscriminant(stable))?,
            data: reader.value()?,
        })
    }
}

impl Encode for WriteArguments<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.file)?;
        let place = writer.array::<16>()?;
        place[..8].copy_from_slice(&self.offset.to_be_bytes());
        place[8..12].copy_from_slice(&self.count.to_be_bytes());
        place[12..].copy_from_slice(&self.stable.number().to_be_bytes());
        writer.value(&self.data)
    }
}

/// What CREATE does when the name is taken (createhow3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// Takes the file that is there, and sets these attributes.
    Unchecked(SetAttributes),
    /// Fails with [`super::Status::Exist`].
    Guarded(SetAttributes),
    /// Fails, but for a file that was made with the same verifier: a retransmitted Call.
    Exclusive(Verifier),
}

mod create_mode {
    pub(super) const UNCHECKED: u32 = 0;
    pub(super) const GUARDED: u32 = 1;
    pub(super) const EXCLUSIVE: u32 = 2;
}

impl<'a> Decode<'a> for CreateHow {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.u32()? {
            create_mode::UNCHECKED => Ok(CreateHow::Unchecked(reader.value()?)),
            create_mode::GUARDED => Ok(CreateHow::Guarded(reader.value()?)),
            create_mode::EXCLUSIVE => Ok(CreateHow::Exclusive(reader.value()?)),
            other => Err(XdrError::BadDiscriminant(other)),
        }
    }
}

impl Encode for CreateHow {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            CreateHow::Unchecked(attributes) => {
                writer.u32(create_mode::UNCHECKED)?;
                writer.value(attributes)
            }
            CreateHow::Guarded(attributes) => {
                writer.u32(create_mode::GUARDED)?;
                writer.value(attributes)
            }
            CreateHow::Exclusive(verifier) => {
                writer.u32(create_mode::EXCLUSIVE)?;
                writer.value(verifier)
            }
        }
    }
}

/// What MKNOD makes (mknoddata3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MknodData {
    /// A character device.
    Character(SetAttributes, DeviceNumber),
    /// A block device.
    Block(SetAttributes, DeviceNumber),
    /// A socket.
    Socket(SetAttributes),
    /// A named pipe.
    Fifo(SetAttributes),
    /// Something that MKNOD does not make: a regular file, a directory, a symbolic link. RFC 1813 has
    /// no fields for it, and the answer is [`super::Status::BadType`].
    Other(FileType),
}

impl MknodData {
    /// The type of the object to make.
    pub const fn file_type(&self) -> FileType {
        match self {
            MknodData::Character(..) => FileType::Character,
            MknodData::Block(..) => FileType::Block,
            MknodData::Socket(_) => FileType::Socket,
            MknodData::Fifo(_) => FileType::Fifo,
            MknodData::Other(file_type) => *file_type,
        }
    }
}

impl<'a> Decode<'a> for MknodData {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.value()? {
            FileType::Character => Ok(MknodData::Character(reader.value()?, reader.value()?)),
            FileType::Block => Ok(MknodData::Block(reader.value()?, reader.value()?)),
            FileType::Socket => Ok(MknodData::Socket(reader.value()?)),
            FileType::Fifo => Ok(MknodData::Fifo(reader.value()?)),
            other => Ok(MknodData::Other(other)),
        }
    }
}

impl Encode for MknodData {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.file_type())?;
        match self {
            MknodData::Character(attributes, number) | MknodData::Block(attributes, number) => {
                writer.value(attributes)?;
                writer.value(number)
            }
            MknodData::Socket(attributes) | MknodData::Fifo(attributes) => writer.value(attributes),
            MknodData::Other(_) => Ok(()),
        }
    }
}
