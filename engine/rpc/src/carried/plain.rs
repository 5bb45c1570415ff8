//! Carried Calls without chunks, by the fast path (`light.rs`): executed at their home, answered at their
//! entry.

use stag_fabric::Provider;
use stag_runtime::ReactorId;
use stag_wire::rpcrdma::HEADER_LEN_MIN;
use stag_wire::xdr::Reader;

use super::exchange::Answering;
use super::light::{LightCall, ShortReply, send_short};
use super::name_elsewhere;
use super::record::{CarriedRoom, SHORT_HEAD_LEN};
use crate::engine::{Engine, find};
use crate::server::draft::Verdict;
use crate::server::spares::Reused;
use crate::service::dispatch::{Origin, ReplyPolicy, Route, admit_new, route};
use crate::service::reply::{Reply, Room, Space};
use crate::service::{Services, Token};
use crate::state::{Core, EngineState};

impl<P: Provider, S: Services> Engine<P, S> {
    /// Executes another reactor's Call without chunks. `false`: it must not simply be executed; nothing happened.
    #[inline]
    pub(super) fn execute_plain(&mut self, from: ReactorId, call: &LightCall<'_>) -> bool {
        let Engine { core, services, .. } = self;
        if call.inline_len_max as usize + HEADER_LEN_MIN > core.config.message_len() {
            return false;
        }
        let routed = route(services, Reader::new(call.stream));
        // By reference: it is large to move.
        let Route::Run(run) = &routed else { return false };
        // What may have chunks takes memory, which is counted.
        if run.procedure.has_eligible_items() {
            return false;
        }
        let connection = name_elsewhere(from, call.token.connection);
        let peer = call.peer.as_ref();
        let Some(terms) = admit_new(&mut core.state, run, call.stream, &[], connection, peer) else {
            return false;
        };
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
        let mut out = carrier.vacant(from);
        statistics.calls_executed_for_others += 1;
        let origin = Origin { connection, slot, peer, local: None, now: *now };
        let mut reply = Reply {
            draft: draft_in_place,
            xid: run.head.xid,
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
            let answering = Answering { from, token: call.token, peer, room: &room };
            let token = Token { connection, slot, xid: run.head.xid };
            go_on(core, &answering, token, terms, is_done, SHORT_HEAD_LEN);
            return true;
        }
        if let Some(entry) = terms.kept {
            let payload = &out.buffer()[SHORT_HEAD_LEN..][..draft.payload_len];
            duplicates.keep_octets(entry, Some(payload), statistics);
        }
        send_short(out, &call.token, draft.is_service, draft.payload_len);
        draft.forget_results();
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
/// built in the lane begins at `head_len` there.
#[cold]
pub(super) fn go_on<P>(
    core: &mut Core<P>,
    answering: &Answering<'_>,
    token: Token,
    mut terms: ReplyPolicy,
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
        let mut space = std::mem::take(&mut carrier.space);
        let mut record = carrier.vacant(answering.from);
        let found = match &draft.send {
            Some(send) => &send[draft.header_len..],
            None => &record.buffer()[head_len..],
        };
        space[..draft.payload_len].copy_from_slice(&found[..draft.payload_len]);
        carrier.space = space;
    }
    draft.send = None;
    answering.conclude(core, terms, draft);
}
