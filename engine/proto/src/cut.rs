//! How a message is cut into transmissions: each a Send that fits a Receive of the peer (rtrext, message continuation).
//!
//! ```text
//! no items       | lead, Payload ........ |   | continuation, Payload ........ |   | continuation, Payload |
//! items          | lead, Payload | pad | item 0 | item 0 |   | cont. | pad | item 0 | item 1 |   | continuation, Payload |
//!                |<--- head ---------->|
//! ```
//!
//! Items begin at the first target of the first transmission and take one target after the other; each begins a target of its
//! own. While there are items the Payload stream stays in the heads, so that the choice of targets does not depend on the
//! length of the header, which names them. Behind the last item it may fill whole Receives.
//!
//! Where a head does not hold the header, the Payload stream goes on into targets (rtrext, section 6.2), and the item begins at
//! the next one, or behind the Payload stream in the same one (RTR-X-24). Then which targets it gets depends on the header.

use stag_wire::rpcrdma2::CONTINUATION_LEN;

use crate::layout::ReceiveLayout;

/// Octets of Payload stream that the first transmission has at least: xid and msg_type (RTR-X-11).
const START_LEN: u32 = 8;

/// What a message is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageShape<'a> {
    /// Octets of the first transmission's header, with its operation: `header_len` of either transmission in `wire`.
    pub lead_len: u32,
    /// Octets of the Payload stream: what is neither in targets nor in chunks. At least 8.
    pub payload_len: u32,
    /// Octets of each item that goes into targets, in the order of the message.
    pub items: &'a [u32],
}

/// Why a message cannot be cut. It is sent by base means then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutError {
    /// The header, and at least the start of the Payload stream, do not fit the space that a Receive has for them.
    Head {
        /// Octets that have to fit.
        len: u32,
        /// Octets that there are.
        room: u32,
    },
    /// It takes more transmissions than there may be.
    TooMany {
        /// The limit.
        limit: u32,
    },
    /// Its items do not lie in the targets that its header names.
    Targets,
}

/// One Send of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// Its number, from 0.
    pub number: u32,
    /// Octets of its header: of the first one [`MessageShape::lead_len`], of others that of an XMTCONT.
    pub header_len: u32,
    /// Where its part of the Payload stream starts in that stream. It goes right behind the header.
    pub payload_at: u32,
    /// Octets of that part.
    pub payload_len: u32,
    /// Octets of the Send, header and items included.
    pub len: u32,
    /// The first target in it that may hold an item, over the whole group, and the octets of that which are not for it.
    first_target: u32,
    offset: u32,
    /// Where the items go on: which, and the octets of it that earlier transmissions carry.
    item: usize,
    item_at: u32,
}

/// A piece of an item in a Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemPiece {
    /// Octets of the Send before it. What lies between pieces, headers and Payload stream is filled with zeros (RTR-X-9).
    pub at: u32,
    /// Which item.
    pub item: usize,
    /// Octets of the item before it.
    pub from: u32,
    /// Octets.
    pub len: u32,
    /// The target that it lies in, over the whole group.
    pub target: u32,
}

/// Where the items of a transmission begin.
#[derive(Clone, Copy, Debug)]
struct ItemStart {
    target: u32,
    /// Octets of the target before.
    offset: u32,
    /// Octets of the Send before.
    at: u32,
}

/// A message, cut: the same at any time.
#[derive(Clone, Copy, Debug)]
pub struct MessageCut<'a> {
    shape: MessageShape<'a>,
    layout: &'a ReceiveLayout,
    count: u32,
    first_payload_len: u32,
}

