//! The small values that operations are made of: bitmaps, counted lists, opaque values, state ids, and the results of an
//! operation that may fail.
//!
//! Every counted value has its limit in its type. Where an RFC sets none, the limit is ours and says why.

use core::fmt;
use core::marker::PhantomData;

use super::Status4;
use crate::nfs3::value::records;
use crate::xdr::{Decode, Encode, Overflow, Reader, Shown, Writer, XdrError, hex};

/// Declares XDR unions: a discriminant, and the arm that it selects. A discriminant that has no arm is an error.
macro_rules! unions {
    ($($(#[$meta:meta])* $name:ident $(<$lt:lifetime>)? {
        $($(#[$variant_meta:meta])* $variant:ident = $number:literal $(($type:ty))?,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name $(<$lt>)? {
            $($(#[$variant_meta])* $variant $(($type))?,)*
        }

        impl<'a> $crate::xdr::Decode<'a> for $name $(<$lt>)? {
            #[inline]
            fn decode(reader: &mut $crate::xdr::Reader<'a>) -> Result<Self, $crate::xdr::XdrError> {
                match reader.u32()? {
                    $($number => Ok($name::$variant $((reader.value::<$type>()?))?),)*
                    found => Err($crate::xdr::XdrError::BadDiscriminant(found)),
                }
            }
        }

        impl $(<$lt>)? $crate::xdr::Encode for $name $(<$lt>)? {
            #[inline]
            fn encode(&self, writer: &mut $crate::xdr::Writer<'_>) -> Result<(), $crate::xdr::Overflow> {
                match self {
                    $(unions!(@pattern $variant arm $($type)?) => {
                        writer.u32($number)?;
                        unions!(@put writer arm $($type)?)
                    })*
                }
            }
        }
    )*};
    (@pattern $variant:ident $arm:ident $type:ty) => { Self::$variant($arm) };
    (@pattern $variant:ident $arm:ident) => { Self::$variant };
    (@put $writer:ident $arm:ident $type:ty) => { $writer.value($arm) };
    (@put $writer:ident $arm:ident) => { Ok(()) };
}
pub(super) use unions;

records! {
    /// A time (nfstime4): seconds and nanoseconds since 1970, UTC.
    #[derive(PartialOrd, Ord, Hash, Default)]
    Time4 {
        /// Seconds; negative before 1970.
        seconds: i64,
        /// Nanoseconds. A peer may send any number: 1,000,000,000 and more is NFS4ERR_INVAL, which is not checked here.
        nanoseconds: u32,
    }
}

/// Opaque octets or text of at most `MAX` octets, always in the stream. XDR gives text no character set; neither does this.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Opaque<'a, const MAX: u32>(pub &'a [u8]);

impl<'a, const MAX: u32> Decode<'a> for Opaque<'a, MAX> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        reader.opaque(MAX).map(Opaque)
    }
}

impl<const MAX: u32> Encode for Opaque<'_, MAX> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.opaque(self.0)
    }
}

impl<const MAX: u32> fmt::Debug for Opaque<'_, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(self.0).fmt(f)
    }
}

/// Octets of a fixed length: session ids, device ids. Shown in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FixedOpaque<const LEN: usize>(pub [u8; LEN]);

impl<'a, const LEN: usize> Decode<'a> for FixedOpaque<LEN> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        reader.array().copied().map(FixedOpaque)
    }
}

impl<const LEN: usize> Encode for FixedOpaque<LEN> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        *writer.array()? = self.0;
        Ok(())
    }
}

impl<const LEN: usize> fmt::Debug for FixedOpaque<LEN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl<const LEN: usize> Default for FixedOpaque<LEN> {
    fn default() -> Self {
        FixedOpaque([0; LEN])
    }
}

/// Identifies a session (sessionid4).
pub type SessionId = FixedOpaque<16>;
/// A verifier of eight octets (verifier4), compared and never interpreted.
pub type Verifier4 = FixedOpaque<8>;

