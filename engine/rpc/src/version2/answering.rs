//! How a Call of version 2 that came as a group is answered: with results in the client's targets, or in several Sends.

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::Provider;
use stag_memory::Buf;
use stag_proto::directions::{ResultItem, ResultPlace};
use stag_proto::responder::{
    self, GroupPlan, GroupReply, RefusedCall, ReplyError, Responder, Responder2, ResponderCallId, is_version2,
};
use stag_proto::span::Cursor;
use stag_wire::rpc::{CallHeader, leading_xid};
use stag_wire::rpcrdma2::{Body2, DirectedPlace, Header2, OptionalOperation};
use stag_wire::xdr::{Reader, padded};

use crate::ConnectionId;
use crate::client::CloseReason;
use crate::fault::fault;
use crate::server::doomed::reply_id;
use crate::server::draft::Draft;
use crate::server::kept::REPLY_LEN_MAX;
use crate::server::pending::Stage;
use crate::server::pulling::PATIENCE;
use crate::server::pushing::{plan_writes, write_piece};
use crate::server::serving::Serving;
use crate::server::serving::answering::item_lens;
use crate::server::transit;
use crate::service::reply::LONG_REPLY_LEN_MAX;
use crate::service::{Procedure, Repeat};
use crate::state::Core;
use crate::version2::receives::take_message;
use crate::version2::{CONTINUATION_MAX, ServerVersion2, copy_pieces, operation};

/// What there is for the results of a Call that came as a group, beside a base message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupRoom {
    /// Octets of the only result that may leave the Payload stream; `None`: none may.
    pub(crate) item_room: Option<u64>,
    /// Octets of a Payload stream in several Sends.
    pub(crate) long_len_max: usize,
}

/// What there is for the Reply to a base message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BaseRoom {
    /// Octets of a Reply in a buffer for messages, header included.
    pub(crate) inline_len_max: usize,
    /// Octets of the longest Send that the client takes, and this end makes.
    pub(crate) send_len_max: usize,
}

/// Octets of the shortest Payload stream of a Reply: that of a success without results.
const REPLY_LEN_MIN: u32 = 24;

/// Octets of Payload stream that a Reply must have room for before its Call is executed (XC-X-5). For a Call that must not be
/// executed twice: those of the longest Reply that the duplicate request cache keeps. Otherwise its client would not learn
/// that it was executed.
pub(crate) fn least_reply_len(procedure: &Procedure) -> u32 {
    match procedure.repeat {
        Repeat::Harmless => REPLY_LEN_MIN,
        Repeat::Harmful | Repeat::Untimely => REPLY_LEN_MAX as u32,
    }
}

/// A Reply that waits for memory to send it from.
#[derive(Debug)]
pub(crate) struct UnsentReply {
    call: ResponderCallId,
    pub(crate) draft: Box<Draft>,
    /// When it began to wait.
    since: Duration,
}

/// Whether this is the first message of a Call of version 2 that came as a group.
#[inline]
pub(crate) fn is_group(message: &[u8]) -> bool {
    operation(message).is_some()
}

impl ServerVersion2 {
    /// The room for the results of a Call that came as a group; `None` for any other Call.
    pub(crate) fn group_room(&self, message: &[u8]) -> Option<GroupRoom> {
        let OptionalOperation::Request(request) = operation(message)? else { return None };
        let layout = &self.peer_layout;
        let limit = request.response_receives.saturating_add(1).min(self.own.response_limit);
        let targets = layout.targets().saturating_mul(limit).min(stag_proto::layout::TARGETS_MAX);
        let in_targets: u64 =
            (0..targets).filter_map(|number| layout.target(number)).map(|target| u64::from(target.len)).sum();
        let direction = request.directions.iter().find_map(|set| set.items.iter().next());
        let item_room = direction.map(|direction| {
            let segments = direction.place.segments();
            let explicit = segments.iter().map(|segment| u64::from(segment.length)).sum();
            match direction.place {
                DirectedPlace::Buffers => in_targets,
                DirectedPlace::Explicit(_) => explicit,
                DirectedPlace::Choice(_) | DirectedPlace::BySize { .. } => in_targets.max(explicit),
            }
        });
        let headers = limit as usize * stag_wire::rpcrdma2::CONTINUATION_LEN;
        let all = limit as usize * layout.len() as usize;
        // The header of the first Send without items is no longer than that of a continuation.
        let long_len_max = all.saturating_sub(headers).min(LONG_REPLY_LEN_MAX);
        Some(GroupRoom { item_room, long_len_max })
    }

