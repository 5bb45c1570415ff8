//! Calls and Replies without chunks, handled where they arrived: no Receive, no Send buffer, no completion, no slot.
//!
//! It is a short cut of the general way, by the same rules. A Call is answered in place only if its connection has nothing
//! else to do first, and if its procedure needs neither chunks nor the duplicate request cache. If its handler then answers
//! later, or with more than there is room for, the Call goes on in the general way, where the handler left it.

use std::time::Duration;

use stag_fabric::{Peer, PlainMessage, Provider, Taken};
use stag_wire::rpc::take_success;
use stag_wire::xdr::{Overflow, Reader, Writer};

use crate::ConnectionId;
use crate::client::calling::{Calling, HEADER_LEN_MIN};
use crate::client::making::Making;
use crate::client::{Chunks, Results};
use crate::connection::Connection;
use crate::engine::{Engine, find};
use crate::fault::fault;
use crate::few::Few;
use crate::server::draft::{Draft, Verdict};
use crate::server::serving::Serving;
use crate::server::spares::Reused;
use crate::service::dispatch::{Origin, Route, Terms, destination, route};
use crate::service::reply::{Reply, Room, Space};
use crate::service::{Repeat, Services};
use crate::state::{Core, EngineState};

/// A Call whose handler ran in place, and that goes on in the general way.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) xid: u32,
    pub(crate) terms: Terms,
    /// What the handler filled in; `None`: it answers later.
    pub(crate) draft: Option<Box<Draft>>,
}

impl<P: Provider, S: Services> Engine<P, S> {
    /// Polls the provider, and handles what can be handled where it arrived. Returns how much there was.
    #[inline(always)]
    pub(crate) fn look(&mut self, now: Duration, burst: usize) -> usize {
        let Engine { core, services, connections, completions, .. } = self;
        let Core { provider, state } = core;
        provider.poll_in_place(now, completions, burst, &mut |message: PlainMessage<'_>| match find(
            connections,
            message.queue_pair,
        ) {
            Some(found) => found.take_in_place(state, services, message),
            None => Taken::No,
        })
    }
}

impl Connection {
    /// Handles a message where it arrived, if that is all that it takes.
    #[inline(always)]
    pub(crate) fn take_in_place<S: Services>(
        &mut self,
        state: &mut EngineState,
        services: &mut S,
        message: PlainMessage<'_>,
    ) -> Taken {
        if self.is_special || state.stopping {
            // Where Calls go both ways the general way tells them from Replies: here that would make all others dearer.
            return Taken::No;
        }
        if let Some(serving) = &mut self.serving {
            return serving.answer_in_place(state, services, self.id, self.peer.as_ref(), message);
        }
        let Some(calling) = &mut self.calling else { return Taken::No };
        match calling.complete_in_place(state, message.credits, message.stream) {
            true => Taken::Done,
            false => Taken::No,
        }
    }
}

impl Calling {
    /// Builds and sends a Call without chunks where it leaves. `false`: there is no room there, and nothing happened.
    #[inline(always)]
    pub(crate) fn send_in_place<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        making: &Making<'_>,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> bool {
        let room = (self.requester.parameters().call_threshold - HEADER_LEN_MIN) as usize;
        let Some(space) = core.provider.plain_space(making.id) else { return false };
        let room = room.min(space.len());
        let mut writer = Writer::new(&mut space[..room]);
        if making.write_payload(&mut writer, &encode).is_err() {
            return false;
        }
        let len = writer.position();
        self.keep(making, &space[..len], &[], &Chunks::default(), None);
        self.occupy(core, making);
        let credits = self.requester.emit_plain(making.call);
        core.provider.send_plain(making.id, credits, len);
        core.statistics.calls_sent += 1;
        core.statistics.messages_short += 1;
        true
    }

    /// Takes in a Reply without chunks where it arrived. `false`: it is for the general way, and nothing happened.
    #[inline(always)]
    fn complete_in_place(&mut self, state: &mut EngineState, credits: u32, stream: &[u8]) -> bool {
        let Some(xid) = stream.first_chunk().map(|xid| u32::from_be_bytes(*xid)) else { return false };
        let mut reader = Reader::new(stream);
        if !take_success(&mut reader, xid) {
            return false;
        }
        let results = reader.rest();
        let mut message = None;
        if !results.is_empty() {
            let Some(mut buf) = state.pools.messages.take() else { return false };
            buf.set_len(results.len());
            buf.copy_from_slice(results);
            message = Some(buf);
        }
        let Some(call) = self.requester.handle_plain(credits, stream) else { return false };
        self.heard = state.now;
        state.statistics.replies_received += 1;
        if self.note_answered(call) {
            let result = Ok(Results::short(message));
            self.hand_over(state, call, result, Few::new());
        } else {
            state.faults.push((self.name, fault("a Call that waits for its Reply is over")));
        }
        true
    }
}

