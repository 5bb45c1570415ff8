//! How values become XDR and back: macros for records and numbers, and the small values that all others are
//! made of.

use core::fmt;

use crate::xdr::{Decode, Encode, Item, Overflow, Reader, Writer, XdrError};

/// Longest file handle, in bytes (NFS3_FHSIZE).
pub const HANDLE_LEN_MAX: u32 = 64;
/// Longest name of a directory entry that our server takes, in bytes.
pub const NAME_LEN_MAX: u32 = 255;
/// Longest path of a symbolic link that our server takes, in bytes: as long as Linux makes them.
pub const PATH_LEN_MAX: u32 = 4095;
/// Longest name or path that is parsed at all, in bytes. RFC 1813 sets no limit; XDR-f wants one.
pub const STRING_LEN_CAP: u32 = 4096;

/// Declares structs whose XDR form is their fields in order.
macro_rules! records {
    ($($(#[$meta:meta])* $name:ident $(<$lt:lifetime>)? {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $(<$lt>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl<'a> $crate::xdr::Decode<'a> for $name $(<$lt>)? {
            #[inline]
            fn decode(reader: &mut $crate::xdr::Reader<'a>) -> Result<Self, $crate::xdr::XdrError> {
                Ok($name { $($field: reader.value()?,)* })
            }
        }

        impl $(<$lt>)? $crate::xdr::Encode for $name $(<$lt>)? {
            #[inline]
            fn encode(&self, writer: &mut $crate::xdr::Writer<'_>) -> Result<(), $crate::xdr::Overflow> {
                $(writer.value(&self.$field)?;)*
                Ok(())
            }
        }
    )*};
}
pub(crate) use records;

/// Declares an XDR enumeration: a number outside of it is an error.
macro_rules! numbers {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $number,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Returns the one with this number, if there is one.
            #[inline]
            #[must_use]
            pub const fn from_number(number: u32) -> Option<$name> {
                match number {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// Returns its number on the wire.
            #[inline]
            #[must_use]
            pub const fn number(self) -> u32 {
                self as u32
            }
        }

        impl<'a> $crate::xdr::Decode<'a> for $name {
            #[inline]
            fn decode(reader: &mut $crate::xdr::Reader<'a>) -> Result<Self, $crate::xdr::XdrError> {
                reader.enumeration($name::from_number)
            }
        }

        impl $crate::xdr::Encode for $name {
            #[inline]
            fn encode(&self, writer: &mut $crate::xdr::Writer<'_>) -> Result<(), $crate::xdr::Overflow> {
                writer.u32(self.number())
            }
        }
    };
}
pub(crate) use numbers;

/// Nothing: NULL's arguments, GETATTR's failure.
impl<'a> Decode<'a> for () {
    #[inline]
    fn decode(_: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(())
    }
}

impl Encode for () {
    #[inline]
    fn encode(&self, _: &mut Writer<'_>) -> Result<(), Overflow> {
        Ok(())
    }
}

macro_rules! words {
    ($($type:ident)*) => {$(
        impl<'a> Decode<'a> for $type {
            #[inline]
            fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
                reader.$type()
            }
        }

        impl Encode for $type {
            #[inline]
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                writer.$type(*self)
            }
        }
    )*};
}
words!(u32 i32 u64 i64 bool);

/// XDR's optional data, and RFC 1813's unions of one arm.
impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        reader.optional()
    }
}

impl<T: Encode> Encode for Option<T> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.optional(self.as_ref())
    }
}

impl<'a, const N: usize> Decode<'a> for [u8; N] {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        reader.array().copied()
    }
}

impl<const N: usize> Encode for [u8; N] {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        *writer.array()? = *self;
        Ok(())
    }
}

/// Declares opaque values that always stay in the stream.
macro_rules! opaques {
    ($($(#[$meta:meta])* $name:ident up to $max:expr;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name<'a>(pub &'a [u8]);

        impl<'a> $crate::xdr::Decode<'a> for $name<'a> {
            #[inline]
            fn decode(reader: &mut $crate::xdr::Reader<'a>) -> Result<Self, $crate::xdr::XdrError> {
                reader.opaque($max).map($name)
            }
        }

        impl $crate::xdr::Encode for $name<'_> {
            #[inline]
            fn encode(&self, writer: &mut $crate::xdr::Writer<'_>) -> Result<(), $crate::xdr::Overflow> {
                writer.opaque(self.0)
            }
        }
    )*};
}
pub(crate) use opaques;

opaques! {
    /// A file handle (nfs_fh3): at most [`HANDLE_LEN_MAX`] octets, opaque to a client.
    Handle up to HANDLE_LEN_MAX;

    /// A name of a directory entry (filename3). Any octets: what is a good name is the server's business.
    Name up to STRING_LEN_CAP;
}

impl Name<'_> {
    /// Tells whether it is longer than [`NAME_LEN_MAX`]: the answer is [`Status::NameTooLong`](super::Status::NameTooLong).
    #[inline]
    #[must_use]
    pub const fn is_too_long(&self) -> bool {
        self.0.len() > NAME_LEN_MAX as usize
    }
}

/// Declares DDP-eligible values (RFC 8267 section 2).
macro_rules! eligible {
    ($($(#[$meta:meta])* $name:ident up to $max:expr;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name<'a>(pub Item<'a>);

        impl<'a> Decode<'a> for $name<'a> {
            #[inline]
            fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
                reader.eligible_opaque($max).map($name)
            }
        }

        /// Writes the item as it is: its octets, or the length word of what goes by chunk.
        impl Encode for $name<'_> {
            #[inline]
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                match self.0 {
                    Item::Inline(octets) => writer.eligible_opaque_inline(octets),
                    Item::Reduced { len, .. } => writer.eligible_opaque_reduced(len).map(|_position| ()),
                }
            }
        }
    )*};
}
eligible! {
    /// The path of a symbolic link (nfspath3), where a Call or Reply is about that link.
    Path up to STRING_LEN_CAP;

    /// The data of READ and WRITE. No limit of its own: what is in the stream is bounded by the message,
    /// and a chunk by what its receiver agreed to.
    Data up to u32::MAX;
}

/// Where the data is and how long; not the data, which is the user's.
impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Item::Inline(octets) => write!(f, "{} octets", octets.len()),
            Item::Reduced { .. } => self.0.fmt(f),
        }
    }
}

impl fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Path<'_> {
    /// Tells whether it is longer than [`PATH_LEN_MAX`]: the answer is [`Status::NameTooLong`](super::Status::NameTooLong).
    #[inline]
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        self.0.len() > PATH_LEN_MAX as usize
    }
}