    /// The room for the Reply to a Call that came as a base message; `None` for any other Call.
    pub(crate) fn base_room<P>(&self, core: &Core<P>, message: &[u8]) -> Option<BaseRoom> {
        if !is_version2(message) || is_group(message) {
            return None;
        }
        let send_len_max = self.peer_layout.len() as usize;
        Some(BaseRoom { inline_len_max: send_len_max.min(core.pools.messages.unit_len()), send_len_max })
    }

    /// Says why no Reply to a Call can be sent, whatever its service answers. Such a Call is refused before it is executed. `None`:
    /// there is room for some Reply, or the Call is of version 1.
    #[cold]
    pub(crate) fn reply_obstacle(
        &mut self,
        responder: &Responder,
        call: &responder::ReceivedCall<'_>,
        message: &[u8],
        procedure: &Procedure,
    ) -> Option<ReplyError> {
        if !is_version2(message) {
            return None;
        }
        let (layout, least) = (self.peer_layout, least_reply_len(procedure));
        self.responder2.check_room(responder, call.id, message, &layout, least).err()
    }
}

/// Sends the Reply to a Call that came as a group.
pub(crate) fn answer_group<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    call: &responder::ReceivedCall<'_>,
    message: &[u8],
    draft: Box<Draft>,
) -> Result<(), CloseReason> {
    // Its further credits have their Receives already.
    let has_directions = !Responder2::directions(message).is_empty();
    let is_base = !has_directions
        && draft.long.is_empty()
        && draft.items.iter().all(|item| !item.reduced)
        && serving.responder.plan_reply(call.id, message, &[], draft.payload_len as u32).is_ok();
    if is_base {
        serving.send(core, id, call, message, draft)
    } else {
        send_group(serving, core, id, call.id, message, draft, core.now)
    }
}

/// Sends the Reply to a base message. One that fits the client's Receives, and no buffer for messages, is put together in
/// memory for payload, and waits for that as in [`send_group`].
pub(crate) fn send_base<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    call: &responder::ReceivedCall<'_>,
    message: &[u8],
    mut draft: Box<Draft>,
    since: Duration,
) -> Result<(), CloseReason> {
    let items = item_lens(&draft);
    let planned = serving.responder.plan_reply(call.id, message, &items, draft.payload_len as u32);
    let form = match planned {
        Ok(form) if !form.long && !draft.long.is_empty() => form,
        _ => return serving.send(core, id, call, message, draft),
    };
    let len = (form.header_len + form.payload_len) as usize;
    let Some(mut send) = take_message(core, len) else {
        return await_room(serving, core, id, call.id, draft, since);
    };
    serving.replenish(core, id);
    let Ok(emitted) = serving.responder.emit_reply(call.id, message, &items, &form, &mut send) else {
        core.put_draft(draft);
        return Err(fault("a Call that ended while it was answered"));
    };
    copy_pieces(draft.long.iter(), 0, &mut send[emitted.header_len..]);
    draft.long.clear();
    core.statistics.copied_bytes += len as u64;
    draft.id = reply_id(call.xid());
    plan_writes(core, call, &mut draft);
    draft.pages += transit::pages(&core.pools.payload, len) as u32;
    draft.send = Some(send);
    core.state.transit.take_reply(&mut serving.share, draft.pages as usize);
    core.statistics.replies_sent += 1;
    serving.post_in_order(core, id, draft)
}

/// A Reply finds no memory to be sent from: it waits until others let go of some. After [`PATIENCE`] the client is told
/// that it cannot be sent.
fn await_room<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    call: ResponderCallId,
    draft: Box<Draft>,
    since: Duration,
) -> Result<(), CloseReason> {
    if core.now >= since + PATIENCE {
        core.put_draft(draft);
        let why = RefusedCall::Reply(ReplyError::NoReplyChunk);
        return serving.refuse(core, id, call, why).map(|_| ());
    }
    let Some(version2) = &mut serving.version2 else { return Err(fault("a Reply of another version")) };
    version2.unsent.push(UnsentReply { call, draft, since });
    serving.wait(call);
    Ok(())
}

