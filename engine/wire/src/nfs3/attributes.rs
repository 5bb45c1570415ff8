//! Attributes of objects, as they are reported (fattr3, wcc_data) and as they are set (sattr3).

use super::FileType;
use super::value::records;
use crate::xdr::{Decode, Encode, Error, Overflow, Reader, Writer};

records! {
    /// A time (nfstime3): seconds and nanoseconds since 1970, UTC.
    #[derive(PartialOrd, Ord, Hash, Default)]
    Time {
        /// Seconds.
        seconds: u32,
        /// Nanoseconds. A peer may send any number: below 1,000,000,000 is its duty, not checked here.
        nanoseconds: u32,
    }

    /// Number of a device (specdata3); only devices have one.
    #[derive(Hash, Default)]
    DeviceNumber {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    }

    /// All attributes of an object (fattr3).
    Attributes {
        /// What it is.
        file_type: FileType,
        /// Permission bits, set-uid, set-gid, sticky: the low 12 bits of a Unix mode.
        mode: u32,
        /// Number of hard links.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Size in bytes.
        size: u64,
        /// Bytes of storage in use.
        used: u64,
        /// Number of a device.
        rdev: DeviceNumber,
        /// Identifies the file system.
        fsid: u64,
        /// Identifies the object within its file system.
        fileid: u64,
        /// Last access to the data.
        atime: Time,
        /// Last change of the data.
        mtime: Time,
        /// Last change of the attributes.
        ctime: Time,
    }

    /// The attributes that tell whether an object changed (wcc_attr).
    WccAttributes {
        /// Size in bytes.
        size: u64,
        /// Last change of the data.
        mtime: Time,
        /// Last change of the attributes.
        ctime: Time,
    }

    /// Weak cache consistency data (wcc_data): an object before and after an operation.
    #[derive(Default)]
    WccData {
        /// Before, if the server knows (pre_op_attr).
        before: Option<WccAttributes>,
        /// After, if the server knows (post_op_attr).
        after: PostOpAttributes,
    }

    /// The attributes to set (sattr3). `None` leaves one as it is.
    #[derive(Default)]
    SetAttributes {
        /// Permission bits.
        mode: Option<u32>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
        /// Size in bytes: truncates or extends.
        size: Option<u64>,
        /// Last access.
        atime: SetTime,
        /// Last change of the data.
        mtime: SetTime,
    }
}

/// Attributes after an operation, if the server gives them (post_op_attr).
pub type PostOpAttributes = Option<Attributes>;

/// XDR length of [`Attributes`] in bytes.
pub const ATTRIBUTES_LEN: usize = 84;
/// XDR length of [`PostOpAttributes`] in bytes, at most.
pub const POST_OP_ATTRIBUTES_LEN_MAX: usize = 4 + ATTRIBUTES_LEN;
/// XDR length of [`WccData`] in bytes, at most.
pub const WCC_DATA_LEN_MAX: usize = 4 + 24 + POST_OP_ATTRIBUTES_LEN_MAX;

impl Attributes {
    /// What [`WccData::before`] holds of these attributes.
    #[inline]
    pub const fn wcc(&self) -> WccAttributes {
        WccAttributes { size: self.size, mtime: self.mtime, ctime: self.ctime }
    }
}

/// How to set a time (set_atime, set_mtime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// To the server's clock.
    ServerTime,
    /// To this.
    ClientTime(Time),
}

mod time_how {
    pub(super) const DONT_CHANGE: u32 = 0;
    pub(super) const SET_TO_SERVER_TIME: u32 = 1;
    pub(super) const SET_TO_CLIENT_TIME: u32 = 2;
}

impl<'a> Decode<'a> for SetTime {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Error> {
        match reader.u32()? {
            time_how::DONT_CHANGE => Ok(SetTime::Keep),
            time_how::SET_TO_SERVER_TIME => Ok(SetTime::ServerTime),
            time_how::SET_TO_CLIENT_TIME => Ok(SetTime::ClientTime(reader.value()?)),
            other => Err(Error::BadDiscriminant(other)),
        }
    }
}

impl Encode for SetTime {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            SetTime::Keep => writer.u32(time_how::DONT_CHANGE),
            SetTime::ServerTime => writer.u32(time_how::SET_TO_SERVER_TIME),
            SetTime::ClientTime(time) => {
                writer.u32(time_how::SET_TO_CLIENT_TIME)?;
                writer.value(time)
            }
        }
    }
}
