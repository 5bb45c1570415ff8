//! The short way of a carried Call with one chunk of one segment: a READ whose result goes to a Write chunk, a WRITE whose data is
//! pulled.
//!
//! As `plain.rs`, with one piece of memory beside a record: the data beside the Call, or the result beside the Reply. The entry
//! pulls the data while the message is shown, and keeps of the message nothing but its chunk, which the
//! [`Responder`](stag_proto::responder::Responder) knows. The records are those of `record.rs`: each end takes the general way with
//! any record that it cannot take this way.

use stag_fabric::{Peer, Provider};
use stag_memory::{Loan, Shared};
use stag_runtime::{LaneRecord, ReactorId};
use stag_wire::rpcrdma::{HEADER_LEN_MIN, SINGLE_LEN};
use stag_wire::xdr::{Reader, Reduced};

use super::exchange::{Answering, as_buf};
use super::plain::go_on;
use super::record::{
    ATTACHED, CALL, CALL_HEAD_LEN, CarriedCall, CarriedRoom, Decoder, ENCODED, Encoder, ITEM_LEN, LOCAL_V4,
    LOCAL_V6, PEER_MASK, REPLY, REPLY_HEAD_LEN, SERVICE, SHORT, SHORT_HEAD_LEN, STORED, STREAM, decode_peer,
    encode_peer,
};
use super::{Attachment, Carrier, name_elsewhere};
use crate::engine::{Engine, find};
use crate::server::draft::Verdict;
use crate::server::duplicates::Known;
use crate::server::serving::Delivery;
use crate::service::call::{Placed, PlacedPieces};
use crate::service::dispatch::{Origin, Route, Terms, look_first, route};
use crate::service::reply::{Reply, Room, Space};
use crate::service::{Repeat, Services, Token};
use crate::state::EngineState;

/// The chunk of a Call, as the lane carries it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CarriedChunk {
    /// A Write chunk of so many octets.
    Write(u32),
    /// Data that belongs there in the Payload stream, of so many octets. Its memory goes beside the record.
    Read { position: u32, len: u32 },
}

/// A Call with one chunk, as a view of its record.
struct SingleCall<'a> {
    token: Token,
    peer: Option<Peer>,
    inline_len_max: u32,
    chunk: CarriedChunk,
    stream: &'a [u8],
}

impl SingleCall<'_> {
    /// `None`: it is any other.
    #[inline(always)]
    fn of(record: &LaneRecord) -> Option<SingleCall<'_>> {
        const OTHER: u8 = STREAM | ATTACHED | LOCAL_V4 | LOCAL_V6;
        let octets = record.octets();
        let mut head = Decoder { octets: octets.first_chunk::<CALL_HEAD_LEN>()?, at: 0 };
        let [kind, flags, writes, reads] = head.take();
        let len = head.u32() as usize;
        let token = head.token();
        let (inline_len_max, reply_chunk_len) = (head.u32(), head.u32());
        if kind != CALL || flags & OTHER != 0 || writes + reads != 1 || reply_chunk_len != 0 {
            return None;
        }
        let mut rest = Decoder { octets, at: CALL_HEAD_LEN };
        let peer = if flags & PEER_MASK == 0 { None } else { decode_peer(&mut rest, flags) };
        let chunk = if writes == 1 {
            CarriedChunk::Write(u32::try_from(rest.u64()).ok()?)
        } else {
            let (position, len, pieces) = (rest.u32(), rest.u32(), rest.u32());
            if pieces != 1 {
                return None;
            }
            CarriedChunk::Read { position, len }
        };
        let stream = octets.get(rest.at..)?;
        debug_assert_eq!(stream.len(), len);
        Some(SingleCall { token, peer, inline_len_max, chunk, stream })
    }
}

/// An encoded payload and one result in one piece of a store, as a view of its record.
pub(super) struct SingleReply<'a> {
    token: Token,
    is_service: bool,
    payload: &'a [u8],
}

impl SingleReply<'_> {
    /// `None`: there is less to it, or more.
    #[inline(always)]
    pub(super) fn of(record: &LaneRecord) -> Option<SingleReply<'_>> {
        let octets = record.octets();
        let mut head = Decoder { octets: octets.first_chunk::<REPLY_HEAD_LEN>()?, at: 0 };
        let [kind, ending, flags, items] = head.take();
        let len = head.u32() as usize;
        let token = head.token();
        if kind != REPLY || ending != ENCODED || items != 1 || flags & (STORED | SHORT | ATTACHED) != STORED {
            return None;
        }
        let mut counts = Decoder { at: REPLY_HEAD_LEN - 8, ..head };
        let (pieces, long) = (counts.u16(), counts.u16());
        let payload = octets.get(REPLY_HEAD_LEN..REPLY_HEAD_LEN + len)?;
        let mut item = Decoder { octets, at: REPLY_HEAD_LEN + len };
        let (_, _, is_reduced) = (item.u32(), item.u16(), item.u16());
        ((pieces, long, is_reduced) == (1, 0, 1)).then_some(SingleReply {
            token,
            is_service: flags & SERVICE != 0,
            payload,
        })
    }
}

