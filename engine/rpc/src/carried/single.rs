//! Carried Calls with one chunk of one segment, by the fast path (`light.rs`): a READ whose result goes to a Write chunk, a
//! WRITE whose data is pulled.
//!
//! One piece of memory goes beside a record: the data beside the Call, or the result beside the Reply. The entry pulls the data
//! while the message is shown, and keeps only the message's chunk, in the [`Responder`](stag_proto::responder::Responder).

use stag_fabric::Provider;
use stag_memory::Shared;
use stag_runtime::{LaneRecord, LaneWriter, ReactorId};
use stag_wire::rpcrdma::{HEADER_LEN_MIN, SINGLE_LEN};
use stag_wire::xdr::{Reader, Reduced};

use super::exchange::{Answering, LARGE_LEN, as_buf};
use super::light::{CarriedChunk, LightCall, SingleReply, attach, send_short, send_single};
use super::plain::go_on;
use super::record::{CarriedCall, CarriedRoom, ITEM_LEN, REPLY_HEAD_LEN, SHORT_HEAD_LEN};
use super::{Carrier, name_elsewhere};
use crate::engine::{Engine, find};
use crate::server::draft::Verdict;
use crate::server::owner::owner;
use crate::server::serving::Delivery;
use crate::server::transit::MemoryHolder;
use crate::service::call::{Placed, PlacedPieces};
use crate::service::dispatch::{Origin, Route, admit_new, route};
use crate::service::reply::{Reply, Room, Space};
use crate::service::{Services, Token};
use crate::state::EngineState;

impl<P: Provider, S: Services> Engine<P, S> {
    /// Executes another reactor's Call with one chunk. Returns false, with no effect, if the Call needs the duplicate
    /// cache's decision.
    #[inline]
    pub(super) fn execute_single(
        &mut self,
        from: ReactorId,
        call: &LightCall<'_>,
        record: &LaneRecord,
    ) -> bool {
        let Some(chunk) = call.chunk else { return false };
        let reduced = match chunk {
            CarriedChunk::Read { position, len } => Some(Reduced::read_chunk(0, position, len)),
            CarriedChunk::Write(_) => None,
        };
        let reader = Reader::with_reduced(call.stream, reduced.as_slice());
        let Engine { core, services, .. } = self;
        let routed = route(services, reader);
        // By reference: it is large to move.
        let Route::Run(run) = &routed else { return false };
        let Some(carrier) = core.state.carrier.as_deref_mut() else { return false };
        // Filled in place: it is large to move.
        let mut data = Placed { pieces: PlacedPieces::new(), len: 0 };
        if let CarriedChunk::Read { len, .. } = chunk {
            data.len = len;
            data.pieces.extend(as_buf(carrier.take_piece(from)));
        }
        let placed = if reduced.is_some() { std::slice::from_mut(&mut data) } else { &mut [] };
        let connection = name_elsewhere(from, call.token.connection);
        let peer = call.peer.as_ref();
        let Some(terms) = admit_new(&mut core.state, run, call.stream, placed, connection, peer) else {
            let pieces = data.pieces.drain(..).map(|buf| buf.share());
            if let Some(carrier) = &mut core.state.carrier {
                carrier.pieces.extend(pieces);
            }
            self.execute(from, &CarriedCall::decode(record), record, None);
            return true;
        };
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
        let Carrier { records, attachments, .. } = carrier;
        let Some(mut out) = records.to(from).and_then(LaneWriter::vacant) else {
            unreachable!("a lane has room for the Replies to all that may be under way")
        };
        let octets = out.buffer();
        statistics.calls_executed_for_others += 1;
        let origin = Origin { connection, slot, peer, local: None, now: *now };
        // A Reply with a result has a longer head, and an item behind its payload.
        let (head_len, header_len, tail_len) = match chunk {
            CarriedChunk::Write(_) => (REPLY_HEAD_LEN, SINGLE_LEN, ITEM_LEN),
            CarriedChunk::Read { .. } => (SHORT_HEAD_LEN, HEADER_LEN_MIN, 0),
        };
        let mut room = CarriedRoom { inline_len_max: call.inline_len_max, ..CarriedRoom::default() };
        if let CarriedChunk::Write(len) = chunk
            && run.procedure.eligible_results > 0
        {
            room.write_chunks.push(len.into());
        }
        let end = octets.len() - tail_len;
        let mut reply = Reply {
            draft: draft_in_place,
            xid: run.head.xid,
            room: Room::Carried(&room),
            inline_len_max: call.inline_len_max as usize + header_len,
            space: Some(Space {
                octets: &mut octets[head_len..end],
                header_len,
                messages: Some(&pools.messages),
            }),
            payload: &pools.payload,
            transit: Some((transit, MemoryHolder::Guest { owner: owner(peer), is_last_try: false })),
            scratch,
            eligible: run.procedure.eligible_results,
            copied_bytes: &mut statistics.copied_bytes,
            deferrals,
        };
        let is_done = run.call(services, &origin, placed, &mut reply);
        let is_in_record = reply.space.is_some();
        let draft = &mut **draft_in_place;
        let has_its_form = match (chunk, &draft.items[..], &draft.pieces[..]) {
            (CarriedChunk::Write(_), [item], [piece]) => item.reduced && piece.is_stored(),
            (CarriedChunk::Read { .. }, [], []) => true,
            _ => false,
        };
        let is_encoded = draft.verdict == Verdict::Encoded && draft.defect().is_none();
        if !is_done || !is_in_record || !has_its_form || !is_encoded {
            let answering = Answering { from, token: call.token, peer, room: &room };
            let token = Token { connection, slot, xid: run.head.xid };
            go_on(core, &answering, token, terms, is_done, head_len);
            return true;
        }
        if let Some(entry) = terms.kept {
            let payload = draft.items.is_empty().then(|| &octets[head_len..][..draft.payload_len]);
            duplicates.keep_octets(entry, payload, statistics);
        }
        match draft.pieces.pop() {
            None => send_short(out, &call.token, draft.is_service, draft.payload_len),
            Some(piece) => {
                statistics.pieces_lent += 1;
                send_single(out, &call.token, draft, piece.len());
                attach(attachments, from, piece.lend());
            }
        }
        draft.forget_results();
        true
    }

    /// Sends a Reply with one result in one piece, which lies beside the record, unless it is large. `false`: it takes the general
    /// way, and the piece is in the carrier's `pieces`.
    #[inline]
    pub(super) fn deliver_single(&mut self, from: ReactorId, reply: &SingleReply<'_>) -> bool {
        let Some(carrier) = self.core.state.carrier.as_deref_mut() else { return false };
        let piece = carrier.take_piece(from);
        if !carrier.broadcasts.is_empty() || piece.len() >= LARGE_LEN {
            carrier.pieces.push(piece);
            return false;
        }
        self.answer_single(&reply.token, reply.is_service, reply.payload, Some(piece))
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
