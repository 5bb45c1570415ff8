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

/// Answers a Call without chunks that was carried from where it arrived with this payload, where the Reply leaves. `false`: it is none, or something
/// comes before; nothing happened.
#[inline]
pub(crate) fn answer_kept<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    token: &Token,
    is_service: bool,
    payload: &[u8],
) -> bool {
    let id: ConnectionId = token.connection;
    let Some(Some(kept)) = serving.slots.get(token.slot as usize) else { return false };
    if kept.xid != token.xid || !matches!(kept.stage(), Stage::Carried(call) if !call.has_chunk) {
        return false;
    }
    let call = kept.id;
    let wanted = serving.wanted(serving.responder.credits_requested());
    // A Send that must be awaited, Replies that wait for room, too few or too many Receives posted.
    if core.stopping || !serving.blocked.is_empty() || serving.held != wanted {
        return false;
    }
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
        return false;
    }
    forget_carried(serving, core, id, call);
    if is_service {
        serving.note_service(core.now);
    }
    core.statistics.replies_sent += 1;
    true
}

/// Answers a Call with one chunk that was carried from where it arrived with this payload and this result, if nothing comes before.
#[inline]
pub(crate) fn answer_single<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    token: &Token,
    is_service: bool,
    payload: &[u8],
    piece: &mut Option<Shared>,
) -> Result<Served, CloseReason> {
    let id: ConnectionId = token.connection;
    let Some(Some(kept)) = serving.slots.get(token.slot as usize) else { return Ok(Served::Left) };
    if kept.xid != token.xid || !matches!(kept.stage(), Stage::Carried(call) if call.has_chunk) {
        return Ok(Served::Left);
    }
    let call = kept.id;
    let wanted = serving.wanted(serving.responder.credits_requested());
    // A Send that must be awaited, Replies that wait for room, too few or too many Receives posted.
    if core.stopping || !serving.blocked.is_empty() || serving.held != wanted {
        return Ok(Served::Left);
    }
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
    let request_id = reply_id(token.xid);
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
    let held = forget_carried(serving, core, id, call);
    if held > 0 {
        core.state.transit.give(&mut serving.share, held as usize);
    }
    if is_service {
        serving.note_service(core.now);
    }
    core.statistics.replies_sent += 1;
    result
}

/// Takes a Call out of its slot that was carried from where it arrived, and returns the pages that were counted for it.
#[inline(always)]
fn forget_carried<P>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    call: ResponderCallId,
) -> u32 {
    let slot = &mut serving.slots[call.index()];
    let Some(Stage::Carried(carried)) = slot.as_ref().map(Pending::stage) else {
        core.fault(id, "a Call was answered that was not carried");
        return 0;
    };
    let held = carried.held;
    *slot = None;
    serving.pending -= 1;
    held
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
