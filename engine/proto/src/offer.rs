//! What a Call offered to the Responder: the memory it exposed, and the chunks it expects back.
//!
//! Remembered from the moment the Call's header is written, for two uses. The Reply repeats the Write list
//! and the Reply chunk, and is believed only as far as it matches (8166-X-11). And each handle must be
//! fenced before its memory may be touched again (8166-4.4.1-a).

use stag_wire::rpcrdma::{Segment, SingleChunk, WriteChunk, WriteList};
use stag_wire::rpcrdma2::Elements;

use crate::requester::ChunkLists;

/// How a Reply contradicts the Call that it answers (8166-X-11). The Call fails; its memory is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// The Write list does not have the chunks that were offered (8166-3.4.6-c).
    WriteListCount,
    /// A chunk does not have the segments that were offered (8166-3.4.6-c).
    SegmentCount,
    /// A segment names other memory than was offered (8166-3.4.6-c).
    SegmentChanged,
    /// A segment claims more octets than it has room for.
    SegmentLength,
    /// Octets after a segment that is not full: the chunk was not filled front to back (8166-3.4.6-b).
    SegmentGap,
    /// A Reply chunk that was not offered.
    UnofferedReplyChunk,
}

/// Handles that one Call can expose: one bit each.
pub(crate) const HANDLES_MAX: usize = 64;

/// The offers of all slots, allocated once.
#[derive(Debug)]
pub(crate) struct Offers {
    per_slot: usize,
    /// Write chunks' segments in list order, then the Reply chunk's.
    segments: Box<[Segment]>,
    /// Segments of each Write chunk.
    counts: Box<[u16]>,
    /// The distinct handles of all lists.
    handles: Box<[u32]>,
}

/// Where an offer's segments and handles are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// There are none, or they are in [`Offers`].
    #[default]
    Lists,
    /// The handle of the only segment is in [`Offer::single`]: a Read chunk's.
    SingleRead,
    /// The only segment is [`Offer::single`]: a Write chunk's.
    SingleWrite,
}

/// One slot's offer: what of [`Offers`] is in use. An offer of one segment is all here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offer {
    place: Place,
    single: Segment,
    write_chunks: u16,
    reply_segments: u16,
    reply_chunk: bool,
    handles: u8,
    /// Handles that the peer may use and whose fence has not begun.
    exposed: u64,
    /// Handles whose fence is under way.
    fencing: u64,
}

/// The chunk lists do not fit what [`Offers`] can remember.
#[derive(Debug)]
pub(crate) struct TooMany;

impl Offers {
    /// `per_slot`: segments, chunks and handles that one Call can have.
    pub(crate) fn new(slots: usize, per_slot: usize) -> Self {
        assert!(per_slot <= HANDLES_MAX, "a Call has at most {HANDLES_MAX} segments");
        let empty = Segment { handle: 0, length: 0, offset: 0 };
        Self {
            per_slot,
            segments: vec![empty; slots * per_slot].into_boxed_slice(),
            counts: vec![0; slots * per_slot].into_boxed_slice(),
            handles: vec![0; slots * per_slot].into_boxed_slice(),
        }
    }

    /// Remembers what the lists of slot `index`'s Call offer.
    pub(crate) fn record(&mut self, index: usize, lists: &ChunkLists<'_>) -> Result<Offer, TooMany> {
        let room = index * self.per_slot..(index + 1) * self.per_slot;
        let segments = &mut self.segments[room.clone()];
        let counts = &mut self.counts[room.clone()];
        let handles = &mut self.handles[room];
        let mut offer = Offer::default();
        for read in lists.reads {
            offer.add_handle(handles, read.segment.handle)?;
        }
        let mut used = 0;
        let mut keep = |offer: &mut Offer, chunk: &[Segment]| {
            for segment in chunk {
                *segments.get_mut(used).ok_or(TooMany)? = *segment;
                used += 1;
                offer.add_handle(handles, segment.handle)?;
            }
            Ok(chunk.len() as u16)
        };
        for chunk in lists.writes {
            let count = keep(&mut offer, chunk)?;
            *counts.get_mut(usize::from(offer.write_chunks)).ok_or(TooMany)? = count;
            offer.write_chunks += 1;
        }
        if let Some(chunk) = lists.reply {
            offer.reply_chunk = true;
            offer.reply_segments = keep(&mut offer, chunk)?;
        }
        offer.exposed = mask(offer.handles);
        Ok(offer)
    }

