//! The most frequent messages of version 2: one Send, no chunks, and one item at most.
//!
//! They are taken in where they arrived, in one step, by rules that the general way checks in several: any message that is not
//! as expected is left to that way, which says what is wrong with it. Nearly all of them consist of constants and a few numbers:
//! base messages without chunks, and [`LoneTransmission`]. The others are read field by field.

use stag_wire::rpcrdma2::{
    Body2, DirectedPlace, Elements, HEADER_LEN_MIN, Header2, ItemPlace, LonePlace, LoneTransmission,
    MessageType, OptionalOperation, PlacedItem, VERSION, procedure,
};
use stag_wire::xdr::Overflow;

use crate::layout::TargetRun;

/// A message that is one Send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lone<'m> {
    pub(crate) xid: u32,
    pub(crate) credits: u32,
    /// Octets of the header, and the Payload stream behind it.
    pub(crate) header_len: u32,
    pub(crate) stream: &'m [u8],
    /// Its only item. `None`: it has none. `Some(None)`: it says of a direction that there is none (NOITEM).
    pub(crate) item: Option<Option<LoneItem<'m>>>,
    /// A Call directs its only result to targets.
    pub(crate) is_directed: bool,
    /// It is an XMTREQ or XMTRESP; otherwise a base message.
    pub(crate) is_transmission: bool,
}

/// The item of such a message, in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneItem<'m> {
    /// Where it belongs in the virtual stream.
    pub displacement: u32,
    /// Its octets, in the message.
    pub data: &'m [u8],
}

/// Takes a message apart if it is one. `run`: the targets of its receiver.
#[inline]
pub(crate) fn parse<'m>(
    message: &'m [u8],
    run: Option<TargetRun>,
    direction: MessageType,
) -> Option<Lone<'m>> {
    if let Some(base) = parse_base(message, direction) {
        return Some(base);
    }
    match LoneTransmission::parse(message, direction) {
        Some((found, rest)) => of_transmission(message, run, &found, rest),
        None => parse_fields(message, run, direction),
    }
}

/// Finds the data of a transmission whose words are constants.
#[inline]
fn of_transmission<'m>(
    message: &'m [u8],
    run: Option<TargetRun>,
    found: &LoneTransmission,
    rest: &'m [u8],
) -> Option<Lone<'m>> {
    let LoneTransmission { xid, credits, item, is_directed, payload_len, .. } = *found;
    let header_len = (message.len() - rest.len()) as u32;
    let item = match item {
        None => None,
        Some(LonePlace::NoItem) => Some(None),
        Some(LonePlace::Targets { displacement, len, count }) => {
            let start = match len {
                0 => (count == 0).then_some(0)?,
                _ => run?.locate_first(count, len).filter(|start| *start >= header_len + payload_len)?,
            };
            // As in [`locate`].
            if displacement > payload_len {
                return None;
            }
            let data = message.get(start as usize..)?.get(..len as usize)?;
            Some(Some(LoneItem { displacement, data }))
        }
    };
    let stream = rest.get(..payload_len as usize)?;
    Some(Lone { xid, credits, header_len, stream, item, is_directed, is_transmission: true })
}

/// Takes a transmission apart field by field.
#[cold]
fn parse_fields<'m>(message: &'m [u8], run: Option<TargetRun>, direction: MessageType) -> Option<Lone<'m>> {
    let (header, rest) = Header2::parse(message).ok()?;
    let (xid, credits) = (header.xid, header.credits);
    let header_len = (message.len() - rest.len()) as u32;
    let Body2::Optional(found) = &header.body else { return None };
    if found.direction != direction {
        return None;
    }
    let (items, directions, count, len) = match OptionalOperation::parse(found).ok()? {
        // Its Reply may take several Sends.
        OptionalOperation::Request(found) if found.response_receives > 0 => return None,
        OptionalOperation::Request(found) => (found.items, found.directions, found.count, found.payload_len),
        OptionalOperation::Response(found) => (found.items, Elements::EMPTY, found.count, found.payload_len),
        _ => return None,
    };
    let stream = rest.get(..len as usize)?;
    if count != 1 || items.len() > 1 || directions.len() > 1 || found.check_start(rest).is_err() {
        return None;
    }
    let item = match items.iter().next() {
        Some(item) => Some(locate(message, &item, run, (header_len, len))?),
        None => None,
    };
    let is_directed = match directions.iter().next() {
        None => false,
        Some(set) => {
            let mut all = set.items.iter();
            let direction = all.next().filter(|direction| direction.min_len == 0)?;
            let is_all = set.begin == 0 && set.end == u32::MAX;
            if !matches!(direction.place, DirectedPlace::Buffers) || all.next().is_some() || !is_all {
                return None;
            }
            true
        }
    };
    Some(Lone { xid, credits, header_len, stream, item, is_directed, is_transmission: true })
}

