//! The Reply to a Call that was carried from where it arrived: from the lane to where it leaves, without a Send buffer.
//!
//! Beside [`answer`](crate::service::steps::answer), as its payload is there: it is copied once, and the Receive is posted still.

use stag_fabric::{Handle, Provider, RemoteSegment, SendRequest, WriteRequest};
use stag_memory::Shared;
use stag_proto::responder::ResponderCallId;
use stag_wire::rpcrdma::{HEADER_LEN_MIN, SINGLE_LEN, SingleChunk};

use super::Serving;
use crate::ConnectionId;
use crate::client::CloseReason;
use crate::recorder::Way;
use crate::server::doomed::reply_id;
use crate::server::pending::{Pending, Served, Stage};
use crate::service::Token;
use crate::state::Core;

/// A Reply of another reactor that is an encoded payload, with one result beside it or none, as it lies in its lane.
#[derive(Clone, Copy)]
pub(crate) struct LightReply<'a> {
    pub(crate) token: Token,
    pub(crate) is_service: bool,
    pub(crate) payload: &'a [u8],
}

/// Answers a Call that was carried from where it arrived with this Reply, and with this result if it has one.
/// [`Served::Left`]: there is no such Call, or something comes before its Reply; nothing happened, and `result` is what it was.
#[inline]
pub(crate) fn answer_light<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    reply: &LightReply<'_>,
    result: &mut Option<Shared>,
) -> Result<Served, CloseReason> {
    let Some(Some(kept)) = serving.slots.get(reply.token.slot as usize) else { return Ok(Served::Left) };
    let Stage::Carried(carried) = kept.stage() else { return Ok(Served::Left) };
    let (call, has_chunk, is_it) = (kept.id, carried.has_chunk, kept.xid == reply.token.xid);
    let wanted = serving.wanted(serving.responder.credits_requested());
    // A Send that must be awaited, Replies that wait for room, too few or too many Receives posted.
    if !is_it || core.stopping || !serving.blocked.is_empty() || serving.held != wanted {
        return Ok(Served::Left);
    }
    match (has_chunk, &result) {
        (true, _) => answer_single(serving, core, call, reply, result),
        (false, None) => Ok(answer_plain(serving, core, call, reply)),
        (false, Some(_)) => Ok(Served::Left),
    }
}

/// Sends a Reply without a result to a Call without chunks.
#[inline(always)]
fn answer_plain<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    call: ResponderCallId,
    reply: &LightReply<'_>,
) -> Served {
    let LightReply { token: Token { connection: id, .. }, payload, .. } = *reply;
    let limit = serving.credit_limit();
    let Core { provider, state } = &mut *core;
    let is_sent = provider.build_plain(id, |space| {
        let space = space.get_mut(..payload.len())?;
        // The last that may stand in the way.
        let credits = serving.responder.answer_begun(call, limit)?;
        space.copy_from_slice(payload);
        if let Some(recorder) = &mut state.recorder {
            recorder.note_plain(state.now, id, Way::Sent, (credits, payload));
        }
        Some((credits, payload.len()))
    });
    if !is_sent {
        return Served::Left;
    }
    note_answered(serving, core, call, reply);
    Served::Over
}

/// Sends a Reply to a Call with one chunk, after its result.
#[inline(always)]
fn answer_single<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    call: ResponderCallId,
    reply: &LightReply<'_>,
    piece: &mut Option<Shared>,
) -> Result<Served, CloseReason> {
    let LightReply { token: Token { connection: id, xid, .. }, payload, .. } = *reply;
    let target = match (&*piece, serving.responder.single(call)) {
        (None, Some(SingleChunk::Read(_))) => None,
        (Some(piece), Some(SingleChunk::Write(segment)))
            if !piece.is_empty() && piece.len() <= segment.length as usize =>
        {
            Some(RemoteSegment { handle: Handle(segment.handle), offset: segment.offset })
        }
        _ => return Ok(Served::Left),
    };
    let header_len = if target.is_some() { SINGLE_LEN } else { HEADER_LEN_MIN };
    let len = header_len + payload.len();
    if len > core.config.message_len() {
        return Ok(Served::Left);
    }
    let request_id = reply_id(xid);
    let mut item = 0;
    if let Some(target) = target
        && let Some(source) = piece.take()
    {
        item = source.len() as u32;
        let request = WriteRequest { id: request_id, source, target, signaled: false };
        if let Err(refused) = core.provider.post_write(id, request) {
            *piece = Some(refused.request.source);
            return Ok(Served::Left);
        }
        core.statistics.write_chunks += 1;
        core.statistics.write_bytes += u64::from(item);
    }
    let limit = serving.credit_limit();
    let mut emit = |message: &mut [u8]| {
        let (header, space) = message.split_at_mut(header_len);
        space.copy_from_slice(payload);
        let emitted = serving.responder.answer_begun_single(call, limit, item, header);
        emitted.and_then(|emitted| emitted.invalidate).map(Handle)
    };
    let Core { provider, state } = &mut *core;
    let is_sent = provider.build_whole(id, |space| {
        let space = space.get_mut(..len)?;
        let invalidate = emit(space);
        if let Some(recorder) = &mut state.recorder {
            recorder.note(state.now, id, Way::Sent, space, invalidate);
        }
        Some((len, invalidate))
    });
    let mut result = Ok(Served::Over);
    if !is_sent {
        let Some(mut buf) = core.pools.messages.take() else {
            return Err(CloseReason::CannotReply);
        };
        buf.set_len(len);
        let invalidate = emit(&mut buf);
        let request = SendRequest { id: request_id, buf, invalidate, signaled: false };
        if let Err(refused) = core.post_send(id, request) {
            result = send_again(serving, core, id, refused.request);
        }
    }
    note_answered(serving, core, call, reply);
    result
}

/// A Call that was carried from where it arrived is answered: takes it out of its slot, and gives back the pages that were counted
/// for it.
#[inline(always)]
fn note_answered<P>(
    serving: &mut Serving,
    core: &mut Core<P>,
    call: ResponderCallId,
    reply: &LightReply<'_>,
) {
    let slot = &mut serving.slots[call.index()];
    let Some(Stage::Carried(carried)) = slot.as_ref().map(Pending::stage) else {
        return core.fault(reply.token.connection, "a Call was answered that was not carried");
    };
    let held = carried.held;
    *slot = None;
    serving.pending -= 1;
    if held > 0 {
        core.state.transit.give(&mut serving.share, held as usize);
    }
    if reply.is_service {
        serving.note_service(core.now);
    }
    core.statistics.replies_sent += 1;
}

/// Lets a Send wait that found no room.
#[cold]
fn send_again<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    request: SendRequest,
) -> Result<Served, CloseReason> {
    let mut draft = core.draft();
    draft.id = request.id;
    draft.invalidate = request.invalidate;
    draft.send = Some(request.buf);
    serving.post(core, id, draft).map(|()| Served::Over)
}