    /// The handle behind one bit.
    fn handle(&self, index: usize, offer: &Offer, bit: u32) -> u32 {
        match offer.place {
            Place::Lists => self.handles[index * self.per_slot + bit as usize],
            Place::SingleRead | Place::SingleWrite => offer.single.handle,
        }
    }

    /// The bit of `handle`, if it is one of the offer's.
    fn bit(&self, index: usize, offer: &Offer, handle: u32) -> Option<u64> {
        if offer.place != Place::Lists {
            return (offer.single.handle == handle).then_some(1);
        }
        let start = index * self.per_slot;
        let handles = &self.handles[start..start + usize::from(offer.handles)];
        handles.iter().position(|&known| known == handle).map(|at| 1 << at)
    }

    /// The next handle to fence. It counts as being fenced from now on.
    pub(crate) fn poll_fence(&self, index: usize, offer: &mut Offer) -> Option<u32> {
        if offer.exposed == 0 {
            return None;
        }
        let at = offer.exposed.trailing_zeros();
        offer.exposed &= !(1 << at);
        offer.fencing |= 1 << at;
        Some(self.handle(index, offer, at))
    }

    /// The fence of `handle` is done. `false`: none was under way.
    pub(crate) fn handle_fenced(&self, index: usize, offer: &mut Offer, handle: u32) -> bool {
        let bit = self.bit(index, offer, handle).unwrap_or(0) & offer.fencing;
        offer.fencing &= !bit;
        bit != 0
    }

    /// The peer's Send invalidated `handle`. `false`: it was not exposed by this Call.
    ///
    /// It may be dead already: the peer cannot know that the Call was cancelled and fenced.
    pub(crate) fn handle_invalidated(&self, index: usize, offer: &mut Offer, handle: u32) -> bool {
        let bit = self.bit(index, offer, handle).unwrap_or(0);
        offer.exposed &= !bit;
        offer.fencing &= !bit;
        bit != 0
    }

    /// Compares the Write list and the Reply chunk of a Reply with the offer (8166-X-11), and returns the
    /// octets in the Reply chunk.
    ///
    /// A chunk may come back *unused* or *empty*: both mean that nothing is in it (8267-X-2). A Reply chunk
    /// that is missing altogether means the same; nothing in it is looked at then.
    pub(crate) fn verify(
        &self,
        index: usize,
        offer: &Offer,
        mut chunks: WriteList<'_>,
        reply_chunk: Option<WriteChunk<'_>>,
    ) -> Result<u32, Violation> {
        let start = index * self.per_slot;
        let (mut offered, counts) = match offer.place {
            Place::Lists => {
                (&self.segments[start..], &self.counts[start..start + usize::from(offer.write_chunks)])
            }
            Place::SingleRead => (&[][..], &[][..]),
            Place::SingleWrite => (core::slice::from_ref(&offer.single), &[1][..]),
        };
        for &count in counts {
            let chunk = chunks.next().ok_or(Violation::WriteListCount)?;
            let (expected, rest) = offered.split_at(usize::from(count));
            verify_chunk(expected, chunk.segments())?;
            offered = rest;
        }
        if chunks.next().is_some() {
            return Err(Violation::WriteListCount);
        }
        match (offer.reply_chunk, reply_chunk) {
            (_, None) => Ok(0),
            (false, Some(_)) => Err(Violation::UnofferedReplyChunk),
            (true, Some(chunk)) => {
                verify_chunk(&offered[..usize::from(offer.reply_segments)], chunk.segments())
            }
        }
    }
}

