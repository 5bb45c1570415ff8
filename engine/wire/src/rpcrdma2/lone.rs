//! The most frequent transmissions: a group of one Send, with one item at most, in the receiver's first targets.
//!
//! All words but a few are constants, so parsing compares them and emitting copies them.
//! [`OptionalOperation`](super::OptionalOperation) treats these and all other operations field by field, with the same result.
//!
//! ```text
//!  word      0   1 2       3        4         5       6       7
//!            xid 2 credits OPTIONAL direction option  length  items, directions of a Call, 1, 0 in a Call, octets of Payload stream
//!  items     0  |  1 displacement length TBSN 0 count 0 1 2 ..  |  1 displacement length NOITEM
//!  directions    0  |  1 0 ffffffff 1 0 TBSN
//! ```

use super::message_type::MessageType;
use super::placement::kind;
use super::{OPTIONAL_LEN_MIN, VERSION, option, procedure};
use crate::xdr::{Overflow, UNIT, padded};

/// Octets of Payload stream that are looked at: xid and msg_type.
const START_LEN: u32 = 8;

/// Words before the operation.
const HEAD_WORDS: usize = OPTIONAL_LEN_MIN / UNIT;

/// The one form of directions: the only result of the whole Call goes to targets, however long it is.
const DIRECTED: [u32; 6] = [1, 0, u32::MAX, 1, 0, kind::TBSN];

/// Where the only item of a [`LoneTransmission`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LonePlace {
    /// TBSN, from the start of the first target on.
    Targets {
        /// Where its data belongs in the virtual XDR stream, a multiple of 4.
        displacement: u32,
        /// Octets, without padding.
        len: u32,
        /// Targets that it takes: those with the numbers 0 to `count` - 1.
        count: u32,
    },
    /// NOITEM: the results have no item for the only direction. In Replies only.
    NoItem,
}

/// An XMTREQ or XMTRESP that is all of its group: one item at most and, in a Call, one direction at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneTransmission {
    /// Equals the xid of the RPC message.
    pub xid: u32,
    /// Credits requested by a Call, granted by a Reply.
    pub credits: u32,
    /// Who sends it: XMTREQ is a Call's, XMTRESP a Reply's.
    pub direction: MessageType,
    /// Its item.
    pub item: Option<LonePlace>,
    /// It is a Call, and its only result goes to targets.
    pub is_directed: bool,
    /// Octets of the Payload stream, which follows the header.
    pub payload_len: u32,
}

/// Reads words one after another.
struct Words<'m> {
    left: &'m [[u8; UNIT]],
}

impl Words<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let (first, left) = self.left.split_first()?;
        self.left = left;
        Some(u32::from_be_bytes(*first))
    }

    /// Reads `N` words, and tells whether they are these.
    #[inline(always)]
    fn are<const N: usize>(&mut self, expected: [u32; N]) -> bool {
        let Some((found, left)) = self.left.split_first_chunk::<N>() else { return false };
        self.left = left;
        found.iter().zip(expected).fold(0, |differs, (word, own)| differs | u32::from_be_bytes(*word) ^ own)
            == 0
    }
}

impl LoneTransmission {
    /// Splits a received message into its header and what follows: the Payload stream, and the item behind it.
    ///
    /// `None` says nothing about the message: [`Header2::parse`](super::Header2::parse) does. What is returned is checked as there,
    /// and the Payload stream is in the message and starts with the xid and the direction.
    #[inline]
    #[must_use]
    pub fn parse(message: &[u8], direction: MessageType) -> Option<(LoneTransmission, &[u8])> {
        let (all, _) = message.as_chunks::<UNIT>();
        let (head, left) = all.split_first_chunk::<HEAD_WORDS>()?;
        let word = |at: usize| u32::from_be_bytes(head[at]);
        let (xid, version, credits) = (word(0), word(1), word(2));
        let (procedure, stated, option, len) = (word(3), word(4), word(5), word(6));
        let differs = version ^ VERSION
            | procedure ^ procedure::OPTIONAL
            | stated ^ direction.number()
            | option ^ option_of(direction);
        if differs != 0 {
            return None;
        }
        let mut words = Words { left };
        let item = match words.next()? {
            0 => None,
            1 => Some(Self::parse_item(&mut words, direction)?),
            _ => return None,
        };
        let is_directed = match direction {
            MessageType::Reply => false,
            MessageType::Call => match words.next()? {
                0 => false,
                1 if words.are::<5>([0, u32::MAX, 1, 0, kind::TBSN]) => true,
                _ => return None,
            },
        };
        let is_alone = match direction {
            // Transmissions of the group; Receives for more than one of the Reply.
            MessageType::Call => words.are([1, 0]),
            MessageType::Reply => words.are([1]),
        };
        let payload_len = words.next()?;
        let header_len = UNIT * (all.len() - words.left.len());
        let differs = len ^ (header_len - OPTIONAL_LEN_MIN) as u32;
        let rest = &message[header_len..];
        if !is_alone || differs != 0 || payload_len < START_LEN || payload_len as usize > rest.len() {
            return None;
        }
        if !words.are([xid, direction.number()]) {
            return None;
        }
        Some((LoneTransmission { xid, credits, direction, item, is_directed, payload_len }, rest))
    }