/// Sends a Reply as a group. Without memory to send it from it waits, or has waited since `since`.
fn send_group<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    call: ResponderCallId,
    message: &[u8],
    mut draft: Box<Draft>,
    since: Duration,
) -> Result<(), CloseReason> {
    let Some(version2) = &mut serving.version2 else { return Err(fault("a Reply of another version")) };
    let item = draft.items.first().filter(|item| item.reduced).copied();
    let displacement = draft.splice;
    let source = result_source(message);
    let results: ArrayVec<ResultItem, 1> =
        item.iter().map(|item| ResultItem { source, displacement, len: item.len }).collect();
    let padded_len = item.map_or(0, |item| padded(item.len));
    let stream_len = draft.payload_len as u32 + padded_len as u32;
    let layout = version2.peer_layout;
    let reply = GroupReply { results: &results, stream_len, layout: &layout };
    let plan = match version2.responder2.plan_group(&serving.responder, call, message, &reply) {
        Ok(plan) => plan,
        Err(error) => {
            core.put_draft(draft);
            return serving.refuse(core, id, call, RefusedCall::Reply(error)).map(|_| ());
        }
    };
    let cut = plan.cut(&layout);
    let mut sends: ArrayVec<Buf, { CONTINUATION_MAX as usize }> = ArrayVec::new();
    for sent in cut.transmissions() {
        let Some(send) = take_message(core, sent.len as usize) else {
            return await_room(serving, core, id, call, draft, since);
        };
        if sends.try_push(send).is_err() {
            return Err(fault("a Reply of more Sends than this end makes"));
        }
    }
    let mut payload = std::mem::take(&mut core.gathered);
    gather_payload(&draft, &plan, &mut payload);
    if payload.len() != plan.payload_len as usize {
        core.gathered = payload;
        core.put_draft(draft);
        return Err(fault("a Reply is not as long as it was planned"));
    }
    serving.replenish(core, id);
    let Some(version2) = &mut serving.version2 else { return Err(fault("a Reply of another version")) };
    let is_in_targets = plan.placed.iter().any(|entry| entry.place == ResultPlace::Targets);
    for (sent, out) in cut.transmissions().zip(&mut sends) {
        let responder = &mut serving.responder;
        let emitted = match sent.number {
            0 => version2.responder2.emit_lead(responder, call, message, &reply, &plan, out).ok(),
            _ => version2.responder2.emit_continuation(responder, &sent, out).ok().flatten(),
        };
        let Some(at) = emitted else {
            core.gathered = payload;
            core.put_draft(draft);
            return Err(fault("a Call that ended while it was answered"));
        };
        let part = &payload[sent.payload_at as usize..][..sent.payload_len as usize];
        out[at..at + part.len()].copy_from_slice(part);
        let mut filled = at + part.len();
        for piece in cut.pieces(&sent) {
            let at = piece.at as usize;
            out[filled..at].fill(0);
            filled = at + piece.len as usize;
            copy_pieces(draft.pieces.iter(), piece.from as usize, &mut out[at..filled]);
        }
        core.statistics.copied_bytes += u64::from(sent.len);
    }
    core.gathered = payload;
    draft.writes.clear();
    draft.next_write = 0;
    let explicit = plan.placed.iter().position(|entry| entry.place == ResultPlace::Explicit);
    if let (Some(direction), Some(item)) = (explicit, item) {
        plan_explicit(core, message, direction, item.len, &mut draft);
    }
    draft.pieces.clear();
    draft.long.clear();
    draft.items.clear();
    core.statistics.groups_sent += 1;
    core.statistics.continuations += sends.len() as u64 - 1;
    core.statistics.items_placed += u64::from(is_in_targets);
    core.statistics.replies_sent += 1;
    let xid = leading_xid(message);
    let mut first = Some(draft);
    for send in sends {
        let mut draft = first.take().unwrap_or_else(|| core.draft());
        draft.id = reply_id(xid);
        let is_paged = send.len() > core.pools.messages.unit_len();
        let pages = if is_paged { transit::pages(&core.pools.payload, send.len()) } else { 0 };
        draft.pages = (draft.writes.len() + pages) as u32;
        draft.send = Some(send);
        core.state.transit.take_reply(&mut serving.share, draft.pages as usize);
        serving.post_in_order(core, id, draft)?;
    }
    Ok(())
}

