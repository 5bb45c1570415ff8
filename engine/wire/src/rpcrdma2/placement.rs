//! Where the bulk items of a transmission group are, and where those of its Reply shall go (RTR sections 3 and 4).

use super::elements::Elements;
use super::error::Error2;
use crate::rpcrdma::{SEGMENT_LEN, Segment};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError, padded};

/// What an item's place starts with.
pub(super) mod kind {
    pub(in crate::rpcrdma2) const EXRW: u32 = 1;
    pub(in crate::rpcrdma2) const TBSN: u32 = 2;
    pub(in crate::rpcrdma2) const CHOICE: u32 = 3;
    pub(in crate::rpcrdma2) const BYSIZE: u32 = 4;
    pub(in crate::rpcrdma2) const TOOSHORT: u32 = 5;
    pub(in crate::rpcrdma2) const NOITEM: u32 = 6;
}

impl Decode<'_> for Segment {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        Ok(Segment::from_wire(reader.array::<SEGMENT_LEN>()?))
    }
}

impl Encode for Segment {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        *writer.array()? = self.to_wire();
        Ok(())
    }
}

/// Where an item is that is not in the Payload stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemPlace<'a> {
    /// EXRW: in registered memory. In a request the Responder reads it; in a response the Responder has written it, and the
    /// lengths are those that were used (RTR-7.3-c).
    Explicit(Elements<'a, Segment>),
    /// TBSN: in target segments of the receiver's own Receives (RTR-7.3-b).
    Buffers {
        /// Octets before it in the first of them.
        offset: u32,
        /// The numbers of the segments, over all transmissions of the group (RTR-6.2-a).
        numbers: Elements<'a, u32>,
    },
    /// TOOSHORT, in responses only: the item is in the Payload stream, and its direction is used up (RTR-7.4-c).
    TooShort,
    /// NOITEM, in responses only: the results have no item for the direction (RTR-7.4-d).
    NoItem,
}

impl<'a> Decode<'a> for ItemPlace<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.u32()? {
            kind::EXRW => reader.value().map(ItemPlace::Explicit),
            kind::TBSN => Ok(ItemPlace::Buffers { offset: reader.u32()?, numbers: reader.value()? }),
            kind::TOOSHORT => Ok(ItemPlace::TooShort),
            kind::NOITEM => Ok(ItemPlace::NoItem),
            found => Err(XdrError::BadDiscriminant(found)),
        }
    }
}

impl Encode for ItemPlace<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            ItemPlace::Explicit(segments) => {
                writer.u32(kind::EXRW)?;
                writer.value(segments)
            }
            ItemPlace::Buffers { offset, numbers } => {
                writer.u32(kind::TBSN)?;
                writer.u32(*offset)?;
                writer.value(numbers)
            }
            ItemPlace::TooShort => writer.u32(kind::TOOSHORT),
            ItemPlace::NoItem => writer.u32(kind::NOITEM),
        }
    }
}

/// An item that left the Payload stream, or a direction's result (RTR-7.3-a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedItem<'a> {
    /// Where its data belongs in the virtual XDR stream, behind its count word. A multiple of 4. Of no meaning for
    /// [`ItemPlace::NoItem`].
    pub displacement: u32,
    /// Octets, without padding.
    pub len: u32,
    /// Where it is.
    pub place: ItemPlace<'a>,
}

impl<'a> Decode<'a> for PlacedItem<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(PlacedItem { displacement: reader.u32()?, len: reader.u32()?, place: reader.value()? })
    }
}

impl Encode for PlacedItem<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(self.displacement)?;
        writer.u32(self.len)?;
        writer.value(&self.place)
    }
}

/// Where a Requester wants an item of the results (RTR-7.4-e).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectedPlace<'a> {
    /// EXRW: in these segments, by RDMA Write.
    Explicit(Elements<'a, Segment>),
    /// TBSN: in the Requester's Receives; the Responder chooses which segments.
    Buffers,
    /// CHOICE: either, as the Responder likes.
    Choice(Elements<'a, Segment>),
    /// BYSIZE: in the Receives if it is shorter than `threshold`, else in the segments (RTR-X-2).
    BySize {
        /// Octets from which the item goes to the segments.
        threshold: u32,
        /// The segments.
        segments: Elements<'a, Segment>,
    },
}

impl<'a> DirectedPlace<'a> {
    /// Returns the segments that the Requester registered for the item.
    #[must_use]
    pub const fn segments(&self) -> Elements<'a, Segment> {
        match self {
            DirectedPlace::Explicit(segments)
            | DirectedPlace::Choice(segments)
            | DirectedPlace::BySize { segments, .. } => *segments,
            DirectedPlace::Buffers => Elements::EMPTY,
        }
    }

    /// Tells whether a result may be in `place` when it was directed here (Table 2).
    #[must_use]
    pub const fn permits(&self, place: &ItemPlace<'_>) -> bool {
        match (self, place) {
            (DirectedPlace::Explicit(_), ItemPlace::Buffers { .. }) => false,
            (DirectedPlace::Buffers, ItemPlace::Explicit(_)) => false,
            (_, ItemPlace::TooShort | ItemPlace::NoItem) => true,
            (_, ItemPlace::Explicit(_) | ItemPlace::Buffers { .. }) => true,
        }
    }
}