/// Identifies state of a client at the server (stateid4): a sequence number, and the server's name for the state.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StateId {
    /// Counts changes of the state, from 1; 0 means the newest, in 4.1 and later.
    pub seqid: u32,
    /// The server's name for the state.
    pub other: [u8; 12],
}

impl StateId {
    /// Stands for no state: READ and WRITE without an open (8881-8.2.3).
    pub const ANONYMOUS: StateId = StateId { seqid: 0, other: [0; 12] };
    /// As [`StateId::ANONYMOUS`], but READ passes byte-range locks (8881-8.2.3).
    pub const READ_BYPASS: StateId = StateId { seqid: u32::MAX, other: [0xff; 12] };
    /// The current state id of the COMPOUND (8881-16.2.3.1.2).
    pub const CURRENT: StateId = StateId { seqid: 1, other: [0; 12] };
    /// Names no state: what CLOSE answers in 4.1 and later (8881-18.2.4).
    pub const INVALID: StateId = StateId { seqid: u32::MAX, other: [0; 12] };

    /// Tells whether it has a meaning of its own, as all with `other` of zeros or of ones have (8881-8.2.3).
    #[inline]
    #[must_use]
    pub fn is_special(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }
}

impl<'a> Decode<'a> for StateId {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let [a, b, c, d, other @ ..] = *reader.array::<16>()?;
        Ok(StateId { seqid: u32::from_be_bytes([a, b, c, d]), other })
    }
}

impl Encode for StateId {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let place = writer.array::<16>()?;
        place[..4].copy_from_slice(&self.seqid.to_be_bytes());
        place[4..].copy_from_slice(&self.other);
        Ok(())
    }
}

impl fmt::Debug for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            StateId::ANONYMOUS => f.write_str("anonymous"),
            StateId::READ_BYPASS => f.write_str("bypass"),
            StateId::CURRENT => f.write_str("current"),
            StateId::INVALID => f.write_str("invalid"),
            StateId { seqid, other } => {
                write!(f, "{seqid}:")?;
                hex(&other, f)
            }
        }
    }
}

/// Words of a [`Bitmap`] at most: 2,048 bits, of which 83 have names. No RFC sets a limit. Unknown bits are legal
/// (8881-18.7.3), so more words than are known must decode.
pub const BITMAP_WORDS_MAX: u32 = 64;
/// Words of a [`Bitmap`] that are kept by value.
const NEAR_WORDS: usize = 3;

/// A set of numbers (bitmap4): attributes, operations, notifications.
///
/// The words that the present minor versions use are values; further ones stay in the message.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Bitmap<'a> {
    near: [u32; NEAR_WORDS],
    /// Words on the wire.
    len: u32,
    /// The words behind `near`, in XDR.
    far: &'a [u8],
}

impl<'a> Bitmap<'a> {
    /// The empty set: no word on the wire.
    pub const EMPTY: Bitmap<'static> = Bitmap { near: [0; NEAR_WORDS], len: 0, far: &[] };

