//! The records of most carried Calls: a Call without chunks or with one of one segment, and a Reply that is an encoded payload with
//! one result at most.
//!
//! The entry copies the Payload stream from where it arrived into the lane, and leaves the Receive posted; later it copies the
//! payload from the lane to where the Reply leaves. So it takes no message buffer, no draft and no completion. A record says first
//! which kind it is, and is laid out as any other (`record.rs`): an end that cannot take it as one of these takes it as any other.

use stag_fabric::Peer;
use stag_memory::{Loan, Shared};
use stag_runtime::{LaneReader, LaneRecord, LaneWriter, ReactorId, VacantRecord};

use super::record::{
    CALL_HEAD_LEN, Decoder, ENCODED, Encoder, ITEM_LEN, PEER_LEN_MAX, PLAIN_CALL, READ_CALL, READ_ITEM_LEN,
    REPLY_HEAD_LEN, SERVICE, SHORT_HEAD_LEN, SHORT_REPLY, SINGLE_REPLY, STORED, WRITE_CALL, decode_peer,
    encode_peer, kind,
};
use super::{Attachment, Carrier, Neighbour};
use crate::server::draft::Draft;
use crate::server::serving::carrying::LightReply;
use crate::service::Token;

/// Octets of the Payload stream of a Call that goes the short way, at most: those that a record has room for with the longest peer
/// and chunk.
const LIGHT_STREAM_MAX: usize = LaneRecord::LEN_MAX - CALL_HEAD_LEN - PEER_LEN_MAX - READ_ITEM_LEN;

/// The chunk of a Call, as the lane carries it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CarriedChunk {
    /// A Write chunk of this number of octets.
    Write(u32),
    /// Data that belongs there in the Payload stream, of `len` octets. Its memory goes beside the record.
    Read { position: u32, len: u32 },
}

/// A Call with one chunk or none, as a view of its record.
pub(super) struct LightCall<'a> {
    pub(super) token: Token,
    pub(super) peer: Option<Peer>,
    pub(super) inline_len_max: u32,
    pub(super) chunk: Option<CarriedChunk>,
    pub(super) stream: &'a [u8],
}

impl LightCall<'_> {
    /// Of a [`PLAIN_CALL`].
    #[inline(always)]
    pub(super) fn plain(record: &LaneRecord) -> LightCall<'_> {
        LightCall::of(record, |_| None)
    }

    /// Of a [`WRITE_CALL`] or a [`READ_CALL`].
    #[inline(always)]
    pub(super) fn single(record: &LaneRecord) -> LightCall<'_> {
        LightCall::of(record, |rest| {
            Some(if kind(record) == WRITE_CALL {
                // It is that of a segment.
                CarriedChunk::Write(rest.u64() as u32)
            } else {
                let chunk = CarriedChunk::Read { position: rest.u32(), len: rest.u32() };
                let pieces = rest.u32();
                debug_assert_eq!(pieces, 1);
                chunk
            })
        })
    }

    #[inline(always)]
    fn of(
        record: &LaneRecord,
        chunk: impl FnOnce(&mut Decoder<'_>) -> Option<CarriedChunk>,
    ) -> LightCall<'_> {
        let octets = record.octets();
        let mut head = Decoder { octets: record.head::<CALL_HEAD_LEN>(), at: 0 };
        let [_, flags, ..] = head.take::<8>();
        let (token, inline_len_max) = (head.token(), head.u32());
        let mut rest = Decoder { octets, at: CALL_HEAD_LEN };
        let peer = decode_peer(&mut rest, flags);
        let chunk = chunk(&mut rest);
        LightCall { token, peer, inline_len_max, chunk, stream: &octets[rest.at..] }
    }
}

/// Of a [`SHORT_REPLY`].
#[inline(always)]
pub(super) fn short_reply(record: &LaneRecord) -> LightReply<'_> {
    let octets = record.octets();
    let mut head = Decoder { octets: record.head::<SHORT_HEAD_LEN>(), at: 0 };
    let [_, _, flags, ..] = head.take::<8>();
    LightReply { token: head.token(), is_service: flags & SERVICE != 0, payload: &octets[SHORT_HEAD_LEN..] }
}

/// Of a [`SINGLE_REPLY`].
#[inline(always)]
pub(super) fn single_reply(record: &LaneRecord) -> LightReply<'_> {
    let octets = record.octets();
    let mut head = Decoder { octets: record.head::<REPLY_HEAD_LEN>(), at: 0 };
    let [_, _, flags, _] = head.take();
    let len = head.u32() as usize;
    LightReply {
        token: head.token(),
        is_service: flags & SERVICE != 0,
        payload: &octets[REPLY_HEAD_LEN..][..len],
    }
}

impl Carrier {
    /// Whether another Call with a Payload stream of `stream_len` octets may go the short way now: fewer than the most are under
    /// way.
    #[inline(always)]
    pub(crate) fn may_send_light(&self, to: ReactorId, stream_len: usize) -> bool {
        let is_free = |found: &Neighbour| found.under_way < self.calls_max && found.backlog.is_empty();
        stream_len <= LIGHT_STREAM_MAX && self.neighbours.get(to.index()).is_some_and(is_free)
    }

