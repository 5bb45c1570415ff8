//! Transport characteristics (xcharext-00): what each end says about itself.

use super::elements::Elements;
use super::error::Error2;
use super::{HEADER_LEN_MIN, characteristic_id as id};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// Octets of a [`BufferGroup`] on the wire.
const GROUP_LEN: usize = 16;

/// The parts are suitable targets of placed items (RTR-7.2-b).
const FLAG_TARGET: u32 = 0x01;

/// What an endpoint takes as the Responder of Calls in the reverse direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReverseSupport {
    /// It does not say: what it does not take is known from what it does not send (XC-l).
    #[default]
    Unknown,
    /// No Calls.
    None,
    /// Calls without chunks.
    Short,
    /// Any Calls, as in the forward direction.
    General,
}

impl ReverseSupport {
    const ALL: [ReverseSupport; 4] =
        [ReverseSupport::Unknown, ReverseSupport::None, ReverseSupport::Short, ReverseSupport::General];

    /// Returns the word on the wire.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Returns what a word on the wire means.
    #[inline]
    #[must_use]
    pub fn from_number(number: u32) -> Option<ReverseSupport> {
        ReverseSupport::ALL.get(number as usize).copied()
    }
}

/// Adjacent parts of a Receive that are alike (RTR-7.2-a).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferGroup {
    /// Parts.
    pub count: u32,
    /// Octets of each.
    pub len: u32,
    /// Every part starts at a multiple of this many octets of the receiver's memory; 0 or 1: anywhere.
    pub align: u32,
    /// Whether placed items may be put there. Other flags are sent as 0 and ignored.
    pub is_target: bool,
}

impl Decode<'_> for BufferGroup {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        let [count, len, align, flags] = [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
        Ok(BufferGroup { count, len, align, is_target: flags & FLAG_TARGET != 0 })
    }
}

impl Encode for BufferGroup {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let flags = if self.is_target { FLAG_TARGET } else { 0 };
        let words: &mut [u8; GROUP_LEN] = writer.array()?;
        for (place, word) in words.as_chunks_mut().0.iter_mut().zip([self.count, self.len, self.align, flags])
        {
            *place = word.to_be_bytes();
        }
        Ok(())
    }
}

/// How an endpoint divides each of its Receives (RTR section 5, characteristic 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferStructure<'a> {
    /// Octets of a Receive: the sum of its parts (RTR-7.2-c).
    pub len: u32,
    /// The parts, in the order of the buffer.
    pub groups: Elements<'a, BufferGroup>,
}

impl BufferStructure<'_> {
    /// Returns the number of parts that placed items may be put into, in one Receive.
    #[must_use]
    pub fn target_count(&self) -> u64 {
        self.groups.iter().filter(|group| group.is_target).map(|group| u64::from(group.count)).sum()
    }

    /// Returns where the `number`th target of a Receive starts, counted from 0, and its octets.
    ///
    /// It takes a step for each group, however many parts that has.
    #[must_use]
    pub fn target(&self, number: u32) -> Option<(u32, u32)> {
        let (mut start, mut left) = (0, number);
        for group in self.groups.iter() {
            if group.is_target {
                if left < group.count {
                    return Some((start + left * group.len, group.len));
                }
                left -= group.count;
            }
            // Checked: the parts together are as long as `len` says.
            start += group.count * group.len;
        }
        None
    }

    /// Checks that the parts are as long as the whole, and that no target is empty, so that a loop that fills targets
    /// ends.
    pub(super) fn check(&self) -> Result<(), Error2> {
        let lens = self.groups.iter().map(|group| u64::from(group.count) * u64::from(group.len));
        let sum = lens.fold(0_u64, u64::saturating_add);
        let has_empty = self.groups.iter().any(|group| group.is_target && group.len == 0);
        if sum != u64::from(self.len) || has_empty { Err(Error2::StructureLength) } else { Ok(()) }
    }
}

/// A transport characteristic with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CharacteristicValue<'a> {
    /// 1: octets of the smallest Receive that the sender posts, the largest Send that it takes.
    ReceiveSize(u32),
    /// 2: as a Requester it takes Sends with Invalidate (XC-m).
    RequesterInvalidation(bool),
    /// 3: which reverse Calls it takes.
    ReverseSupport(ReverseSupport),
    /// 4: bits of [`transmission_support`](super::transmission_support).
    TransmissionSupport(u32),
    /// 5: how its Receives are divided.
    BufferStructure(BufferStructure<'a>),
    /// 6: transmissions of the longest Call that it takes.
    RequestLimit(u32),
    /// 7: transmissions of the longest Reply that it makes.
    ResponseLimit(u32),
    /// One that is not known here, and skipped without an error (XC-g).
    Unknown {
        /// Its number.
        id: u32,
        /// Its octets.
        data: &'a [u8],
    },
}

