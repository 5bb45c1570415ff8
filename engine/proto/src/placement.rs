//! Where the items of a received message lie: in which of its Receives, at which octets (rtrext, section 4).
//!
//! A [`PlacementMap`] follows the transmissions of one direction as they come, and then checks the first one's claims about
//! items in targets. An item that passes lies in octets that were received, behind headers and Payload stream, and items
//! never overlap.

use stag_wire::rpcrdma2::{Elements, GroupFault, ItemPlace, PlacedItem};
use stag_wire::xdr::padded;

use crate::layout::{ReceiveLayout, TARGETS_MAX};

/// A transmission that came.
#[derive(Clone, Copy, Debug, Default)]
struct Arrived {
    /// Where the Payload stream ends in it.
    payload_end: u32,
    /// Octets of the Send.
    len: u32,
}

/// Up to where a target is in use.
#[derive(Clone, Copy, Debug, Default)]
struct Filled {
    /// The check that filled it: older ones do not count.
    check: u64,
    /// Octets of the target.
    end: u32,
}

/// Why a message's items cannot be where it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// It is answered with an XMTERR about the first transmission.
    Fault(GroupFault),
    /// An item at a displacement behind the end of the virtual stream: answered with BAD_HEADER (RTR-X-21).
    Displacement(u32),
}

/// A piece of an item, as it lies in the Receives of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemSpan {
    /// Which Receive, from 0.
    pub transmission: u32,
    /// Octets of that Receive before the piece.
    pub at: u32,
    /// Octets.
    pub len: u32,
}

/// The transmissions of one direction's present message. All that it ever allocates is allocated when it is made.
#[derive(Debug)]
pub struct PlacementMap {
    layout: ReceiveLayout,
    arrived: Box<[Arrived]>,
    count: usize,
    payload_len: u32,
    filled: Box<[Filled]>,
    check: u64,
}

impl PlacementMap {
    /// For Receives of `layout`, and messages of at most `transmissions_max` transmissions.
    ///
    /// # Panics
    ///
    /// When a message could have more than [`TARGETS_MAX`] targets, or no transmission.
    #[must_use]
    pub fn new(layout: ReceiveLayout, transmissions_max: u32) -> Self {
        let targets = layout.targets().saturating_mul(transmissions_max);
        assert!(transmissions_max > 0, "a message has at least one transmission");
        assert!(targets <= TARGETS_MAX, "targets of a message: {targets}, the limit is {TARGETS_MAX}");
        Self {
            layout,
            arrived: vec![Arrived::default(); transmissions_max as usize].into_boxed_slice(),
            count: 0,
            payload_len: 0,
            filled: vec![Filled::default(); targets as usize].into_boxed_slice(),
            check: 0,
        }
    }

    /// Octets of heap of one for messages of one transmission, into Receives with `targets` targets.
    pub(crate) fn footprint(targets: u32) -> usize {
        size_of::<Arrived>() + targets as usize * size_of::<Filled>()
    }

    /// Returns how the Receives are divided.
    #[must_use]
    pub fn layout(&self) -> &ReceiveLayout {
        &self.layout
    }

    /// Returns the transmissions that a message may have.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.arrived.len() as u32
    }

    /// A message begins: what came of the one before is forgotten.
    pub fn begin(&mut self) {
        (self.count, self.payload_len) = (0, 0);
    }

    /// The next transmission of the message is here: a Send of `len` octets, whose Payload stream starts at `header_len` and has
    /// `payload_len` octets.
    ///
    /// # Panics
    ///
    /// When there are more than was said at the start: [`GroupReceiver`](crate::group::GroupReceiver) refuses them.
    pub fn record(&mut self, header_len: u32, payload_len: u32, len: u32) {
        self.arrived[self.count] = Arrived { payload_end: header_len.saturating_add(payload_len), len };
        self.count += 1;
        self.payload_len = self.payload_len.saturating_add(payload_len);
    }

    /// Checks the items of the message, when all its transmissions are here.
    ///
    /// The order is that of section 7: the number of a target, the offset in it, the octets that came, and whether they are in
    /// use. Items may share a target, front to back.
    ///
    /// # Errors
    ///
    /// The error that its sender gets.
    pub fn check(&mut self, items: &Elements<'_, PlacedItem<'_>>) -> Result<(), PlacementError> {
        self.check += 1;
        // Octets of items so far: what the virtual stream has and the Payload stream has not.
        let mut placed = 0;
        for item in items.iter() {
            if let ItemPlace::Buffers { offset, numbers } = item.place {
                self.check_item(item.len, offset, &numbers).map_err(PlacementError::Fault)?;
            }
            if matches!(item.place, ItemPlace::Buffers { .. } | ItemPlace::Explicit(_)) {
                // `wire` checked that displacements rise and do not overlap.
                let at = u64::from(item.displacement).saturating_sub(placed);
                if at > u64::from(self.payload_len) {
                    return Err(PlacementError::Displacement(item.displacement));
                }
                placed += padded(item.len);
            }
        }
        Ok(())
    }

    fn check_item(&mut self, len: u32, offset: u32, numbers: &Elements<'_, u32>) -> Result<(), GroupFault> {
        let count = self.layout.targets() * self.count as u32;
        let bad_number = |value| GroupFault::Target { value, min: 0, max: count.saturating_sub(1) };
        let (mut left, mut skipped) = (len, offset);
        for number in numbers.iter() {
            let target = self.layout.target(number).filter(|_| number < count);
            let target = target.ok_or(bad_number(number))?;
            if skipped > target.len {
                return Err(GroupFault::Offset { value: offset, min: 0, max: target.len });
            }
            let arrived = self.arrived[target.transmission as usize];
            let taken = left.min(target.len - skipped);
            let start = target.start + skipped;
            let filled = &mut self.filled[number as usize];
            let used = if filled.check == self.check { filled.end } else { 0 };
            let is_free = skipped >= used && (start >= arrived.payload_end || taken == 0);
            if !is_free || start + taken > arrived.len && taken > 0 {
                // RTR-X-20
                return Err(bad_number(number));
            }
            *filled = Filled { check: self.check, end: skipped + taken };
            (left, skipped) = (left - taken, 0);
        }
        // The list ended before the item: the target that is missing (RTR-X-20).
        if left > 0 { Err(bad_number(count)) } else { Ok(()) }
    }

    /// Iterates over the pieces of a checked item, front to back.
    pub fn spans<'a>(&self, item: &PlacedItem<'a>) -> impl Iterator<Item = ItemSpan> + use<'_, 'a> {
        let (numbers, mut skipped) = match item.place {
            ItemPlace::Buffers { offset, numbers } => (numbers, offset),
            _ => (Elements::EMPTY, 0),
        };
        let mut left = item.len;
        let spans = numbers.iter().map_while(move |number| {
            let target = self.layout.target(number)?;
            let len = left.min(target.len.checked_sub(skipped)?);
            let span = ItemSpan { transmission: target.transmission, at: target.start + skipped, len };
            (left, skipped) = (left - len, 0);
            Some(span)
        });
        spans.filter(|span| span.len > 0)
    }
}
