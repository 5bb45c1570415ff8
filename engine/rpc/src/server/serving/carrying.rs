//! The entry's part of the short way of a carried Call without chunks: from the message to the lane, and from the lane to the
//! Reply. See `carried/plain.rs`.

use stag_fabric::Provider;
use stag_wire::rpcrdma::HEADER_LEN_MIN;

use super::Serving;
use crate::ConnectionId;
use crate::carried::Destination;
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
        if kept.xid != token.xid || kept.message.is_some() {
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
}
