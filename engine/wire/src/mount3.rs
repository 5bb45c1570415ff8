//! MOUNT version 3 (RFC 1813 appendix I): how a client gets the handle of an export. Nothing in it is
//! DDP-eligible (RFC 8267 section 1).
//!
//! Paths and names longer than RFC 1813 allows parse, up to [`STRING_LEN_CAP`](crate::nfs3::STRING_LEN_CAP),
//! so that a server can answer [`Status::NameTooLong`].

use crate::nfs3::value::{numbers, records};
use crate::nfs3::{Entries, Handle, Name};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// Program number of MOUNT.
pub const PROGRAM: u32 = 100_005;
/// The version spoken here.
pub const VERSION: u32 = 3;

/// Longest path of an export, in bytes (MNTPATHLEN).
pub const PATH_LEN_MAX: u32 = 1024;
/// Longest name of a client or group, in bytes (MNTNAMLEN).
pub const NAME_LEN_MAX: u32 = 255;
/// Most authentication flavors taken from a Reply.
pub const FLAVORS_MAX: u32 = 64;

numbers! {
    /// The procedures of version 3.
    Procedure {
        /// Does nothing.
        Null = 0,
        /// Handle of an export.
        Mnt = 1,
        /// Who has mounted what.
        Dump = 2,
        /// Forgets one mount of the caller.
        Umnt = 3,
        /// Forgets all mounts of the caller.
        Umntall = 4,
        /// What is exported to whom.
        Export = 5,
    }
}

impl Procedure {
    /// How many there are: they are numbered from 0 without a gap.
    pub const COUNT: usize = 6;
}

numbers! {
    /// Why MNT failed (mountstat3 without MNT3_OK).
    Status {
        /// Not the owner.
        Perm = 1,
        /// No such file or directory.
        NoEnt = 2,
        /// I/O error.
        Io = 5,
        /// Permission denied.
        Acces = 13,
        /// Not a directory.
        NotDir = 20,
        /// Invalid argument.
        Inval = 22,
        /// Name too long.
        NameTooLong = 63,
        /// Not supported.
        NotSupp = 10004,
        /// An error that is none of these.
        ServerFault = 10006,
    }
}

records! {
    /// Arguments of MNT and UMNT: a path on the server (dirpath).
    PathArguments<'a> {
        /// The path.
        path: Name<'a>,
    }

    /// One mount that the server knows of (mountbody).
    Mount<'a> {
        /// The client.
        host: Name<'a>,
        /// What it mounted.
        path: Name<'a>,
    }

    /// One export (exportnode).
    Export<'a> {
        /// What is exported.
        path: Name<'a>,
        /// To whom; to everybody if there are none.
        groups: Entries<'a, Name<'a>>,
    }
}

/// Results of DUMP (mountlist).
pub type Mounts<'a> = Entries<'a, Mount<'a>>;
/// Results of EXPORT (exports).
pub type Exports<'a> = Entries<'a, Export<'a>>;

/// Fields of a successful MNT (mountres3_ok).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MntOk<'a> {
    /// The handle of the export's root.
    pub handle: Handle<'a>,
    /// RPC flavors that the server takes for it, the preferred one first.
    pub flavors: Flavors<'a>,
}

/// Results of MNT (mountres3).
pub type MntReply<'a> = Result<MntOk<'a>, Status>;

impl<'a> Decode<'a> for MntReply<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.u32()? {
            MNT3_OK => Ok(Ok(MntOk { handle: reader.value()?, flavors: reader.value()? })),
            number => Status::from_number(number).map(Err).ok_or(XdrError::BadDiscriminant(number)),
        }
    }
}

impl Encode for MntReply<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            Ok(fields) => {
                writer.u32(MNT3_OK)?;
                writer.value(&fields.handle)?;
                writer.value(&fields.flavors)
            }
            Err(status) => writer.value(status),
        }
    }
}

const MNT3_OK: u32 = 0;

/// A list of RPC authentication flavors: their numbers, big-endian, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flavors<'a>(&'a [[u8; 4]]);

impl<'a> Flavors<'a> {
    /// Makes a list of numbers in wire order.
    #[must_use]
    pub const fn new(numbers: &'a [[u8; 4]]) -> Flavors<'a> {
        Flavors(numbers)
    }

    /// Iterates over the numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + 'a {
        self.0.iter().map(|number| u32::from_be_bytes(*number))
    }
}

impl<'a> Decode<'a> for Flavors<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let count = reader.count(FLAVORS_MAX, 4)? as usize;
        let (numbers, _) = reader.opaque_fixed(count * 4)?.as_chunks();
        Ok(Flavors(numbers))
    }
}

impl Encode for Flavors<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(u32::try_from(self.0.len()).map_err(|_| Overflow)?)?;
        self.0.iter().try_for_each(|number| writer.opaque_fixed(number))
    }
}

/// Writes the results of DUMP.
pub fn encode_mounts<'m>(
    writer: &mut Writer<'_>,
    mounts: impl IntoIterator<Item = Mount<'m>>,
) -> Result<(), Overflow> {
    for mount in mounts {
        writer.optional(Some(&mount))?;
    }
    writer.bool(false)
}

/// Writes one export. After the last one write the end of the list: [`encode_exports_end`].
pub fn encode_export<'g>(
    writer: &mut Writer<'_>,
    path: Name<'_>,
    groups: impl IntoIterator<Item = Name<'g>>,
) -> Result<(), Overflow> {
    writer.bool(true)?;
    writer.value(&path)?;
    for group in groups {
        writer.optional(Some(&group))?;
    }
    writer.bool(false)
}

/// Ends the results of EXPORT.
pub fn encode_exports_end(writer: &mut Writer<'_>) -> Result<(), Overflow> {
    writer.bool(false)
}