impl Carrier {
    /// Writes the record of a Call with one chunk, and sends nothing yet: [`Carrier::send_single`] does. `false`: as many as may be
    /// are under way, or its Payload stream is too long for a record.
    #[inline]
    pub(crate) fn prepare_single(
        &mut self,
        to: ReactorId,
        token: &Token,
        peer: Option<&Peer>,
        inline_len_max: u32,
        chunk: CarriedChunk,
        stream: &[u8],
    ) -> bool {
        let Some(record) = &mut self.outgoing else { unreachable!("one record is sent at a time") };
        let Some(neighbour) = self.neighbours.get(to.index()) else { return false };
        if neighbour.under_way >= self.calls_max || !neighbour.backlog.is_empty() {
            return false;
        }
        let mut encoder = Encoder { octets: record.buffer(), at: 8 };
        encoder.token(token);
        encoder.u32(inline_len_max);
        encoder.u32(0);
        debug_assert_eq!(encoder.at, CALL_HEAD_LEN);
        let flags = encode_peer(&mut encoder, peer);
        let (writes, reads) = match chunk {
            CarriedChunk::Write(len) => {
                encoder.u64(len.into());
                (1, 0)
            }
            CarriedChunk::Read { position, len } => {
                encoder.u32(position);
                encoder.u32(len);
                // In one piece.
                encoder.u32(1);
                (0, 1)
            }
        };
        let end = encoder.at + stream.len();
        let Some(room) = encoder.octets.get_mut(encoder.at..end) else { return false };
        room.copy_from_slice(stream);
        encoder.at = 0;
        encoder.put([CALL, flags, writes, reads]);
        encoder.u32(stream.len() as u32);
        record.set_len(end);
        true
    }

    /// Sends the Call of [`Carrier::prepare_single`], with its data beside it.
    #[inline]
    pub(crate) fn send_single(&mut self, to: ReactorId, data: Option<Loan>) {
        if let Some(neighbour) = self.neighbours.get_mut(to.index()) {
            neighbour.under_way += 1;
        }
        if let Some(data) = data {
            self.attach(to, data);
        }
        self.push(to);
    }

    /// Puts a piece of memory beside the next record.
    #[inline]
    fn attach(&mut self, to: ReactorId, piece: Loan) {
        let is_attached =
            self.attachments.to(to).is_some_and(|lane| lane.push(Attachment::Piece(piece)).is_ok());
        assert!(is_attached, "a lane has no room for what belongs to its records");
    }
}

