//! The entry's part of the short way of a carried Call without chunks, or with one: from the message to the lane, and from the
//! lane to the Reply. See `carried/plain.rs` and `carried/single.rs`.

use stag_fabric::{Handle, MemoryInReach, Provider, RemoteSegment, SendRequest, WriteRequest};
use stag_memory::Shared;
use stag_proto::responder;
use stag_wire::rpcrdma::{HEADER_LEN_MIN, SINGLE_LEN, SingleChunk};

use super::{Pending, Serving};
use crate::ConnectionId;
use crate::carried::{CarriedChunk, Destination};
use crate::client::CloseReason;
use crate::in_place::read_in_reach;
use crate::server::doomed::reply_id;
use crate::service::dispatch::{Origin, Run, Terms};
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
pub(crate) struct ArrivedSingle<'c, 'a> {
    pub(crate) call: &'c responder::ReceivedCall<'a>,
    pub(crate) chunk: SingleChunk,
    pub(crate) stream: &'a [u8],
    /// Credits that it requests.
    pub(crate) requested: u32,
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
        let xid = run.header.xid;
        let threshold = self.responder.parameters().reply_threshold as usize;
        let inline_len_max = threshold.saturating_sub(HEADER_LEN_MIN) as u32;
        let token = Token { connection: origin.connection, slot: origin.slot, xid };
        if !carrier.send_plain(to, &token, origin.peer, inline_len_max, stream) {
            return Carriage::Left;
        }
        let id = self.responder.begin_plain(xid, requested);
        debug_assert_eq!(id.index() as u32, origin.slot);
        self.note_arrival(state);
        self.host.note(&run.caller);
        self.keep(id, xid, None, None, Some(Terms::of(run)));
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
        if kept.xid != token.xid || kept.message.is_some() || kept.has_chunk {
            return false;
        }
        let call = kept.id;
        let wanted = self.wanted(self.responder.credits_requested());
        // A Send that is to be awaited, Replies that wait for room, Receives that are to be posted or not to be.
        if core.stopping || !self.blocked.is_empty() || self.held != wanted {
            return false;
        }
        let limit = self.credit_limit();
        let Some(space) = core.provider.plain_space(id) else { return false };
        let Some(space) = space.get_mut(..payload.len()) else { return false };
        let Some(credits) = self.responder.answer_begun(call, limit) else { return false };
        space.copy_from_slice(payload);
        core.provider.send_plain(id, credits, payload.len());
        self.slots[call.index()] = None;
        self.pending -= 1;
        if is_service {
            self.note_service(core.now);
        }
        core.statistics.replies_sent += 1;
        true
    }

    /// Carries a Call with one chunk to its home from where it arrived. The Receive of its message stays posted.
    // Not inline: a Call that is executed here would pay for it.
    #[inline(never)]
    pub(crate) fn carry_single(
        &mut self,
        state: &mut EngineState,
        run: &Run<'_>,
        origin: &Origin<'_>,
        arrived: &ArrivedSingle<'_, '_>,
        memory: &mut dyn MemoryInReach,
        destination: Destination,
    ) -> Carriage {
        let &ArrivedSingle { call, chunk, stream, requested } = arrived;
        let Destination::One(to) = destination else { return Carriage::Left };
        // Its Reply may be of any length.
        if self.exposes_replies() {
            return Carriage::Left;
        }
        let (carried, header_len) = match chunk {
            SingleChunk::Write(segment) if run.procedure.eligible_results > 0 => {
                (CarriedChunk::Write(segment.length), SINGLE_LEN)
            }
            SingleChunk::Read(read) if run.procedure.eligible_arguments > 0 => {
                let (position, len) = (read.position, read.segment.length);
                (CarriedChunk::Read { position, len }, HEADER_LEN_MIN)
            }
            _ => return Carriage::Left,
        };
        let xid = run.header.xid;
        let threshold = self.responder.parameters().reply_threshold as usize;
        let inline_len_max = threshold.saturating_sub(header_len) as u32;
        let token = Token { connection: origin.connection, slot: origin.slot, xid };
        let Some(carrier) = &mut state.carrier else { return Carriage::Here };
        if !carrier.prepare_single(to, &token, origin.peer, inline_len_max, carried, stream) {
            return Carriage::Left;
        }
        let (mut data, mut pull) = (None, None);
        if let SingleChunk::Read(read) = chunk {
            let Some((buf, pages)) = read_in_reach(state, &self.share, memory, read) else {
                return Carriage::Left;
            };
            state.transit.take(&mut self.share, pages);
            state.statistics.read_chunks += 1;
            state.statistics.read_bytes += u64::from(read.segment.length);
            state.statistics.pieces_lent += 1;
            // It is counted until the Call is answered.
            let mut held = state.pulls.take();
            held.held = pages;
            (data, pull) = (Some(buf.share().lend()), Some(held));
        }
        if let Some(carrier) = &mut state.carrier {
            carrier.send_single(to, data);
        }
        let id = self.responder.begin_single(call, requested);
        debug_assert_eq!(id.index() as u32, origin.slot);
        self.note_arrival(state);
        self.host.note(&run.caller);
        debug_assert!(self.slots[id.index()].is_none(), "a slot has one Call");
        self.pending += 1;
        let later = Some(Terms::of(run));
        self.slots[id.index()] = Some(Pending { id, xid, message: None, has_chunk: true, pull, later });
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
        if kept.xid != token.xid || !kept.has_chunk {
            return Delivery::Left(piece);
        }
        let call = kept.id;
        let wanted = self.wanted(self.responder.credits_requested());
        // A Send that is to be awaited, Replies that wait for room, Receives that are to be posted or not to be.
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
        let Some(mut buf) = core.pools.messages.take() else { return Delivery::Left(piece) };
        if header_len + payload.len() > buf.capacity() {
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
        buf.set_len(header_len + payload.len());
        let (header, space) = buf.split_at_mut(header_len);
        space.copy_from_slice(payload);
        let emitted = self.responder.answer_begun_single(call, self.credit_limit(), item, header);
        let invalidate = emitted.and_then(|emitted| emitted.invalidate).map(Handle);
        if let Some(pull) = self.slots[call.index()].take().and_then(|kept| kept.pull) {
            self.put_pull(core, pull);
        }
        self.pending -= 1;
        if is_service {
            self.note_service(core.now);
        }
        core.statistics.replies_sent += 1;
        let request = SendRequest { id: request_id, buf, invalidate, signaled: false };
        match core.provider.post_send(id, request) {
            Ok(()) => Delivery::Sent,
            Err(refused) => self.send_again(core, id, refused.request),
        }
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