/// A Call of version 2 was run: if its Reply waits for memory, it is kept until it is sent.
pub(crate) fn keep_unsent(serving: &mut Serving, call: ResponderCallId, message: Buf) {
    let is_unsent = serving
        .version2
        .as_ref()
        .is_some_and(|version2| version2.unsent.iter().any(|unsent| unsent.call == call));
    if is_unsent {
        let xid = leading_xid(&message);
        serving.keep(call, xid, Stage::Unsent { message });
    }
}

/// Sends a Reply that waited for memory. `false`: there is none for this Call.
pub(crate) fn send_unsent<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    call: ResponderCallId,
) -> Result<bool, CloseReason> {
    let Some(version2) = &mut serving.version2 else { return Ok(false) };
    let Some(at) = version2.unsent.iter().position(|unsent| unsent.call == call) else {
        return Ok(false);
    };
    let UnsentReply { draft, since, .. } = version2.unsent.swap_remove(at);
    let Some(pending) = serving.release_slot(call) else {
        core.put_draft(draft);
        return Err(fault("a Reply waits for a Call that is in no slot"));
    };
    let Stage::Unsent { message } = pending.into_stage() else {
        core.put_draft(draft);
        return Err(fault("a Reply waits for a Call that is not answered"));
    };
    if is_group(&message) {
        send_group(serving, core, id, call, &message, draft, since)?;
    } else {
        let Some(received) = serving.responder.call(call, &message) else {
            core.put_draft(draft);
            return Err(fault("a Call in a slot is not in process"));
        };
        send_base(serving, core, id, &received, &message, draft, since)?;
    }
    keep_unsent(serving, call, message);
    Ok(true)
}

/// Where the part of a Call is that produced its results: where its arguments begin (RTR-X-22). It is found in the Call's first
/// transmission; where that ends before, the first direction is for the results.
fn result_source(message: &[u8]) -> u32 {
    let start = Header2::parse(message).ok().and_then(|(header, rest)| match header.body {
        Body2::Optional(found) => {
            let len = OptionalOperation::parse(&found).ok()?.payload_len()?;
            rest.get(..len as usize)
        }
        _ => None,
    });
    let mut reader = Reader::new(start.unwrap_or_default());
    match CallHeader::parse(&mut reader) {
        Ok(_) => reader.position() as u32,
        Err(_) => Responder2::directions(message).iter().next().map_or(0, |set| set.begin),
    }
}

/// Puts the Payload stream of a Reply together: what was encoded, and the item if it stays there after all.
fn gather_payload(draft: &Draft, plan: &GroupPlan, payload: &mut Vec<u8>) {
    payload.clear();
    match (&draft.long[..], &draft.send) {
        ([], Some(send)) => payload.extend_from_slice(&send[draft.header_len..][..draft.payload_len]),
        (long, _) => long.iter().for_each(|piece| payload.extend_from_slice(piece)),
    }
    payload.truncate(draft.payload_len);
    let is_placed = plan.placed.iter().any(|entry| {
        entry.result.is_some() && matches!(entry.place, ResultPlace::Targets | ResultPlace::Explicit)
    });
    if let Some(item) = draft.items.first().filter(|item| item.reduced && !is_placed) {
        let behind = payload.split_off((draft.splice as usize).min(payload.len()));
        let end = payload.len() + padded(item.len) as usize;
        draft.pieces.iter().for_each(|piece| payload.extend_from_slice(piece));
        payload.resize(end, 0);
        payload.extend_from_slice(&behind);
    }
}

/// Plans the RDMA Writes of a result into the segments of its direction.
fn plan_explicit<P>(core: &mut Core<P>, message: &[u8], direction: usize, len: u32, draft: &mut Draft) {
    let directions = Responder2::directions(message);
    let found = directions.iter().flat_map(|set| set.items.iter()).nth(direction);
    let Some(found) = found else { return };
    let segments = found.place.segments();
    let mut cursor = Cursor::new(segments.iter());
    let mut left = len as usize;
    let pieces = std::mem::take(&mut draft.pieces);
    for piece in pieces {
        left -= write_piece(&mut cursor, piece, left, &mut draft.writes);
    }
    core.statistics.write_chunks += 1;
    core.statistics.write_bytes += u64::from(len);
}
