//! The short way of a carried Call without chunks, and of a Reply that is nothing but an encoded payload.
//!
//! Most carried Calls are such. The entry copies the Payload stream from where it arrived into the record, and leaves the
//! Receive posted; the home lets the handler write the results into the record of the Reply; the entry copies these to where
//! they leave. So nobody takes a message buffer, a draft or a completion. The records are those of `record.rs`: each end takes the
//! general way with any record that it cannot take this way.

use stag_fabric::{Peer, Provider};
use stag_runtime::{LaneRecord, ReactorId};
use stag_wire::rpcrdma::HEADER_LEN_MIN;
use stag_wire::xdr::Reader;

use super::exchange::Answering;
use super::record::{
    ATTACHED, CALL, CALL_HEAD_LEN, CarriedRoom, Decoder, ENCODED, Encoder, LOCAL_V4, LOCAL_V6, PEER_MASK,
    REPLY, SERVICE, SHORT, SHORT_HEAD_LEN, STREAM, decode_peer, encode_peer,
};
use super::{Carrier, name_elsewhere};
use crate::engine::{Engine, find};
use crate::server::draft::Verdict;
use crate::server::duplicates::Known;
use crate::server::spares::Reused;
use crate::service::dispatch::{Origin, Route, Terms, look_first, route};
use crate::service::reply::{Reply, Room, Space};
use crate::service::{Repeat, Services, Token};
use crate::state::{Core, EngineState};

/// A Call without chunks, as a view of its record.
struct PlainCall<'a> {
    token: Token,
    peer: Option<Peer>,
    inline_len_max: u32,
    stream: &'a [u8],
}

impl PlainCall<'_> {
    /// `None`: it is any other.
    #[inline(always)]
    fn of(record: &LaneRecord) -> Option<PlainCall<'_>> {
        const OTHER: u8 = STREAM | ATTACHED | LOCAL_V4 | LOCAL_V6;
        let octets = record.octets();
        let mut head = Decoder { octets: octets.first_chunk::<CALL_HEAD_LEN>()?, at: 0 };
        let [kind, flags, writes, reads] = head.take();
        let len = head.u32() as usize;
        let token = head.token();
        let (inline_len_max, reply_chunk_len) = (head.u32(), head.u32());
        if kind != CALL || flags & OTHER != 0 || writes | reads != 0 || reply_chunk_len != 0 {
            return None;
        }
        let mut rest = Decoder { octets, at: CALL_HEAD_LEN };
        let peer = if flags & PEER_MASK == 0 { None } else { decode_peer(&mut rest, flags) };
        let stream = octets.get(rest.at..)?;
        debug_assert_eq!(stream.len(), len);
        Some(PlainCall { token, peer, inline_len_max, stream })
    }
}

/// An encoded payload that is all of a Reply, as a view of its record.
pub(super) struct ShortReply<'a> {
    pub(super) token: Token,
    pub(super) is_service: bool,
    pub(super) payload: &'a [u8],
}

impl ShortReply<'_> {
    /// `None`: there is more to it.
    #[inline(always)]
    pub(super) fn of(record: &LaneRecord) -> Option<ShortReply<'_>> {
        let (head, payload) = record.octets().split_first_chunk::<SHORT_HEAD_LEN>()?;
        let mut head = Decoder { octets: head, at: 0 };
        let [kind, ending, flags, _] = head.take();
        if kind != REPLY || ending != ENCODED || flags & SHORT == 0 {
            return None;
        }
        debug_assert_eq!(head.u32() as usize, payload.len());
        let mut head = Decoder { at: 8, ..head };
        Some(ShortReply { token: head.token(), is_service: flags & SERVICE != 0, payload })
    }
}

impl Carrier {
    /// Carries a Call without chunks to where it is executed. `false`: as many as may be are under way, or its Payload stream
    /// is too long for a record; nothing happened.
    #[inline]
    pub(crate) fn send_plain(
        &mut self,
        to: ReactorId,
        token: &Token,
        peer: Option<&Peer>,
        inline_len_max: u32,
        stream: &[u8],
    ) -> bool {
        let calls_max = self.calls_max;
        let Some(record) = &mut self.outgoing else { unreachable!("one record is sent at a time") };
        let Some(neighbour) = self.neighbours.get_mut(to.index()) else { return false };
        if neighbour.under_way >= calls_max || !neighbour.backlog.is_empty() {
            return false;
        }
        let mut encoder = Encoder { octets: record.buffer(), at: 8 };
        encoder.token(token);
        encoder.u32(inline_len_max);
        encoder.u32(0);
        debug_assert_eq!(encoder.at, CALL_HEAD_LEN);
        let flags = encode_peer(&mut encoder, peer);
        let end = encoder.at + stream.len();
        let Some(room) = encoder.octets.get_mut(encoder.at..end) else { return false };
        room.copy_from_slice(stream);
        encoder.at = 0;
        encoder.put([CALL, flags, 0, 0]);
        encoder.u32(stream.len() as u32);
        record.set_len(end);
        neighbour.under_way += 1;
        self.push(to);
        true
    }

    /// Puts the record that is being sent into the lane.
    #[inline]
    pub(super) fn push(&mut self, to: ReactorId) {
        let Some(record) = &self.outgoing else { unreachable!("one record is sent at a time") };
        let is_pushed = self.records.to(to).is_some_and(|lane| lane.push_record(record));
        assert!(is_pushed, "a lane has no room for what may be under way");
    }
}

