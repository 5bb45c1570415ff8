//! The entry's part of the fast path of a carried Call without chunks, or with one: from the message to the lane, and from the
//! lane to the Reply. See `carried/plain.rs` and `carried/single.rs`.

use stag_fabric::{Handle, MemoryInReach, Provider, RemoteSegment, SendRequest, WriteRequest};
use stag_memory::Shared;
use stag_proto::responder::ResponderCallId;
use stag_wire::rpcrdma::{HEADER_LEN_MIN, SINGLE_LEN, Single, SingleChunk};

use super::Serving;
use crate::ConnectionId;
use crate::carried::{CarriedChunk, Destination};
use crate::client::CloseReason;
use crate::in_place::read_in_reach;
use crate::server::doomed::reply_id;
use crate::server::pending::{CarriedCall, Pending, Stage};
use crate::service::dispatch::{Origin, ReplyPolicy, Run};
use crate::service::{Services, Token};
use crate::state::{Core, EngineState};

/// What became of a Call that may be another reactor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carriage {
    /// It is executed here.
    Here,
    /// It is on its way.
    Sent,
    /// It is for the general way, and nothing happened.
    Left,
}

/// What became of the Reply to a Call that was carried from where it arrived.
pub(crate) enum Delivery {
    Sent,
    /// It is for the general way, and nothing happened. Its result, if it has one.
    Left(Option<Shared>),
    /// The connection has to end.
    Ends(CloseReason),
}

/// A Call with one chunk, where it arrived.
pub(crate) struct ArrivedSingle<'a> {
    pub(crate) call: Single,
    pub(crate) stream: &'a [u8],
}

impl Serving {
    /// Carries a Call without chunks to its home from where it arrived, if that is another reactor. The Receive of its message
    /// stays posted.
    #[inline]
    pub(crate) fn carry_plain<S: Services>(
        &mut self,
        state: &mut EngineState,
        services: &S,
        run: &Run<'_>,
        origin: &Origin<'_>,
        (requested, stream): (u32, &[u8]),
    ) -> Carriage {
        let Some(carrier) = &mut state.carrier else { return Carriage::Here };
        let to = match carrier.destination(run.home(services, origin), origin.peer) {
            None => return Carriage::Here,
            Some(Destination::All) => return Carriage::Left,
            // Its Reply may be of any length.
            Some(Destination::One(_)) if self.exposes_replies() => return Carriage::Left,
            Some(Destination::One(to)) => to,
        };
        let xid = run.head.xid;
        let threshold = self.responder.parameters().reply_threshold as usize;
        let inline_len_max = threshold.saturating_sub(HEADER_LEN_MIN) as u32;
        let token = Token { connection: origin.connection, slot: origin.slot, xid };
        if !carrier.may_send_light(to, stream.len()) {
            return Carriage::Left;
        }
        carrier.send_light(to, &token, (origin.peer, inline_len_max), None, None, stream);
        let id = self.responder.begin_plain(xid, requested);
        debug_assert_eq!(id.index() as u32, origin.slot);
        self.note_arrival(state);
        self.host.note(&run.head.caller);
        let carried = CarriedCall { terms: ReplyPolicy::of(run), has_chunk: false, held: 0 };
        self.keep(id, xid, Stage::Carried(carried));
        state.statistics.calls_received += 1;
        state.statistics.messages_short += 1;
        state.statistics.calls_carried += 1;
        Carriage::Sent
    }