    /// Carries a Call with one chunk or none, if [`Carrier::may_send_light`], to where it is executed, with its data beside it.
    #[inline(always)]
    pub(crate) fn send_light(
        &mut self,
        to: ReactorId,
        token: &Token,
        (peer, inline_len_max): (Option<&Peer>, u32),
        chunk: Option<CarriedChunk>,
        data: Option<Loan>,
        stream: &[u8],
    ) {
        if let Some(data) = data {
            self.attach(to, data);
        }
        self.neighbour(to).under_way += 1;
        let mut record = self.vacant(to);
        let mut encoder = Encoder { octets: record.buffer(), at: 8 };
        encoder.token(token);
        encoder.u32(inline_len_max);
        encoder.u32(0);
        debug_assert_eq!(encoder.at, CALL_HEAD_LEN);
        let flags = encode_peer(&mut encoder, peer);
        let (kind, writes, reads) = match chunk {
            None => (PLAIN_CALL, 0, 0),
            Some(CarriedChunk::Write(len)) => {
                encoder.u64(len.into());
                (WRITE_CALL, 1, 0)
            }
            Some(CarriedChunk::Read { position, len }) => {
                encoder.u32(position);
                encoder.u32(len);
                // In one piece.
                encoder.u32(1);
                (READ_CALL, 0, 1)
            }
        };
        let end = encoder.at + stream.len();
        encoder.octets[encoder.at..end].copy_from_slice(stream);
        encoder.at = 0;
        encoder.put([kind, flags, writes, reads]);
        encoder.u32(stream.len() as u32);
        record.commit(end);
    }

    /// The place of the next record to another reactor.
    #[inline(always)]
    pub(super) fn vacant(&mut self, to: ReactorId) -> VacantRecord<'_> {
        match self.records.to(to).and_then(LaneWriter::vacant) {
            Some(place) => place,
            None => no_room(to),
        }
    }

    /// The next piece of memory that came beside a record.
    #[inline(always)]
    pub(super) fn take_piece(&mut self, from: ReactorId) -> Shared {
        match self.attachments.from(from).and_then(LaneReader::pop) {
            Some(Attachment::Piece(loan)) => self.borrowed.borrow(loan),
            _ => unreachable!("what belongs to a record is published before it"),
        }
    }

    /// Puts a piece of memory beside the next record.
    #[inline]
    pub(super) fn attach(&mut self, to: ReactorId, piece: Loan) {
        let lane = self.attachments.to(to);
        let is_attached = lane.is_some_and(|lane| lane.push(Attachment::Piece(piece)).is_ok());
        assert!(is_attached, "a lane has no room for what belongs to its records");
    }
}

/// Octets of payload of a Reply of these kinds at most.
pub(super) const PAYLOAD_MAX: usize = LaneRecord::LEN_MAX - REPLY_HEAD_LEN - ITEM_LEN;

/// Sends a Reply that is this payload, of [`PAYLOAD_MAX`] octets at most.
#[inline(always)]
pub(super) fn send_short(mut record: VacantRecord<'_>, token: &Token, is_service: bool, payload: &[u8]) {
    let len = payload.len();
    record.buffer()[SHORT_HEAD_LEN..][..len].copy_from_slice(payload);
    let mut encoder = Encoder { octets: record.buffer(), at: 0 };
    encoder.put([SHORT_REPLY, 0, service_flag(is_service), 0]);
    encoder.u32(len as u32);
    encoder.token(token);
    record.commit(SHORT_HEAD_LEN + len);
}

/// Sends the Reply of a draft with this payload, of [`PAYLOAD_MAX`] octets at most. The only result is a piece of `piece_len`
/// octets, which goes beside it.
#[inline(always)]
pub(super) fn send_single(
    mut record: VacantRecord<'_>,
    token: &Token,
    draft: &Draft,
    payload: &[u8],
    piece_len: usize,
) {
    record.buffer()[REPLY_HEAD_LEN..][..payload.len()].copy_from_slice(payload);
    let mut encoder = Encoder { octets: record.buffer(), at: 0 };
    encoder.put([SINGLE_REPLY, ENCODED, STORED | service_flag(draft.is_service), 1]);
    encoder.u32(draft.payload_len as u32);
    encoder.token(token);
    encoder.u32(draft.splice);
    encoder.u32(draft.left_out.0);
    encoder.u64(draft.left_out.1);
    // One piece, and none of a payload that is not inline.
    encoder.u16(1);
    encoder.u16(0);
    encoder.u32(0);
    debug_assert_eq!(encoder.at, REPLY_HEAD_LEN);
    encoder.at += draft.payload_len;
    encoder.u32(piece_len as u32);
    encoder.u16(1);
    encoder.u16(1);
    record.commit(REPLY_HEAD_LEN + draft.payload_len + ITEM_LEN);
}

#[inline(always)]
fn service_flag(is_service: bool) -> u8 {
    if is_service { SERVICE } else { 0 }
}

#[cold]
fn no_room(to: ReactorId) -> ! {
    unreachable!("the lane to reactor {to} has no room for what may be under way")
}