impl Offers {
    /// Compares segments that were written to with those of the Write chunk number `chunk`, as [`Offers::verify`] does, and
    /// returns the octets in them. The offer was made by [`Offers::record`].
    pub(crate) fn verify_item(
        &self,
        index: usize,
        offer: &Offer,
        chunk: usize,
        written: &Elements<'_, Segment>,
    ) -> Result<u32, Violation> {
        let start = index * self.per_slot;
        let counts = &self.counts[start..start + usize::from(offer.write_chunks)];
        let count = counts.get(chunk).ok_or(Violation::WriteListCount)?;
        let before: usize = counts[..chunk].iter().map(|count| usize::from(*count)).sum();
        let offered = &self.segments[start + before..][..usize::from(*count)];
        verify_chunk(offered, written.iter())
    }
}

impl Offer {
    /// Of one chunk of one segment.
    #[inline]
    pub(crate) fn single(chunk: &SingleChunk) -> Offer {
        let (place, write_chunks) = match chunk {
            SingleChunk::Read(_) => (Place::SingleRead, 0),
            SingleChunk::Write(_) => (Place::SingleWrite, 1),
        };
        let single = chunk.segment();
        Offer { place, single, write_chunks, handles: 1, exposed: 1, ..Offer::default() }
    }

    /// The peer's Send invalidated the only segment's `handle`. `false`: it is another, or there are several.
    #[inline]
    pub(crate) fn take_invalidated(&mut self, handle: u32) -> bool {
        let is_single = self.place != Place::Lists && self.single.handle == handle;
        if is_single {
            (self.exposed, self.fencing) = (0, 0);
        }
        is_single
    }

    /// Whether this is the only Write chunk of a Call that has one of one segment.
    #[inline]
    pub(crate) fn expects_single_write(&self) -> bool {
        self.place == Place::SingleWrite
    }

    /// Whether `returned` is the only Write chunk as it was offered, with as many octets at most (8166-X-11).
    #[inline]
    pub(crate) fn matches_single(&self, returned: &Segment) -> bool {
        let Segment { handle, length, offset } = *returned;
        let offered = &self.single;
        handle == offered.handle && offset == offered.offset && length <= offered.length
    }

    /// Whether some handle may still be usable by the peer.
    #[inline]
    pub(crate) fn is_exposed(&self) -> bool {
        self.exposed | self.fencing != 0
    }

    /// Whether a Reply to this offer has chunks to compare.
    #[inline]
    pub(crate) fn expects_chunks(&self) -> bool {
        self.write_chunks > 0 || self.reply_chunk
    }

    fn add_handle(&mut self, handles: &mut [u32], handle: u32) -> Result<(), TooMany> {
        let used = usize::from(self.handles);
        if !handles[..used].contains(&handle) {
            *handles.get_mut(used).ok_or(TooMany)? = handle;
            self.handles += 1;
        }
        Ok(())
    }
}

/// Bits for the first `count` handles.
fn mask(count: u8) -> u64 {
    if count == 0 { 0 } else { u64::MAX >> (64 - u32::from(count)) }
}

/// Compares one returned chunk with the one offered, and returns the octets in it.
fn verify_chunk(
    offered: &[Segment],
    returned: impl ExactSizeIterator<Item = Segment>,
) -> Result<u32, Violation> {
    if returned.len() == 0 {
        return Ok(0);
    }
    if returned.len() != offered.len() {
        return Err(Violation::SegmentCount);
    }
    let mut total: u64 = 0;
    let mut ended = false;
    for (offered, returned) in offered.iter().zip(returned) {
        if returned.handle != offered.handle || returned.offset != offered.offset {
            return Err(Violation::SegmentChanged);
        }
        if returned.length > offered.length {
            return Err(Violation::SegmentLength);
        }
        if ended && returned.length > 0 {
            return Err(Violation::SegmentGap);
        }
        ended |= returned.length < offered.length;
        total += u64::from(returned.length);
    }
    // What was offered in one chunk is below 4 GiB, or no XDR item could fill it; more is too long.
    u32::try_from(total).map_err(|_| Violation::SegmentLength)
}