impl<P: Provider, S: Services> Engine<P, S> {
    /// Executes another reactor's Call without chunks. `false`: it is another, or must not simply be executed; nothing happened.
    #[inline]
    pub(super) fn execute_plain(&mut self, from: ReactorId, record: &LaneRecord) -> bool {
        let Some(call) = PlainCall::of(record) else { return false };
        let Engine { core, services, .. } = self;
        if call.inline_len_max as usize + HEADER_LEN_MIN > core.config.message_len() {
            return false;
        }
        let Route::Run(run) = route(services, Reader::new(call.stream)) else { return false };
        // What may have chunks takes memory, which is counted.
        if run.procedure.has_eligible_items() {
            return false;
        }
        let connection = name_elsewhere(from, call.token.connection);
        let peer = call.peer.as_ref();
        let mut terms = Terms::of(&run);
        if run.procedure.repeat != Repeat::Harmless {
            match look_first(&mut core.state, &run, call.stream, &[], connection, peer) {
                Known::Nothing => {}
                Known::New(entry) => terms.kept = Some(entry),
                Known::Running | Known::RunningElsewhere(_) | Known::Answered(_) => return false,
            }
        }
        let EngineState {
            pools,
            scratch,
            statistics,
            deferrals,
            carrier,
            duplicates,
            now,
            draft_in_place,
            ..
        } = &mut core.state;
        let Some(carrier) = carrier.as_deref_mut() else { return false };
        let slot = carrier.later_slot();
        let Some(out) = &mut carrier.outgoing else { unreachable!("one record is sent at a time") };
        statistics.calls_executed_for_others += 1;
        let origin = Origin { connection, slot, peer, local: None, now: *now };
        let mut reply = Reply {
            draft: draft_in_place,
            xid: run.header.xid,
            room: Room::Stream,
            inline_len_max: call.inline_len_max as usize + HEADER_LEN_MIN,
            space: Some(Space {
                octets: &mut out.buffer()[SHORT_HEAD_LEN..],
                header_len: HEADER_LEN_MIN,
                messages: Some(&pools.messages),
            }),
            payload: &pools.payload,
            transit: None,
            scratch,
            eligible: 0,
            copied_bytes: &mut statistics.copied_bytes,
            deferrals,
        };
        let is_done = run.call(services, &origin, &mut [], &mut reply);
        let is_in_record = reply.space.is_some();
        let draft = &mut **draft_in_place;
        let is_short = is_in_record && draft.verdict == Verdict::Encoded && draft.defect().is_none();
        if !is_done || !is_short {
            let room = CarriedRoom { inline_len_max: call.inline_len_max, ..CarriedRoom::default() };
            let answering = Answering { from, token: call.token, room: &room };
            let token = Token { connection, slot, xid: run.header.xid };
            go_on(core, &answering, token, terms, is_done, SHORT_HEAD_LEN);
            return true;
        }
        let len = draft.payload_len;
        if let Some(entry) = terms.kept {
            let payload = &out.buffer()[SHORT_HEAD_LEN..][..len];
            duplicates.keep_octets(entry, Some(payload), statistics);
        }
        let flags = SHORT | if draft.is_service { SERVICE } else { 0 };
        draft.forget_results();
        let mut encoder = Encoder { octets: out.buffer(), at: 0 };
        encoder.put([REPLY, ENCODED, flags, 0]);
        encoder.u32(len as u32);
        encoder.token(&call.token);
        out.set_len(SHORT_HEAD_LEN + len);
        carrier.push(from);
        true
    }

    /// Sends a Reply to a Call that was carried the short way, from where it leaves. `false`: it takes the general way, and nothing
    /// happened.
    #[inline]
    pub(super) fn deliver_short(&mut self, reply: &ShortReply<'_>) -> bool {
        let Engine { core, connections, .. } = self;
        let Some(found) = find(connections, reply.token.connection) else { return false };
        let Some(serving) = found.serving.as_mut() else { return false };
        if !serving.answer_kept(core, &reply.token, reply.is_service, reply.payload) {
            return false;
        }
        core.state.ready.touch(found);
        true
    }
}

/// Goes on in the general way with a Call whose handler ran: it answers later, or with more than a record holds. A payload that was
/// built in the record begins at `head_len` there.
#[cold]
pub(super) fn go_on<P>(
    core: &mut Core<P>,
    answering: &Answering<'_>,
    token: Token,
    mut terms: Terms,
    is_done: bool,
    head_len: usize,
) {
    let spare = core.draft();
    let mut draft = std::mem::replace(&mut core.state.draft_in_place, spare);
    if !is_done {
        terms.pages = draft.pages;
        draft.clear();
        core.put_draft(draft);
        return answering.keep(core, token, terms);
    }
    if let Some(carrier) = &mut core.state.carrier {
        let Carrier { outgoing, space, .. } = &mut **carrier;
        let found = match (&draft.send, outgoing) {
            (Some(send), _) => &send[draft.header_len..],
            (None, Some(record)) => &record.buffer()[head_len..],
            (None, None) => unreachable!("one record is sent at a time"),
        };
        space[..draft.payload_len].copy_from_slice(&found[..draft.payload_len]);
    }
    draft.send = None;
    answering.conclude(core, terms, draft);
}