/// Takes a base message without chunks apart: all words but xid and credits are constants, as in [`plain`](crate::plain).
#[inline]
fn parse_base(message: &[u8], direction: MessageType) -> Option<Lone<'_>> {
    // xid, version, credits, procedure, direction; three lists; xid, msg_type.
    let words: &[u8; HEADER_LEN_MIN + 8] = message.first_chunk()?;
    let word = |at: usize| u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
    let xid = word(0);
    let differs = word(4) ^ VERSION
        | word(12) ^ procedure::MSG
        | word(16) ^ direction.number()
        | word(20)
        | word(24)
        | word(28)
        | word(32) ^ xid
        | word(36) ^ direction.number();
    (differs == 0).then(|| Lone {
        xid,
        credits: word(8),
        header_len: HEADER_LEN_MIN as u32,
        stream: &message[HEADER_LEN_MIN..],
        item: None,
        is_directed: false,
        is_transmission: false,
    })
}

/// Writes the header of such a message to the start of `out`, and returns its octets.
///
/// # Errors
///
/// `out` is shorter.
#[inline]
pub(crate) fn emit_base(
    out: &mut [u8],
    direction: MessageType,
    xid: u32,
    credits: u32,
) -> Result<usize, Overflow> {
    let head: &mut [u8; HEADER_LEN_MIN] = out.first_chunk_mut().ok_or(Overflow)?;
    let words = [xid, VERSION, credits, procedure::MSG, direction.number(), 0, 0, 0].map(u32::to_be_bytes);
    head.copy_from_slice(words.as_flattened());
    Ok(HEADER_LEN_MIN)
}

/// Finds the octets of an item: as [`PlacementMap::check`](crate::placement::PlacementMap::check) does. `None`: it is not in one piece,
/// or not where it may be.
#[inline]
fn locate<'m>(
    message: &'m [u8],
    item: &PlacedItem<'_>,
    run: Option<TargetRun>,
    (header_len, payload_len): (u32, u32),
) -> Option<Option<LoneItem<'m>>> {
    let (offset, numbers) = match item.place {
        ItemPlace::Buffers { offset, numbers } => (offset, numbers),
        ItemPlace::NoItem => return Some(None),
        ItemPlace::Explicit(_) | ItemPlace::TooShort => return None,
    };
    if item.displacement > payload_len {
        return None;
    }
    let displacement = item.displacement;
    if item.len == 0 {
        return numbers.is_empty().then_some(Some(LoneItem { displacement, data: &[] }));
    }
    let start = run?.locate(offset, &numbers, item.len)?;
    if start < header_len + payload_len {
        return None;
    }
    let data = message.get(start as usize..)?.get(..item.len as usize)?;
    Some(Some(LoneItem { displacement, data }))
}

/// The Reply in one Send to a Call that directs its result to targets (`run`). `result`: where it belongs in the virtual stream, and its
/// octets; `None`: there is none.
#[inline]
pub(crate) fn response(result: Option<(u32, u32)>, run: TargetRun, payload_len: u32) -> LoneTransmission {
    let item = match result {
        None => LonePlace::NoItem,
        Some((displacement, len)) => LonePlace::Targets { displacement, len, count: run.count_for(len) },
    };
    LoneTransmission {
        xid: 0,
        credits: 0,
        direction: MessageType::Reply,
        item: Some(item),
        is_directed: false,
        payload_len,
    }
}