    #[inline(always)]
    fn parse_item(words: &mut Words<'_>, direction: MessageType) -> Option<LonePlace> {
        let (displacement, len) = (words.next()?, words.next()?);
        match words.next()? {
            kind::TBSN => {
                let (offset, count) = (words.next()?, words.next()?);
                let numbers = words.left.get(..count as usize)?;
                words.left = &words.left[count as usize..];
                let are_first = numbers.iter().zip(0..).all(|(number, own)| *number == u32::to_be_bytes(own));
                // As all checks of items: a multiple of 4, and it ends within 32 bits.
                let ends = u64::from(displacement) + padded(len).max(1) <= u64::from(u32::MAX);
                let is_right = offset == 0 && are_first && displacement.is_multiple_of(4) && ends;
                is_right.then_some(LonePlace::Targets { displacement, len, count })
            }
            kind::NOITEM if direction == MessageType::Reply => Some(LonePlace::NoItem),
            _ => None,
        }
    }

    /// Returns the octets of the header. They depend on the kinds of item and direction, and on the count of targets.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        let item = match self.item {
            None => 1,
            Some(LonePlace::NoItem) => 4,
            Some(LonePlace::Targets { count, .. }) => 6 + count as usize,
        };
        let rest = match self.direction {
            MessageType::Reply => 2,
            MessageType::Call if self.is_directed => DIRECTED.len() + 3,
            MessageType::Call => 1 + 3,
        };
        OPTIONAL_LEN_MIN + UNIT * (item + rest)
    }

    /// Writes the header to the start of `out`, and returns its octets.
    ///
    /// # Errors
    ///
    /// [`Overflow`] when `out` is shorter; nothing is written then.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Overflow> {
        let len = self.header_len();
        let info_len = u32::try_from(len - OPTIONAL_LEN_MIN).map_err(|_| Overflow)?;
        let (mut left, _) = out.get_mut(..len).ok_or(Overflow)?.as_chunks_mut::<UNIT>();
        let direction = self.direction;
        let (number, option) = (direction.number(), option_of(direction));
        put(&mut left, [self.xid, VERSION, self.credits, procedure::OPTIONAL, number, option, info_len]);
        match self.item {
            None => put(&mut left, [0]),
            Some(LonePlace::NoItem) => put(&mut left, [1, 0, 0, kind::NOITEM]),
            Some(LonePlace::Targets { displacement, len, count }) => {
                put(&mut left, [1, displacement, len, kind::TBSN, 0, count]);
                for number in 0..count {
                    put(&mut left, [number]);
                }
            }
        }
        match direction {
            MessageType::Reply => put(&mut left, [1, self.payload_len]),
            MessageType::Call => {
                match self.is_directed {
                    true => put(&mut left, DIRECTED),
                    false => put(&mut left, [0]),
                }
                put(&mut left, [1, 0, self.payload_len]);
            }
        }
        Ok(len)
    }
}

/// The operation that a first transmission of this direction is.
#[inline(always)]
const fn option_of(direction: MessageType) -> u32 {
    match direction {
        MessageType::Call => option::XMTREQ,
        MessageType::Reply => option::XMTRESP,
    }
}

/// Writes words, and takes their places off `left`, which is as long as all of them.
#[inline(always)]
fn put<const N: usize>(left: &mut &mut [[u8; UNIT]], words: [u32; N]) {
    if let Some((places, rest)) = core::mem::take(left).split_first_chunk_mut::<N>() {
        // Not `map`: a build in many units calls it, and what it calls, for each word.
        for (place, word) in places.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        *left = rest;
    }
}