impl<'a> Decode<'a> for DirectedPlace<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.u32()? {
            kind::EXRW => reader.value().map(DirectedPlace::Explicit),
            kind::TBSN => Ok(DirectedPlace::Buffers),
            kind::CHOICE => reader.value().map(DirectedPlace::Choice),
            kind::BYSIZE => Ok(DirectedPlace::BySize { threshold: reader.u32()?, segments: reader.value()? }),
            found => Err(XdrError::BadDiscriminant(found)),
        }
    }
}

impl Encode for DirectedPlace<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            DirectedPlace::Explicit(_) => writer.u32(kind::EXRW)?,
            DirectedPlace::Buffers => return writer.u32(kind::TBSN),
            DirectedPlace::Choice(_) => writer.u32(kind::CHOICE)?,
            DirectedPlace::BySize { threshold, .. } => {
                writer.u32(kind::BYSIZE)?;
                writer.u32(*threshold)?;
            }
        }
        writer.value(&self.segments())
    }
}

impl PlacedItem<'_> {
    /// Octets on the wire.
    pub(super) fn encoded_len(&self) -> usize {
        let place = match self.place {
            ItemPlace::Explicit(segments) => 4 + SEGMENT_LEN * segments.len(),
            ItemPlace::Buffers { numbers, .. } => 8 + 4 * numbers.len(),
            ItemPlace::TooShort | ItemPlace::NoItem => 0,
        };
        12 + place
    }
}

/// What is wanted of one eligible item of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultDirection<'a> {
    /// A shorter item stays in the Payload stream (RTR-7.4-c).
    pub min_len: u32,
    /// Where a longer one goes.
    pub place: DirectedPlace<'a>,
}

impl<'a> Decode<'a> for ResultDirection<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(ResultDirection { min_len: reader.u32()?, place: reader.value()? })
    }
}

impl Encode for ResultDirection<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(self.min_len)?;
        writer.value(&self.place)
    }
}

/// Directions for the results that one part of the request produces (RTR-7.4-a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectionSet<'a> {
    /// Where the part starts in the request's virtual XDR stream.
    pub begin: u32,
    /// Where it ends; this octet is not in it.
    pub end: u32,
    /// The directions, in the order of the eligible items of the results.
    pub items: Elements<'a, ResultDirection<'a>>,
}

impl<'a> Decode<'a> for DirectionSet<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(DirectionSet { begin: reader.u32()?, end: reader.u32()?, items: reader.value()? })
    }
}

impl Encode for DirectionSet<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(self.begin)?;
        writer.u32(self.end)?;
        writer.value(&self.items)
    }
}

impl DirectionSet<'_> {
    /// Octets on the wire.
    pub(super) fn encoded_len(&self) -> usize {
        let item_len = |item: ResultDirection<'_>| {
            let segments = 4 + SEGMENT_LEN * item.place.segments().len();
            let place = match item.place {
                DirectedPlace::Explicit(_) | DirectedPlace::Choice(_) => segments,
                DirectedPlace::BySize { .. } => 4 + segments,
                DirectedPlace::Buffers => 0,
            };
            8 + place
        };
        12 + self.items.iter().map(item_len).sum::<usize>()
    }
}

/// Checks the places of items: multiples of 4, increasing, not overlapping, within 32 bits.
pub(super) fn check_items(items: &Elements<'_, PlacedItem<'_>>, is_request: bool) -> Result<(), Error2> {
    let mut free_from = 0;
    for item in items.iter() {
        match item.place {
            ItemPlace::TooShort | ItemPlace::NoItem if is_request => return Err(Error2::ResultInRequest),
            ItemPlace::NoItem => continue,
            ItemPlace::Explicit(segments) => check_segments(&segments)?,
            ItemPlace::Buffers { .. } | ItemPlace::TooShort => {}
        }
        let start = u64::from(item.displacement);
        let end = start + padded(item.len).max(1);
        if !item.displacement.is_multiple_of(4) || start < free_from || end > u64::from(u32::MAX) {
            return Err(Error2::Displacement(item.displacement));
        }
        free_from = end;
    }
    Ok(())
}

/// Checks that ranges are disjoint and increasing (RTR-7.4-a), and their segments.
pub(super) fn check_directions(sets: &Elements<'_, DirectionSet<'_>>) -> Result<(), Error2> {
    let mut free_from = 0;
    for set in sets.iter() {
        if set.begin < free_from || set.end <= set.begin {
            return Err(Error2::Ranges);
        }
        free_from = set.end;
        set.items.iter().try_for_each(|item| check_segments(&item.place.segments()))?;
    }
    Ok(())
}

fn check_segments(segments: &Elements<'_, Segment>) -> Result<(), Error2> {
    if segments.iter().all(|segment| segment.ends()) { Ok(()) } else { Err(Error2::SegmentRange) }
}