impl<P: Provider, S: Services> Engine<P, S> {
    /// Executes another reactor's Call with one chunk. `false`: it is another, and nothing happened.
    #[inline]
    pub(super) fn execute_single(&mut self, from: ReactorId, record: &LaneRecord) -> bool {
        let Some(call) = SingleCall::of(record) else { return false };
        let reduced = match call.chunk {
            CarriedChunk::Read { position, len } => Some(Reduced::read_chunk(0, position, len)),
            CarriedChunk::Write(_) => None,
        };
        let reader = Reader::with_reduced(call.stream, reduced.as_slice());
        let Engine { core, services, .. } = self;
        let Route::Run(run) = route(services, reader) else { return false };
        let Some(carrier) = core.state.carrier.as_deref_mut() else { return false };
        // Where it is filled, as it is long to move.
        let mut data = Placed { pieces: PlacedPieces::new(), len: 0 };
        if let CarriedChunk::Read { len, .. } = call.chunk {
            carrier.unload(from, false, 1);
            data.len = len;
            data.pieces.extend(carrier.pieces.pop().and_then(as_buf));
        }
        let placed = if reduced.is_some() { std::slice::from_mut(&mut data) } else { &mut [] };
        let connection = name_elsewhere(from, call.token.connection);
        let peer = call.peer.as_ref();
        let mut terms = Terms::of(&run);
        if run.procedure.repeat != Repeat::Harmless {
            match look_first(&mut core.state, &run, call.stream, placed, connection, peer) {
                Known::Nothing => {}
                Known::New(entry) => terms.kept = Some(entry),
                Known::Running | Known::RunningElsewhere(_) | Known::Answered(_) => {
                    let pieces = data.pieces.drain(..).map(|buf| buf.share());
                    if let Some(carrier) = &mut core.state.carrier {
                        carrier.pieces.extend(pieces);
                    }
                    self.execute(from, &CarriedCall::decode(record), record, None);
                    return true;
                }
            }
        }
        let EngineState {
            pools,
            scratch,
            statistics,
            deferrals,
            carrier,
            transit,
            duplicates,
            now,
            draft_in_place,
            ..
        } = &mut core.state;
        let Some(carrier) = carrier.as_deref_mut() else { return false };
        let slot = carrier.later_slot();
        let Carrier { outgoing: Some(out), neighbours, .. } = carrier else {
            unreachable!("one record is sent at a time")
        };
        statistics.calls_executed_for_others += 1;
        let origin = Origin { connection, slot, peer, local: None, now: *now };
        // A Reply with a result has a longer head, and an item behind its payload.
        let (head_len, header_len, tail_len) = match call.chunk {
            CarriedChunk::Write(_) => (REPLY_HEAD_LEN, SINGLE_LEN, ITEM_LEN),
            CarriedChunk::Read { .. } => (SHORT_HEAD_LEN, HEADER_LEN_MIN, 0),
        };
        let mut room = CarriedRoom { inline_len_max: call.inline_len_max, ..CarriedRoom::default() };
        if let CarriedChunk::Write(len) = call.chunk
            && run.procedure.eligible_results > 0
        {
            room.write_chunks.push(len.into());
        }
        let octets = out.buffer();
        let end = octets.len() - tail_len;
        let mut reply = Reply {
            draft: draft_in_place,
            xid: run.header.xid,
            room: Room::Carried(&room),
            inline_len_max: call.inline_len_max as usize + header_len,
            space: Some(Space {
                octets: &mut octets[head_len..end],
                header_len,
                messages: Some(&pools.messages),
            }),
            payload: &pools.payload,
            transit: Some((transit, &neighbours[from.index()].share)),
            scratch,
            eligible: run.procedure.eligible_results,
            copied_bytes: &mut statistics.copied_bytes,
            deferrals,
        };
        let is_done = run.call(services, &origin, placed, &mut reply);
        let is_in_record = reply.space.is_some();
        let draft = &mut **draft_in_place;
        let has_its_form = match (call.chunk, &draft.items[..], &draft.pieces[..]) {
            (CarriedChunk::Write(_), [item], [piece]) => item.reduced && piece.is_stored(),
            (CarriedChunk::Read { .. }, [], []) => true,
            _ => false,
        };
        let is_encoded = draft.verdict == Verdict::Encoded && draft.defect().is_none();
        if !is_done || !is_in_record || !has_its_form || !is_encoded {
            let answering = Answering { from, token: call.token, room: &room };
            let token = Token { connection, slot, xid: run.header.xid };
            go_on(core, &answering, token, terms, is_done, head_len);
            return true;
        }
        let len = draft.payload_len;
        if let Some(entry) = terms.kept {
            let payload = draft.items.is_empty().then(|| &out.buffer()[head_len..][..len]);
            duplicates.keep_octets(entry, payload, statistics);
        }
        let service = if draft.is_service { SERVICE } else { 0 };
        let piece = draft.pieces.pop();
        let mut encoder = Encoder { octets: out.buffer(), at: 0 };
        match &piece {
            None => encoder.put([REPLY, ENCODED, SHORT | service, 0]),
            Some(_) => encoder.put([REPLY, ENCODED, STORED | service, 1]),
        }
        encoder.u32(len as u32);
        encoder.token(&call.token);
        if let Some(piece) = &piece {
            encoder.u32(draft.splice);
            encoder.u32(draft.left_out.0);
            encoder.u64(draft.left_out.1);
            // One piece, and none of a payload that is not inline.
            encoder.u16(1);
            encoder.u16(0);
            encoder.u32(0);
            debug_assert_eq!(encoder.at, REPLY_HEAD_LEN);
            encoder.at += len;
            encoder.u32(piece.len() as u32);
            encoder.u16(1);
            encoder.u16(1);
        }
        draft.forget_results();
        out.set_len(head_len + len + if piece.is_some() { ITEM_LEN } else { 0 });
        if let Some(piece) = piece {
            statistics.pieces_lent += 1;
            carrier.attach(from, piece.lend());
        }
        carrier.push(from);
        true
    }

    /// Sends a Reply with one result in one piece, which lies beside the record. `false`: it takes the general way, and the piece
    /// is in the carrier's `pieces`.
    #[inline]
    pub(super) fn deliver_single(&mut self, from: ReactorId, reply: &SingleReply<'_>) -> bool {
        let Some(carrier) = self.core.state.carrier.as_deref_mut() else { return false };
        carrier.unload(from, false, 1);
        if !carrier.broadcasts.is_empty() {
            return false;
        }
        let piece = carrier.pieces.pop();
        self.answer_single(&reply.token, reply.is_service, reply.payload, piece)
    }

    /// Answers a Call with one chunk that was carried from where it arrived: with this payload, and with this result. `false`: it takes
    /// the general way, and the result is in the carrier's `pieces`.
    #[inline]
    pub(super) fn answer_single(
        &mut self,
        token: &Token,
        is_service: bool,
        payload: &[u8],
        piece: Option<Shared>,
    ) -> bool {
        let Engine { core, connections, .. } = self;
        let mut left = piece;
        if let Some(found) = find(connections, token.connection)
            && let Some(serving) = found.serving.as_mut()
        {
            match serving.answer_single(core, token, is_service, payload, left) {
                Delivery::Sent => {
                    core.state.ready.touch(found);
                    return true;
                }
                Delivery::Ends(reason) => {
                    found.close(core, reason);
                    return true;
                }
                Delivery::Left(piece) => left = piece,
            }
        }
        if let Some(carrier) = &mut core.state.carrier {
            carrier.pieces.extend(left);
        }
        false
    }
}