impl Serving {
    #[inline(always)]
    fn answer_in_place<S: Services>(
        &mut self,
        state: &mut EngineState,
        services: &mut S,
        id: ConnectionId,
        peer: Option<&Peer>,
        message: PlainMessage<'_>,
    ) -> Taken {
        let Some(space) = message.space else { return Taken::No };
        // What is only for the general way: Calls or Replies that wait, Receives that are to be posted, a handler that
        // may need a buffer after all.
        if !self.may_answer_in_place(state.credit_share, message.credits) || state.is_short() {
            return Taken::No;
        }
        let Route::Run(run) = route(services, Reader::new(message.stream)) else { return Taken::No };
        let (xid, procedure) = (run.header.xid, run.procedure);
        if procedure.repeat != Repeat::Harmless
            || procedure.eligible_arguments > 0
            || procedure.eligible_results > 0
            || !self.responder.may_answer(xid)
            || state.doomed.has(peer, xid, state.now)
        {
            return Taken::No;
        }
        let slot = self.responder.next_slot();
        let origin = Origin { connection: id, slot, peer, local: None, now: state.now };
        if let Some(carrier) = state.carrier.as_deref()
            && destination(carrier, services, &run, &origin).is_some()
        {
            return Taken::No;
        }
        self.usage.observe(&state.pass_state(), self.pending);
        self.host.note(&run.caller);
        let terms = Terms::of(&run);
        let mut reply = Reply {
            draft: &mut state.draft_in_place,
            xid,
            room: Room::Stream,
            inline_len_max: self.responder.parameters().reply_threshold as usize,
            space: Some(Space { octets: space, messages: Some(&state.pools.messages) }),
            payload: &state.pools.payload,
            transit: None,
            scratch: &mut state.scratch,
            eligible: 0,
            copied_bytes: &mut state.statistics.copied_bytes,
            deferrals: &state.deferrals,
        };
        let is_done = run.call(services, &origin, &mut [], &mut reply);
        let is_in_place = reply.space.is_some();
        let draft = &mut *state.draft_in_place;
        if is_done && is_in_place && draft.verdict == Verdict::Encoded && draft.defect().is_none() {
            let len = draft.payload_len;
            if draft.is_service {
                self.note_service(state.now);
            }
            draft.forget_results();
            let limit = self.credit_limit(state.credit_share);
            let credits = self.responder.answer_plain(message.credits, limit);
            state.statistics.calls_received += 1;
            state.statistics.messages_short += 1;
            state.statistics.replies_sent += 1;
            return Taken::Answered { credits, len };
        }
        self.go_on_later(xid, terms, is_done, &mut state.draft_in_place);
        Taken::No
    }

    /// Leaves a Call to the general way, which takes it in next.
    #[cold]
    fn go_on_later(&mut self, xid: u32, terms: Terms, is_done: bool, draft: &mut Box<Draft>) {
        let draft = match is_done {
            true => Some(std::mem::replace(draft, Box::new(Draft::new()))),
            false => {
                draft.clear();
                None
            }
        };
        self.begun = Some(Begun { xid, terms, draft });
    }
}