    /// Makes a set of three words or fewer: trailing words of zeros are not sent.
    #[must_use]
    pub const fn from_words(near: [u32; 3]) -> Bitmap<'a> {
        let len = match near {
            [0, 0, 0] => 0,
            [_, 0, 0] => 1,
            [_, _, 0] => 2,
            _ => 3,
        };
        Bitmap { near, len, far: &[] }
    }

    /// Returns the first three words: the numbers 0 to 95, which are all that have names.
    #[inline]
    #[must_use]
    pub const fn words(&self) -> [u32; 3] {
        self.near
    }

    /// Tells whether it has a number.
    #[inline]
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        let (word, bit) = ((number / 32) as usize, 1 << (number % 32));
        match self.near.get(word) {
            Some(word) => word & bit != 0,
            None => {
                let at = (word - NEAR_WORDS) * 4;
                let far = self.far.get(at..).and_then(<[u8]>::first_chunk);
                far.is_some_and(|octets| u32::from_be_bytes(*octets) & bit != 0)
            }
        }
    }

    /// Returns the numbers that both have, of 0 to 95.
    #[inline]
    #[must_use]
    pub const fn intersection(&self, other: &Bitmap<'_>) -> Bitmap<'static> {
        let ([a, b, c], [d, e, f]) = (self.near, other.near);
        Bitmap::from_words([a & d, b & e, c & f])
    }

    /// Tells whether all of its numbers are in `other`.
    #[inline]
    #[must_use]
    pub fn is_within(&self, other: &Bitmap<'_>) -> bool {
        self.near.iter().zip(other.near).all(|(own, other)| own & !other == 0)
            && self.iter().skip_while(|number| *number < 96).all(|number| other.contains(number))
    }

    /// Tells whether it has no number.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.near == [0; NEAR_WORDS] && self.far.iter().all(|octet| *octet == 0)
    }

    /// Returns its numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        let (near, far) = (self.near, self.far);
        let far = far.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        near.into_iter().chain(far).enumerate().flat_map(|(index, word)| {
            (0..32).filter(move |bit| word >> bit & 1 != 0).map(move |bit| index as u32 * 32 + bit)
        })
    }
}

impl<'a> Decode<'a> for Bitmap<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let len = reader.count(BITMAP_WORDS_MAX, 4)?;
        let mut near = [0; NEAR_WORDS];
        for word in near.iter_mut().take(len as usize) {
            *word = reader.u32()?;
        }
        let far = reader.opaque_fixed((len as usize).saturating_sub(NEAR_WORDS) * 4)?;
        Ok(Bitmap { near, len, far })
    }
}

impl Encode for Bitmap<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(self.len)?;
        for word in self.near.iter().take(self.len as usize) {
            writer.u32(*word)?;
        }
        writer.opaque_fixed(self.far)
    }
}

impl fmt::Debug for Bitmap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A counted array of at most `MAX` elements: as it was received, checked; or values to be sent.
pub struct List<'a, T, const MAX: u32> {
    elements: Elements<'a, T>,
}

enum Elements<'a, T> {
    /// Checked by `decode`.
    Xdr {
        count: u32,
        octets: &'a [u8],
        element: PhantomData<T>,
    },
    Values(&'a [T]),
}

impl<'a, T, const MAX: u32> List<'a, T, MAX> {
    /// Makes a list of values, to be sent. Its length must not be above `MAX`.
    #[inline]
    #[must_use]
    pub const fn new(values: &'a [T]) -> Self {
        debug_assert!(values.len() <= MAX as usize, "longer than its receiver takes");
        List { elements: Elements::Values(values) }
    }

    /// Returns the number of elements.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        match &self.elements {
            Elements::Xdr { count, .. } => *count as usize,
            Elements::Values(values) => values.len(),
        }
    }

    /// Tells whether it has no element.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, T: Decode<'a> + Copy, const MAX: u32> List<'a, T, MAX> {
    /// Returns the elements in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T, MAX> {
        let (mut reader, values) = match self.elements {
            Elements::Xdr { octets, .. } => (Reader::new(octets), &[][..]),
            Elements::Values(values) => (Reader::new(&[]), values),
        };
        // Errors cannot happen in a checked list; behind its last element the reader is empty, which ends it.
        let received = core::iter::from_fn(move || reader.value::<T>().ok());
        received.take(self.received()).chain(values.iter().copied())
    }

    const fn received(&self) -> usize {
        match self.elements {
            Elements::Xdr { count, .. } => count as usize,
            Elements::Values(_) => 0,
        }
    }
}

impl<'a, T: Decode<'a>, const MAX: u32> Decode<'a> for List<'a, T, MAX> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        // No element is shorter than a word.
        let count = reader.count(MAX, 4)?;
        let (start, position) = (reader.rest(), reader.position());
        for _ in 0..count {
            reader.value::<T>()?;
        }
        let octets = &start[..reader.position() - position];
        Ok(List { elements: Elements::Xdr { count, octets, element: PhantomData } })
    }
}