    /// Answers a Call of [`Serving::carry_plain`] with this payload, where the Reply leaves. `false`: it is none, or something
    /// comes before; nothing happened.
    #[inline]
    pub(crate) fn answer_kept<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        token: &Token,
        is_service: bool,
        payload: &[u8],
    ) -> bool {
        let id: ConnectionId = token.connection;
        let Some(Some(kept)) = self.slots.get(token.slot as usize) else { return false };
        if kept.xid != token.xid || !matches!(kept.stage(), Stage::Carried(call) if !call.has_chunk) {
            return false;
        }
        let call = kept.id;
        let wanted = self.wanted(self.responder.credits_requested());
        // A Send that must be awaited, Replies that wait for room, too few or too many Receives posted.
        if core.stopping || !self.blocked.is_empty() || self.held != wanted {
            return false;
        }
        let limit = self.credit_limit();
        let is_sent = core.provider.build_plain(id, |space| {
            let space = space.get_mut(..payload.len())?;
            // The last that may stand in the way.
            let credits = self.responder.answer_begun(call, limit)?;
            space.copy_from_slice(payload);
            Some((credits, payload.len()))
        });
        if !is_sent {
            return false;
        }
        self.forget_carried(core, id, call);
        if is_service {
            self.note_service(core.now);
        }
        core.statistics.replies_sent += 1;
        true
    }

    /// Carries a Call with one chunk to its home from where it arrived. The Receive of its message stays posted.
    // Not inline: it would slow down a Call that is executed here.
    #[inline(never)]
    pub(crate) fn carry_single(
        &mut self,
        state: &mut EngineState,
        run: &Run<'_>,
        origin: &Origin<'_>,
        arrived: &ArrivedSingle<'_>,
        memory: &mut dyn MemoryInReach,
        destination: Destination,
    ) -> Carriage {
        let &ArrivedSingle { call, stream } = arrived;
        let chunk = call.chunk;
        let Destination::One(to) = destination else { return Carriage::Left };
        // Its Reply may be of any length.
        if self.exposes_replies() {
            return Carriage::Left;
        }
        let (carried, header_len) = match chunk {
            SingleChunk::Write(segment)
                if run.procedure.eligible_results > 0 && state.transit.may_list(&self.share) =>
            {
                (CarriedChunk::Write(segment.length), SINGLE_LEN)
            }
            SingleChunk::Read(read) if run.procedure.eligible_arguments > 0 => {
                let (position, len) = (read.position, read.segment.length);
                (CarriedChunk::Read { position, len }, HEADER_LEN_MIN)
            }
            _ => return Carriage::Left,
        };
        let xid = run.head.xid;
        let threshold = self.responder.parameters().reply_threshold as usize;
        let inline_len_max = threshold.saturating_sub(header_len) as u32;
        let token = Token { connection: origin.connection, slot: origin.slot, xid };
        if !state.carrier.as_ref().is_some_and(|carrier| carrier.may_send_light(to, stream.len())) {
            return Carriage::Left;
        }
        let (mut data, mut held) = (None, 0);
        if let SingleChunk::Read(read) = chunk {
            let Some((buf, pages)) = read_in_reach(state, &self.share, memory, read) else {
                return Carriage::Left;
            };
            state.transit.take(&mut self.share, pages);
            state.statistics.read_chunks += 1;
            state.statistics.read_bytes += u64::from(read.segment.length);
            state.statistics.pieces_lent += 1;
            // They are counted until the Call is answered.
            (data, held) = (Some(buf.share().lend()), pages as u32);
        }
        if let Some(carrier) = &mut state.carrier {
            carrier.send_light(to, &token, (origin.peer, inline_len_max), Some(carried), data, stream);
        }
        let id = self.responder.begin_single(&call);
        debug_assert_eq!(id.index() as u32, origin.slot);
        self.note_arrival(state);
        self.host.note(&run.head.caller);
        let carried = CarriedCall { terms: ReplyPolicy::of(run), has_chunk: true, held };
        self.keep(id, xid, Stage::Carried(carried));
        state.statistics.calls_received += 1;
        state.statistics.messages_short += 1;
        state.statistics.calls_carried += 1;
        Carriage::Sent
    }

    /// Answers a Call of [`Serving::carry_single`] with this payload and this result, if nothing comes before.
    #[inline]
    pub(crate) fn answer_single<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        token: &Token,
        is_service: bool,
        payload: &[u8],
        piece: Option<Shared>,
    ) -> Delivery {
        let id: ConnectionId = token.connection;
        let Some(Some(kept)) = self.slots.get(token.slot as usize) else { return Delivery::Left(piece) };
        if kept.xid != token.xid || !matches!(kept.stage(), Stage::Carried(call) if call.has_chunk) {
            return Delivery::Left(piece);
        }
        let call = kept.id;
        let wanted = self.wanted(self.responder.credits_requested());
        // A Send that must be awaited, Replies that wait for room, too few or too many Receives posted.
        if core.stopping || !self.blocked.is_empty() || self.held != wanted {
            return Delivery::Left(piece);
        }
        let target = match (&piece, self.responder.single(call)) {
            (None, Some(SingleChunk::Read(_))) => None,
            (Some(piece), Some(SingleChunk::Write(segment)))
                if !piece.is_empty() && piece.len() <= segment.length as usize =>
            {
                Some(RemoteSegment { handle: Handle(segment.handle), offset: segment.offset })
            }
            _ => return Delivery::Left(piece),
        };
        let header_len = if target.is_some() { SINGLE_LEN } else { HEADER_LEN_MIN };
        let len = header_len + payload.len();
        if len > core.config.message_len() {
            return Delivery::Left(piece);
        }
        let request_id = reply_id(token.xid);
        let mut item = 0;
        if let (Some(source), Some(target)) = (piece, target) {
            item = source.len() as u32;
            let request = WriteRequest { id: request_id, source, target, signaled: false };
            if let Err(refused) = core.provider.post_write(id, request) {
                return Delivery::Left(Some(refused.request.source));
            }
            core.statistics.write_chunks += 1;
            core.statistics.write_bytes += u64::from(item);
        }
        let limit = self.credit_limit();
        let mut emit = |message: &mut [u8]| {
            let (header, space) = message.split_at_mut(header_len);
            space.copy_from_slice(payload);
            let emitted = self.responder.answer_begun_single(call, limit, item, header);
            emitted.and_then(|emitted| emitted.invalidate).map(Handle)
        };
        let is_sent = core.provider.build_whole(id, |space| {
            let space = space.get_mut(..len)?;
            Some((len, emit(space)))
        });
        let mut result = Delivery::Sent;
        if !is_sent {
            let Some(mut buf) = core.pools.messages.take() else {
                return Delivery::Ends(CloseReason::CannotReply);
            };
            buf.set_len(len);
            let invalidate = emit(&mut buf);
            let request = SendRequest { id: request_id, buf, invalidate, signaled: false };
            if let Err(refused) = core.provider.post_send(id, request) {
                result = self.send_again(core, id, refused.request);
            }
        }
        let held = self.forget_carried(core, id, call);
        if held > 0 {
            core.state.transit.give(&mut self.share, held as usize);
        }
        if is_service {
            self.note_service(core.now);
        }
        core.statistics.replies_sent += 1;
        result
    }

    /// Takes a Call out of its slot that was carried from where it arrived, and returns the pages that were counted for it.
    #[inline(always)]
    fn forget_carried<P>(&mut self, core: &mut Core<P>, id: ConnectionId, call: ResponderCallId) -> u32 {
        let slot = &mut self.slots[call.index()];
        let Some(Stage::Carried(carried)) = slot.as_ref().map(Pending::stage) else {
            core.fault(id, "a Call was answered that was not carried");
            return 0;
        };
        let held = carried.held;
        *slot = None;
        self.pending -= 1;
        held
    }

    /// Lets a Send wait that found no room.
    #[cold]
    fn send_again<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        request: SendRequest,
    ) -> Delivery {
        let mut draft = core.draft();
        draft.id = request.id;
        draft.invalidate = request.invalidate;
        draft.send = Some(request.buf);
        match self.post(core, id, draft) {
            Ok(()) => Delivery::Sent,
            Err(reason) => Delivery::Ends(reason),
        }
    }
}