impl<'a> MessageCut<'a> {
    /// Cuts a message for Receives of `layout` into at most `limit` transmissions: as many as the peer takes, and as there are
    /// credits for (RTR-4.3-a, RTR-5.2-a), or Receives that it told of (RTR-5.2-b).
    ///
    /// # Errors
    ///
    /// It does not fit.
    pub fn new(
        shape: MessageShape<'a>,
        layout: &'a ReceiveLayout,
        limit: u32,
    ) -> Result<MessageCut<'a>, CutError> {
        let mut cut = MessageCut { shape, layout, count: 0, first_payload_len: 0 };
        let mut cursor = Cursor::default();
        loop {
            let transmission = cut.next(&mut cursor)?;
            let Some(transmission) = transmission else { break };
            if cut.count >= limit {
                return Err(CutError::TooMany { limit });
            }
            if cut.count == 0 {
                cut.first_payload_len = transmission.payload_len;
            }
            cut.count += 1;
        }
        Ok(cut)
    }

    /// Returns the number of transmissions, at least 1.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the octets of Payload stream in the first one.
    #[must_use]
    pub fn first_payload_len(&self) -> u32 {
        self.first_payload_len
    }

    /// Iterates over the transmissions, in the order in which they are sent.
    pub fn transmissions(&self) -> impl Iterator<Item = Transmission> + use<'a> {
        let (cut, mut cursor) = (*self, Cursor::default());
        // It was cut before: no error comes now.
        core::iter::from_fn(move || cut.next(&mut cursor).ok().flatten())
    }

    /// Iterates over the pieces of items in one of the transmissions, in the order of its octets.
    pub fn pieces(&self, transmission: &Transmission) -> impl Iterator<Item = ItemPiece> + use<'a> {
        let (items, layout) = (self.shape.items, self.layout);
        let Transmission {
            number, first_target: mut target, mut offset, mut item, item_at: mut from, ..
        } = *transmission;
        core::iter::from_fn(move || {
            while items.get(item).is_some_and(|len| *len == from) {
                (item, from) = (item + 1, 0);
            }
            let place = layout.target(target).filter(|place| place.transmission == number)?;
            let at = place.start + offset;
            let len = (place.len - offset).min(items.get(item)? - from);
            // It goes on in another target only where it fills this one.
            if at.saturating_add(len) > layout.len() {
                return None;
            }
            let piece = ItemPiece { at, item, from, len, target };
            (target, offset, from) = (target + 1, 0, from + len);
            Some(piece)
        })
    }

    /// Iterates over the numbers of the targets that an item lies in, in its order.
    pub fn targets_of(&self, item: usize) -> impl Iterator<Item = u32> + use<'a> {
        self.pieces_of(item).map(|piece| piece.target)
    }

    /// Returns the octets of its first target that are before an item.
    #[must_use]
    pub fn offset_of(&self, item: usize) -> u32 {
        let first = self.pieces_of(item).next();
        let place = first.and_then(|piece| Some(piece.at - self.layout.target(piece.target)?.start));
        place.unwrap_or(0)
    }

    fn pieces_of(&self, item: usize) -> impl Iterator<Item = ItemPiece> + use<'a> {
        let cut = *self;
        let all = cut.transmissions().flat_map(move |sent| cut.pieces(&sent));
        all.filter(move |piece| piece.item == item)
    }

    fn next(&self, cursor: &mut Cursor) -> Result<Option<Transmission>, CutError> {
        let MessageShape { lead_len, payload_len, items } = self.shape;
        let Cursor { number, payload_at, .. } = *cursor;
        while items.get(cursor.item).is_some_and(|len| *len == cursor.item_at) {
            (cursor.item, cursor.item_at) = (cursor.item + 1, 0);
        }
        let has_items = cursor.item < items.len();
        let payload_left = payload_len - payload_at;
        if number > 0 && payload_left == 0 && !has_items {
            return Ok(None);
        }
        let (header_len, start_len) = match number {
            0 => (lead_len, START_LEN.min(payload_len)),
            // Without items it has to bring something else.
            _ => (CONTINUATION_LEN as u32, u32::from(!has_items)),
        };
        let least = header_len.saturating_add(start_len);
        let (item, item_at) = (cursor.item, cursor.item_at);
        let mut found = Transmission {
            number,
            header_len,
            payload_at,
            payload_len: 0,
            len: 0,
            first_target: u32::MAX,
            offset: 0,
            item,
            item_at,
        };
        let mut room = self.layout.len();
        if has_items {
            if self.layout.targets() == 0 {
                return Err(CutError::Head { len: least, room: 0 });
            }
            if let Some(start) = self.item_start(&found, least, header_len.saturating_add(payload_left)) {
                (found.first_target, found.offset) = (start.target, start.offset);
                room = room.min(start.at);
            }
        }
        if least > room {
            return Err(CutError::Head { len: least, room });
        }
        let part = payload_left.min(room - header_len);
        (found.payload_len, found.len) = (part, header_len + part);
        // Each piece has octets, so this goes on.
        let last = self.pieces(&found).last();
        if let Some(ItemPiece { at, item, from, len, .. }) = last {
            found.len = at + len;
            (cursor.item, cursor.item_at) = (item, from + len);
        } else if part == 0 && has_items {
            // Neither does the next one have more room.
            return Err(CutError::Head { len: least, room });
        }
        // What is left of this Receive's targets is not used.
        (cursor.number, cursor.payload_at) = (number + 1, payload_at + part);
        Ok(Some(found))
    }

    /// Where the items of a transmission begin whose header and start of the Payload stream have `least` octets: at its first target, or
    /// behind all that is left of the Payload stream, which ends at `end`. `None`: not in this one.
    fn item_start(&self, sent: &Transmission, least: u32, end: u32) -> Option<ItemStart> {
        let first = sent.number.checked_mul(self.layout.targets())?;
        let usual = self.layout.target(first)?;
        match usual.start >= least {
            true => Some(ItemStart { target: first, offset: 0, at: usual.start }),
            false => self.later_start(sent, first, end),
        }
    }

    #[cold]
    fn later_start(&self, sent: &Transmission, first: u32, end: u32) -> Option<ItemStart> {
        let len_max = self.layout.len();
        let mut places = (first..first.saturating_add(self.layout.targets()))
            .filter_map(|target| Some((target, self.layout.target(target)?)))
            .filter(|(_, place)| place.start < len_max);
        // An item that goes on does so at the start of a target.
        let is_begun = sent.item_at > 0;
        let shifted = places
            .clone()
            .find(|(_, place)| place.start < end && end < (place.start + place.len).min(len_max))
            .filter(|_| !is_begun)
            .map(|(target, place)| ItemStart { target, offset: end - place.start, at: end });
        let aligned = places.find(|(_, place)| place.start >= end).map(|(target, place)| ItemStart {
            target,
            offset: 0,
            at: place.start,
        });
        let left = self.shape.items.get(sent.item)? - sent.item_at;
        let holds_all = |start: &ItemStart| {
            let begun = Transmission { first_target: start.target, offset: start.offset, ..*sent };
            let pieces = self.pieces(&begun).take_while(|piece| piece.item == sent.item);
            pieces.map(|piece| piece.len).sum::<u32>() == left
        };
        [aligned, shifted].into_iter().flatten().find(holds_all).or(aligned)
    }
}

/// What was cut off so far.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    number: u32,
    payload_at: u32,
    item: usize,
    item_at: u32,
}