/// Writes a received list again, as it came.
impl<T: Encode, const MAX: u32> Encode for List<'_, T, MAX> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(u32::try_from(self.len()).map_err(|_| Overflow)?)?;
        match self.elements {
            Elements::Xdr { octets, .. } => writer.opaque_fixed(octets),
            Elements::Values(values) => values.iter().try_for_each(|value| writer.value(value)),
        }
    }
}

impl<T, const MAX: u32> Clone for List<'_, T, MAX> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const MAX: u32> Copy for List<'_, T, MAX> {}

impl<T> Clone for Elements<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Elements<'_, T> {}

impl<'a, T: Decode<'a> + Copy + PartialEq, const MAX: u32> PartialEq for List<'a, T, MAX> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a, T: Decode<'a> + Copy + Eq, const MAX: u32> Eq for List<'a, T, MAX> {}

/// Elements that [`List`] shows at most.
const SHOWN_ELEMENTS_MAX: usize = 8;

impl<'a, T: Decode<'a> + Copy + fmt::Debug, const MAX: u32> fmt::Debug for List<'a, T, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().take(SHOWN_ELEMENTS_MAX)).finish()?;
        if self.len() > SHOWN_ELEMENTS_MAX {
            write!(f, "...({} of them)", self.len())?;
        }
        Ok(())
    }
}

/// Results whose failure is a status and nothing else. [`Status4::Ok`] is no failure.
impl<'a, T: Decode<'a>> Decode<'a> for Result<T, Status4> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.value()? {
            Status4::Ok => reader.value().map(Ok),
            status => Ok(Err(status)),
        }
    }
}

impl<T: Encode> Encode for Result<T, Status4> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            Ok(fields) => {
                writer.value(&Status4::Ok)?;
                writer.value(fields)
            }
            Err(status) => {
                debug_assert!(*status != Status4::Ok, "a failure");
                writer.value(status)
            }
        }
    }
}

/// Why an operation failed, where the status number `WITH` comes with fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<D, const WITH: u32> {
    /// The status `WITH`, and its fields.
    Detailed(D),
    /// Another status.
    Plain(Status4),
}

impl<D, const WITH: u32> Refusal<D, WITH> {
    /// Returns the status.
    #[must_use]
    pub const fn status(&self) -> Status4 {
        match self {
            Refusal::Plain(status) => *status,
            Refusal::Detailed(_) => Self::DETAILED,
        }
    }

    /// The status that comes with fields.
    const DETAILED: Status4 = Status4::from_number(WITH).expect("a declared status");
}

impl<'a, T: Decode<'a>, D: Decode<'a>, const WITH: u32> Decode<'a> for Result<T, Refusal<D, WITH>> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.value()? {
            Status4::Ok => reader.value().map(Ok),
            status if status.number() == WITH => reader.value().map(|fields| Err(Refusal::Detailed(fields))),
            status => Ok(Err(Refusal::Plain(status))),
        }
    }
}

impl<T: Encode, D: Encode, const WITH: u32> Encode for Result<T, Refusal<D, WITH>> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            Ok(fields) => {
                writer.value(&Status4::Ok)?;
                writer.value(fields)
            }
            Err(Refusal::Detailed(fields)) => {
                writer.u32(WITH)?;
                writer.value(fields)
            }
            Err(Refusal::Plain(status)) => writer.value(status),
        }
    }
}

/// Results of an operation, which have a status.
pub trait OperationResult {
    /// Returns the status: [`Status4::Ok`] for a success.
    fn status(&self) -> Status4;
}

impl<T> OperationResult for Result<T, Status4> {
    #[inline]
    fn status(&self) -> Status4 {
        self.as_ref().err().copied().unwrap_or(Status4::Ok)
    }
}

impl<T, D, const WITH: u32> OperationResult for Result<T, Refusal<D, WITH>> {
    #[inline]
    fn status(&self) -> Status4 {
        self.as_ref().err().map_or(Status4::Ok, Refusal::status)
    }
}
