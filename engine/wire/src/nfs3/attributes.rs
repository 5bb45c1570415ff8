//! Attributes of objects, as they are reported (fattr3, wcc_data) and as they are set (sattr3).

use super::FileType;
use super::value::records;
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

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

/// Declares structs whose XDR form is their fields in order, of a length that never differs: they are read and written as a
/// whole, with one look at what room there is.
macro_rules! fixed_records {
    ($($(#[$meta:meta])* $name:ident of $len:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ident,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl<'a> Decode<'a> for $name {
            #[inline]
            fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
                let mut rest = &reader.array::<$len>()?[..];
                Ok($name { $($field: $type::get(&mut rest)?,)* })
            }
        }

        impl Encode for $name {
            #[inline]
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                let mut rest = &mut writer.array::<$len>()?[..];
                $(self.$field.put(&mut rest)?;)*
                Ok(())
            }

            #[inline]
            fn encode_some(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                let mut rest = &mut writer.array::<{ 4 + $len }>()?[..];
                1_u32.put(&mut rest)?;
                $(self.$field.put(&mut rest)?;)*
                Ok(())
            }
        }

        const _: () = assert!($len == 0 $(+ <$type as Fixed>::LEN)*, "its length is that of its fields");
    )*};
}

fixed_records! {
    /// All attributes of an object (fattr3).
    Attributes of ATTRIBUTES_LEN {
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
    WccAttributes of WCC_ATTRIBUTES_LEN {
        /// Size in bytes.
        size: u64,
        /// Last change of the data.
        mtime: Time,
        /// Last change of the attributes.
        ctime: Time,
    }
}

/// A field of the same length whatever its value. `rest` is the room behind the fields before it. There is always enough: the
/// compiler sees that, and leaves nothing of the checks.
trait Fixed: Sized {
    /// XDR length in bytes.
    const LEN: usize;
    fn get(rest: &mut &[u8]) -> Result<Self, XdrError>;
    fn put(self, rest: &mut &mut [u8]) -> Result<(), Overflow>;
}

macro_rules! fixed_words {
    ($($type:ident)*) => {$(
        impl Fixed for $type {
            const LEN: usize = size_of::<$type>();

            #[inline(always)]
            fn get(rest: &mut &[u8]) -> Result<$type, XdrError> {
                let Some((octets, later)) = rest.split_first_chunk() else { return Err(XdrError::Truncated) };
                *rest = later;
                Ok($type::from_be_bytes(*octets))
            }

            #[inline(always)]
            fn put(self, rest: &mut &mut [u8]) -> Result<(), Overflow> {
                let place = core::mem::take(rest).split_first_chunk_mut();
                let Some((octets, later)) = place else { return Err(Overflow) };
                *octets = self.to_be_bytes();
                *rest = later;
                Ok(())
            }
        }
    )*};
}
fixed_words!(u32 u64);

impl Fixed for FileType {
    const LEN: usize = 4;

    #[inline(always)]
    fn get(rest: &mut &[u8]) -> Result<FileType, XdrError> {
        let number = u32::get(rest)?;
        FileType::from_number(number).ok_or(XdrError::BadDiscriminant(number))
    }

    #[inline(always)]
    fn put(self, rest: &mut &mut [u8]) -> Result<(), Overflow> {
        self.number().put(rest)
    }
}

/// Two words.
macro_rules! fixed_pairs {
    ($($type:ident: $first:ident, $second:ident;)*) => {$(
        impl Fixed for $type {
            const LEN: usize = 8;

            #[inline(always)]
            fn get(rest: &mut &[u8]) -> Result<$type, XdrError> {
                Ok($type { $first: u32::get(rest)?, $second: u32::get(rest)? })
            }

            #[inline(always)]
            fn put(self, rest: &mut &mut [u8]) -> Result<(), Overflow> {
                self.$first.put(rest)?;
                self.$second.put(rest)
            }
        }
    )*};
}
fixed_pairs! {
    Time: seconds, nanoseconds;
    DeviceNumber: major, minor;
}

/// Attributes after an operation, if the server gives them (post_op_attr).
pub type PostOpAttributes = Option<Attributes>;

/// XDR length of [`Attributes`] in bytes.
pub const ATTRIBUTES_LEN: usize = 84;
/// XDR length of [`PostOpAttributes`] in bytes, at most.
pub const POST_OP_ATTRIBUTES_LEN_MAX: usize = 4 + ATTRIBUTES_LEN;
/// XDR length of [`WccAttributes`] in bytes.
const WCC_ATTRIBUTES_LEN: usize = 24;
/// XDR length of [`WccData`] in bytes, at most.
pub const WCC_DATA_LEN_MAX: usize = 4 + WCC_ATTRIBUTES_LEN + POST_OP_ATTRIBUTES_LEN_MAX;

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
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.u32()? {
            time_how::DONT_CHANGE => Ok(SetTime::Keep),
            time_how::SET_TO_SERVER_TIME => Ok(SetTime::ServerTime),
            time_how::SET_TO_CLIENT_TIME => Ok(SetTime::ClientTime(reader.value()?)),
            other => Err(XdrError::BadDiscriminant(other)),
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