impl<'a> CharacteristicValue<'a> {
    /// Returns the number of the characteristic.
    #[must_use]
    pub const fn id(&self) -> u32 {
        match *self {
            CharacteristicValue::ReceiveSize(_) => id::RECEIVE_SIZE,
            CharacteristicValue::RequesterInvalidation(_) => id::REQUESTER_INVALIDATION,
            CharacteristicValue::ReverseSupport(_) => id::REVERSE_SUPPORT,
            CharacteristicValue::TransmissionSupport(_) => id::TRANSMISSION_SUPPORT,
            CharacteristicValue::BufferStructure(_) => id::BUFFER_STRUCTURE,
            CharacteristicValue::RequestLimit(_) => id::REQUEST_LIMIT,
            CharacteristicValue::ResponseLimit(_) => id::RESPONSE_LIMIT,
            CharacteristicValue::Unknown { id, .. } => id,
        }
    }

    /// Checks what the XDR does not.
    pub(super) fn check(&self) -> Result<(), Error2> {
        match self {
            // Not even the smallest message fits: nothing could be sent to such a peer.
            CharacteristicValue::ReceiveSize(len)
            | CharacteristicValue::BufferStructure(BufferStructure { len, .. })
                if (*len as usize) < HEADER_LEN_MIN =>
            {
                Err(Error2::CharacteristicValue(self.id()))
            }
            CharacteristicValue::BufferStructure(structure) => structure.check(),
            _ => Ok(()),
        }
    }
}

impl<'a> Decode<'a> for CharacteristicValue<'a> {
    /// A value that is too short, too long or not of its type is refused (XC-h, XC-X-3).
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let id = reader.u32()?;
        let data = reader.opaque(u32::MAX)?;
        let mut value = Reader::new(data);
        let decoded = match id {
            id::RECEIVE_SIZE => CharacteristicValue::ReceiveSize(value.u32()?),
            id::REQUESTER_INVALIDATION => CharacteristicValue::RequesterInvalidation(value.bool()?),
            id::REVERSE_SUPPORT => {
                CharacteristicValue::ReverseSupport(value.enumeration(ReverseSupport::from_number)?)
            }
            id::TRANSMISSION_SUPPORT => CharacteristicValue::TransmissionSupport(value.u32()?),
            id::BUFFER_STRUCTURE => CharacteristicValue::BufferStructure(BufferStructure {
                len: value.u32()?,
                groups: value.value()?,
            }),
            id::REQUEST_LIMIT => CharacteristicValue::RequestLimit(value.u32()?),
            id::RESPONSE_LIMIT => CharacteristicValue::ResponseLimit(value.u32()?),
            _ => return Ok(CharacteristicValue::Unknown { id, data }),
        };
        value.finish()?;
        Ok(decoded)
    }
}

impl Encode for CharacteristicValue<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(self.id())?;
        if let CharacteristicValue::Unknown { data, .. } = self {
            return writer.opaque(data);
        }
        let len = writer.reserve_u32()?;
        let start = writer.position();
        match self {
            CharacteristicValue::RequesterInvalidation(is_taken) => writer.bool(*is_taken)?,
            CharacteristicValue::ReverseSupport(support) => writer.u32(support.number())?,
            CharacteristicValue::BufferStructure(structure) => {
                writer.u32(structure.len)?;
                writer.value(&structure.groups)?;
            }
            CharacteristicValue::ReceiveSize(word)
            | CharacteristicValue::TransmissionSupport(word)
            | CharacteristicValue::RequestLimit(word)
            | CharacteristicValue::ResponseLimit(word) => writer.u32(*word)?,
            CharacteristicValue::Unknown { .. } => {}
        }
        let written = u32::try_from(writer.position() - start).map_err(|_| Overflow)?;
        writer.patch_u32(len, written);
        Ok(())
    }
}

/// A set of characteristics, by their positions in a list that was sent before (XC-b).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionSet<'a>(pub Elements<'a, u32>);

impl PositionSet<'_> {
    /// Tells whether the characteristic at `position`, from 0, is in the set. Words that are missing count as 0.
    #[must_use]
    pub fn contains(&self, position: usize) -> bool {
        let word = self.0.iter().nth(position / 32).unwrap_or(0);
        word >> (position % 32) & 1 != 0
    }
}

/// ROPT_INITXCH: the sender's characteristics (XC-c). It has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialCharacteristics<'a> {
    /// Their values. One that is not there has its default; of two with one number the last counts (XC-X-2).
    pub values: Elements<'a, CharacteristicValue<'a>>,
    /// Those that are not expected to change.
    pub unchanging: PositionSet<'a>,
}

/// ROPT_REQXCH: asks the peer to change its characteristics (XC-d).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CharacteristicRequest<'a> {
    /// The values that the sender would like the peer to have.
    pub wanted: Elements<'a, CharacteristicValue<'a>>,
}

/// ROPT_RESPXCH: what becomes of the values that a request with the same xid wanted (XC-d).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CharacteristicResponse<'a> {
    /// Those in effect now.
    pub done: PositionSet<'a>,
    /// Those that were refused.
    pub rejected: PositionSet<'a>,
    /// Those of which the peer will hear by an update.
    pub pending: PositionSet<'a>,
}

/// ROPT_UPDXCH: a new value of one of the sender's characteristics (XC-e). It has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CharacteristicUpdate<'a> {
    /// The value.
    pub now: CharacteristicValue<'a>,
    /// A request for this characteristic is no longer pending.
    pub is_settled: bool,
}
