//! The server half of a connection: drives the Responder, pulls chunks, runs services, sends Replies.
//!
//! ```text
//!  Receive ─▶ Responder ─▶ [pull Position Zero] ─▶ [pull data chunks] ─▶ service ─▶ Writes, Send
//!                                                                           └▶ later ─┘
//! ```

pub(crate) mod answering;
pub(crate) mod carrying;
pub(crate) mod exposing;
mod pulls;
mod received;
mod receives;

use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::Provider;
use stag_memory::Buf;
use stag_proto::parameters::Parameters;
use stag_proto::responder::{
    self, CallPayload, ChunkError, ChunkLimits, RefusedCall, Responder, ResponderCallId, ResponderConfig,
    ResponderReceived,
};
use stag_wire::rpcrdma::SingleChunk;
use stag_wire::xdr::Reduced;

use self::answering::warn_of_length;
use self::exposing::Exposing;
use self::received::Received;
use crate::ConnectionId;
use crate::client::CloseReason;
use crate::config::{EngineConfig, SEGMENTS_MAX, SPARE_RECEIVES};
use crate::fault::fault;
use crate::security::sealed::answer_later;
use crate::server::client_log::ClientHost;
use crate::server::draft::Draft;
use crate::server::eviction::ConnectionUse;
use crate::server::governor::CreditGovernor;
use crate::server::pending::{Begun, CarriedCall, Pending, Served, Stage};
use crate::server::progress::Progress;
use crate::server::pulling::{Pull, READ_CHUNKS_MAX, plan_single};
use crate::server::serving::exposing::take_done;
use crate::server::spares::Reused;
use crate::server::transit::TransitShare;
use crate::service::call::{Placed, PlacedPieces};
use crate::service::dispatch::{Origin, ReplyPolicy};
use crate::service::reply::Reply;
use crate::service::steps::{Arrived, serve};
use crate::service::{Services, Token};
use crate::state::{Core, EngineState, Link, Pass};
use crate::version2::ServerVersion2;
use crate::version2::answering::{keep_unsent, send_unsent};
use crate::version2::serving::{RECEIVES_OWED, take_stalled};

/// The server half of a connection.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) responder: Responder,
    slots: Box<[Option<Pending>]>,
    /// Replies whose Writes or Send found no room in the send queue, oldest first.
    pub(crate) blocked: VecDeque<Box<Draft>>,
    /// Slots with Reads that found no room, or whose Call waits for a message buffer.
    pub(crate) waiting: VecDeque<u32>,
    /// Slots whose Calls wait for memory to pull into, oldest first.
    awaiting_memory: VecDeque<u32>,
    /// When the first of them is given up.
    memory_wait_max: Duration,
    /// What this connection has of the memory for transit.
    pub(crate) share: TransitShare,
    /// Messages that wait for buffers, at most as many as Receives were posted.
    pub(crate) stalled: VecDeque<Buf>,
    /// Calls that are in a slot.
    pending: u32,
    /// Signaled Sends under way, each with the pages of its Reply, oldest first. All are signaled when stopping.
    sends: VecDeque<u32>,
    /// Receives that this connection holds: posted, or with a Call in process.
    pub(crate) held: u32,
    pub(crate) governor: CreditGovernor,
    /// The place of its client's account of credits; `None`: it is for reverse Calls.
    pub(crate) account: Option<u32>,
    /// A Call whose handler ran already: it comes with the next message.
    pub(crate) begun: Option<Begun>,
    /// When a service last answered something that was no refusal.
    served: Option<Duration>,
    progress: Progress,
    /// Replies that are exposed, where both ends agreed on that.
    exposing: Option<Box<Exposing>>,
    /// Whose machine it is.
    pub(crate) host: ClientHost,
    /// What version 2 adds, on a connection that may speak it.
    pub(crate) version2: Option<Box<ServerVersion2>>,
}

/// A Call that was left for later, out of its slot.
struct LateCall {
    id: ResponderCallId,
    terms: ReplyPolicy,
    /// `None`: it was carried from where it arrived.
    message: Option<Buf>,
    pull: Option<Box<Pull>>,
}

impl Serving {
    /// Of a connection that was accepted.
    pub(crate) fn new(config: &EngineConfig, parameters: Parameters, share: TransitShare) -> Serving {
        let limits = ChunkLimits {
            segments: SEGMENTS_MAX,
            read_chunks: READ_CHUNKS_MAX as u32,
            write_chunks: 16,
            chunk_len: config.chunk_len_max,
            pull_len: config.chunk_len_max.saturating_mul(2),
        };
        let account = Some(share.account());
        let governor = CreditGovernor::new(&config.credits());
        Serving { account, ..Serving::with(config.credits_max, parameters, limits, share, governor) }
    }

    /// For reverse Calls on a connection that we opened. A Call with chunks gets ERR_CHUNK (8167-5.3-b).
    pub(crate) fn reverse(config: &EngineConfig, parameters: &Parameters, share: TransitShare) -> Serving {
        let slots = config.reverse_credits;
        Serving::with(slots, parameters.reversed(), ChunkLimits::SHORT, share, CreditGovernor::fixed(slots))
    }

    fn with(
        slots: u32,
        parameters: Parameters,
        limits: ChunkLimits,
        share: TransitShare,
        governor: CreditGovernor,
    ) -> Serving {
        let mut responder = Responder::new(&ResponderConfig { slots, parameters, limits });
        // An error may be the first message to the peer, before a Reply has brought the limit.
        responder.set_credit_limit(1);
        Serving {
            responder,
            slots: (0..slots).map(|_| None).collect(),
            blocked: VecDeque::new(),
            waiting: VecDeque::new(),
            awaiting_memory: VecDeque::new(),
            memory_wait_max: Duration::ZERO,
            share,
            stalled: VecDeque::new(),
            pending: 0,
            sends: VecDeque::new(),
            held: 0,
            governor,
            account: None,
            begun: None,
            served: None,
            progress: Progress::default(),
            exposing: None,
            host: ClientHost::default(),
            version2: None,
        }
    }

    /// Octets of heap of its tables, and of its queues with as many Calls as there may be credits.
    pub(crate) fn footprint(config: &EngineConfig) -> usize {
        let credits_max = config.credits_max;
        let calls = credits_max as usize;
        // A queue doubles when it is full.
        let queued = calls.next_power_of_two();
        Responder::footprint(credits_max)
            + calls * size_of::<Option<Pending>>()
            + queued * (size_of::<Box<Draft>>() + 2 * size_of::<u32>())
            + (calls + SPARE_RECEIVES as usize).next_power_of_two() * size_of::<Buf>()
            + Exposing::footprint(config)
    }

    /// Whether a Receive is posted that no message has taken: else a message took one of the other half.
    pub(crate) fn has_receive(&self) -> bool {
        self.responder.grant().receives() > self.stalled.len() as u32
    }

    /// Whether nothing is in process or waits to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending == 0
            && self.sends.is_empty()
            && self.blocked.is_empty()
            && self.stalled.is_empty()
            && self.exposing.as_ref().is_none_or(|exposing| exposing.is_idle())
    }

    /// Whether the peer was told that Replies are exposed.
    pub(crate) fn exposes_replies(&self) -> bool {
        self.exposing.is_some()
    }

    /// How the connection, which was opened then, is used.
    pub(crate) fn usage(&self, opened: Duration, is_set_up: bool) -> ConnectionUse {
        ConnectionUse { opened, served: self.served, is_set_up, is_busy: !self.is_idle() }
    }

    /// A signaled Send is complete, or another one failed.
    pub(crate) fn sent<P>(&mut self, core: &mut Core<P>) {
        let pages = self.sends.pop_front().unwrap_or(0);
        core.transit.give_reply(&mut self.share, pages as usize);
        self.progress.step();
    }

    /// Whether something found no room in a queue, or no memory.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.blocked.is_empty()
            || !self.waiting.is_empty()
            || !self.awaiting_memory.is_empty()
            || !self.stalled.is_empty()
    }

    /// Whether Calls wait: there are hardly buffers to answer them with, or the client has left too many results untaken.
    #[inline(always)]
    fn has_to_wait(&self, state: &EngineState) -> bool {
        state.is_short() || self.is_over_limit(state)
    }

    /// Whether the client has left too many results untaken.
    #[inline(always)]
    fn is_over_limit(&self, state: &EngineState) -> bool {
        state.transit.is_over_limit(&self.share, &state.pools.payload)
    }

    /// Whether a message in a Receive may be taken in now. One whose handler ran already has its buffers.
    #[inline(always)]
    pub(crate) fn may_take_in(&self, state: &EngineState) -> bool {
        self.begun.is_some() || (self.stalled.is_empty() && !self.has_to_wait(state))
    }

    /// Whether a Call may be taken where it arrived: nothing comes before it, as many Receives are posted as are due if it requests
    /// these credits, its xid is not in process, and it has ended no connection. `NEEDS_BUFFERS`: its handler may need a buffer.
    #[inline(always)]
    pub(crate) fn may_take<const NEEDS_BUFFERS: bool>(
        &self,
        state: &EngineState,
        link: Link<'_>,
        xid: u32,
        requested: u32,
    ) -> bool {
        self.held == self.wanted(requested)
            && self.governor.is_current(&state.credits)
            && !self.has_waiting()
            && self.begun.is_none()
            && !self.is_over_limit(state)
            && !(NEEDS_BUFFERS && state.is_short())
            && self.responder.may_answer(xid)
            && !state.refused_calls.has(link.peer, xid, state.now)
    }

    /// Takes in a message, now or when there is memory to answer it. `Err`: the connection has to end.
    #[inline]
    pub(crate) fn receive<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        message: Buf,
    ) -> Result<(), CloseReason> {
        if !self.may_take_in(pass.core) {
            // What ends the wait must not wait itself.
            if let Some(message) = take_done(self, pass.core, link.id, message, None)? {
                self.stalled.push_back(message);
            }
            return Ok(());
        }
        self.take_in(pass, link, message)
    }

    /// Takes in a message. `Err`: the connection has to end.
    #[inline]
    pub(crate) fn take_in<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        message: Buf,
    ) -> Result<(), CloseReason> {
        self.prepare_to_take_in(&mut pass.core.state);
        // Where it is, by reference: it is large to move.
        let received = self.responder.handle_receive(&message);
        let call = match &received {
            ResponderReceived::Call(call) => call,
            ResponderReceived::Error(error) => {
                if let RefusedCall::Chunks(ChunkError::Length { len, limit }) = error.refused {
                    warn_of_length(pass, link.peer, &message, (len, limit));
                }
                drop(message);
                self.replace_receive(pass.core, link.id);
                return self.send_error(pass.core, link.id, error);
            }
            ResponderReceived::Dropped(_) => {
                let message = if self.exposing.is_none() {
                    message
                } else {
                    match take_done(self, pass.core, link.id, message, None)? {
                        Some(message) => message,
                        None => {
                            // Its Receive is posted again, and was none of a Call's.
                            self.responder.receives_posted(1);
                            return Ok(());
                        }
                    }
                };
                pass.core.statistics.messages_discarded += 1;
                drop(message);
                self.replace_receive(pass.core, link.id);
                return Ok(());
            }
            ResponderReceived::Close(_) => {
                return Err(CloseReason::Violation("it sent more Calls than it had credits for"));
            }
        };
        if let Some(exposing) = &mut self.exposing {
            exposing.supersede(pass.core, link.id, &mut self.share, call.xid());
        }
        let name = (call.id, call.xid());
        let (ran, pull) = self.begin(pass, link, call, &message)?;
        self.settle(pass, link, name, message, pull, ran)
    }

    /// Before a message is taken in: counts its arrival. A Call whose handler ran already was counted then; it gets the slot that its
    /// token names, because the Calls that have ended since left other slots to be used next.
    #[inline(always)]
    pub(crate) fn prepare_to_take_in(&mut self, state: &mut EngineState) {
        match &self.begun {
            None => self.note_arrival(state),
            Some(begun) => self.responder.use_next(begun.slot),
        }
    }

    /// Takes a Call through its steps that is in a Receive. Returns what it holds of pulled data, too.
    #[inline(always)]
    pub(crate) fn begin<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        call: &responder::ReceivedCall<'_>,
        message: &[u8],
    ) -> Result<(Served, Option<Box<Pull>>), CloseReason> {
        pass.core.statistics.calls_received += 1;
        if let Some(begun) = self.begun.take() {
            pass.core.statistics.messages_short += 1;
            return self.go_on(pass.core, link, begun, call, message);
        }
        if pass.core.refused_calls.has(link.peer, call.xid(), pass.core.now) {
            let ran = self.refuse(pass.core, link.id, call.id, RefusedCall::EndedConnection)?;
            return Ok((ran, None));
        }
        let CallPayload::Inline(stream) = call.payload else { return Ok((Served::Pulls, None)) };
        pass.core.statistics.messages_short += u64::from(call.read_chunk_count() == 0);
        let read = match call.single() {
            Some(SingleChunk::Read(read)) => Some(read),
            _ => None,
        };
        let reduced = read.map(|read| Reduced::read_chunk(0, read.position, read.segment.length));
        let arrived = Arrived { origin: origin(pass.core, link, call), stream, reduced: reduced.as_slice() };
        // Filled in place: it is large to move.
        let mut data = read.map(|_| Placed { pieces: PlacedPieces::new(), len: 0 });
        let mut received = Received::new(self, link, call, message);
        let ran = serve(pass, &mut received, &arrived, data.as_mut_slice());
        let (held, unread) = (received.held, received.unread);
        if let (Some(read), Some(unread)) = (read, unread) {
            let mut pull = pass.core.pulls.take();
            plan_single(&mut pass.core.state, &mut self.share, &mut pull, read, unread);
            return Ok((ran?, Some(pull)));
        }
        let Some(held) = held else { return Ok((ran?, None)) };
        if matches!(ran, Ok(Served::Later(_))) {
            let mut pull = pass.core.pulls.take();
            pull.items.extend(data);
            pull.held = held;
            return Ok((ran?, Some(pull)));
        }
        pass.core.transit.give(&mut self.share, held);
        Ok((ran?, None))
    }

    /// Takes a Call through its steps whose Payload stream and data were pulled, or came in several Sends.
    #[inline]
    pub(crate) fn run_pulled<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        call: &responder::ReceivedCall<'_>,
        (message, stream): (&[u8], &[u8]),
        pull: &mut Pull,
    ) -> Result<Served, CloseReason> {
        let Pull { items, reduced, .. } = pull;
        let arrived = Arrived { origin: origin(pass.core, link, call), stream, reduced };
        let mut received = Received::new(self, link, call, message);
        if !items.is_empty() {
            received = received.with_items(items.len());
        }
        serve(pass, &mut received, &arrived, items)
    }

    /// Goes on with a Call whose handler ran where the message arrived.
    #[cold]
    pub(crate) fn go_on<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        link: Link<'_>,
        begun: Begun,
        call: &responder::ReceivedCall<'_>,
        message: &[u8],
    ) -> Result<(Served, Option<Box<Pull>>), CloseReason> {
        debug_assert_eq!(begun.xid, call.xid(), "it comes with the next message");
        let Begun { terms, draft, pull, .. } = begun;
        let ran = match draft {
            Some(draft) => Received::new(self, link, call, message).go_on(core, terms, draft)?,
            None => Served::Later(terms),
        };
        Ok((ran, pull))
    }

    /// Keeps a Call that is not over, with its message and what it pulled.
    #[inline(always)]
    pub(crate) fn settle<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        (id, xid): (ResponderCallId, u32),
        message: Buf,
        pull: Option<Box<Pull>>,
        ran: Served,
    ) -> Result<(), CloseReason> {
        match ran {
            Served::Over if self.version2.is_none() => {}
            Served::Over => keep_unsent(self, id, message),
            Served::Later(terms) => {
                self.keep(id, xid, Stage::Later { message, pull, terms });
                return Ok(());
            }
            Served::Repeats => self.keep(id, xid, Stage::Repeated { message }),
            Served::Lacks(pages) => {
                self.starve(pass.core, id, xid, message, pull, pages);
                return Ok(());
            }
            Served::Pulls => return self.pull(pass, link, (id, xid), message, pull),
            Served::Left => return Err(fault("a Call in a Receive has no other way")),
        }
        if let Some(pull) = pull {
            self.put_pull(pass.core, pull);
        }
        Ok(())
    }

    /// A service has answered something that was no refusal.
    #[inline(always)]
    pub(crate) fn note_service(&mut self, now: Duration) {
        self.served = Some(now);
    }

    /// Keeps a Call in its slot.
    #[inline]
    pub(crate) fn keep(&mut self, id: ResponderCallId, xid: u32, stage: Stage) {
        debug_assert!(self.slots[id.index()].is_none(), "a slot has one Call");
        self.pending += 1;
        self.slots[id.index()] = Some(Pending::new(id, xid, stage));
    }

    /// A Call that was left for later is answered. `false`: that Call is gone.
    pub(crate) fn finish<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        token: Token,
        fill: &mut dyn FnMut(&mut Reply<'_>),
    ) -> Result<bool, CloseReason> {
        // A token of a Call that was dropped, or of an earlier connection in this place.
        let Some(LateCall { id: call_id, terms, message, pull }) = self.take_later(core, token) else {
            return Ok(false);
        };
        let header;
        let octets = match &message {
            Some(message) => &message[..],
            None => {
                header = self.responder.header_of(call_id);
                &header[..]
            }
        };
        let Some(call) = self.responder.call(call_id, octets) else {
            terms.give_up(core);
            return Err(fault("a Call in a slot is not in process"));
        };
        let xid = call.xid();
        self.share.is_last_try = pull.as_ref().is_some_and(|pull| pull.is_last_try);
        let link = Link { id: token.connection, peer: None };
        let ran = answer_later(core, &mut Received::new(self, link, &call, octets), token, terms, fill);
        self.share.is_last_try = false;
        match (ran?, message) {
            (Served::Lacks(pages), Some(message)) => {
                self.starve(core, call_id, xid, message, pull, pages);
                return Ok(true);
            }
            (Served::Lacks(_), None) => return Err(fault("a Call without a Reply chunk has a Long Reply")),
            (_, Some(message)) if self.version2.is_some() => keep_unsent(self, call_id, message),
            _ => {}
        }
        if let Some(pull) = pull {
            self.put_pull(core, pull);
        }
        Ok(true)
    }

    /// A Call that was left for later is not answered at all.
    #[cold]
    pub(crate) fn drop_later<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId, token: Token) {
        if let Some(late) = self.take_later(core, token) {
            if let Some(pull) = late.pull {
                self.put_pull(core, pull);
            }
            self.discard(core, id, late.id);
        }
    }

    /// Takes a Call that was left for later out of its slot.
    fn take_later<P>(&mut self, core: &mut Core<P>, token: Token) -> Option<LateCall> {
        let is_it = |kept: &mut Pending| kept.xid == token.xid && kept.is_answered_later();
        let kept = self.slots.get_mut(token.slot as usize)?.take_if(is_it)?;
        self.pending -= 1;
        let id = kept.id;
        let late = match kept.into_stage() {
            Stage::Later { message, pull, terms } => LateCall { id, terms, message: Some(message), pull },
            Stage::Carried(CarriedCall { terms, held, .. }) => {
                // As for any Call: its Receive counts as spent, and the one that is posted still as its successor.
                core.credits.hold(self.account, self.held, self.held + 1);
                self.held += 1;
                core.transit.give(&mut self.share, held as usize);
                LateCall { id, terms, message: None, pull: None }
            }
            Stage::Repeated { message } => {
                LateCall { id, terms: ReplyPolicy::ENGINE, message: Some(message), pull: None }
            }
            // It waits for no answer (`Pending::is_answered_later`).
            Stage::Pulling { .. } | Stage::Unsent { .. } => {
                core.fault(token.connection, "a Call in a slot was answered that waits for no answer");
                return None;
            }
        };
        core.transit.expect_no_more(&mut self.share, late.terms.pages as usize);
        Some(late)
    }

    /// Drops a Call without an answer.
    fn discard<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId, call: ResponderCallId) {
        let was_in_process = self.responder.discard(call);
        debug_assert!(was_in_process, "a Call is dropped once");
        self.replenish(core, id);
    }

    /// Tries again what found no room. Returns how much was posted.
    #[inline]
    pub(crate) fn flush<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
    ) -> Result<usize, CloseReason> {
        let mut count = 0;
        while let Some(draft) = self.blocked.pop_front() {
            if draft.has_grown() {
                pass.core.transit.give_list(&mut self.share);
            }
            let before = self.blocked.len();
            self.post(pass.core, link.id, draft)?;
            if self.blocked.len() > before {
                break;
            }
            self.progress.step();
            count += 1;
        }
        for _ in 0..self.waiting.len() {
            let Some(slot) = self.waiting.pop_front() else { break };
            if slot == RECEIVES_OWED {
                self.post_owed(pass.core, link.id);
                continue;
            }
            // Its last Read may have been done meanwhile, and the Call answered.
            let Some(call_id) = self.slots[slot as usize].as_ref().map(|pending| pending.id) else {
                continue;
            };
            if self.version2.is_some() && send_unsent(self, pass.core, link.id, call_id)? {
                continue;
            }
            self.advance(pass, link, call_id)?;
            // One that waits again made no progress that is worth another pass.
            count += usize::from(self.waiting.back() != Some(&slot));
        }
        if !self.awaiting_memory.is_empty() {
            count += self.feed(pass, link)?;
        }
        while !self.has_to_wait(pass.core)
            && let Some(message) = self.stalled.pop_front()
        {
            if self.version2.is_some() {
                if !take_stalled(self, pass, link, message)? {
                    break;
                }
            } else {
                self.take_in(pass, link, message)?;
            }
            count += 1;
        }
        Ok(count)
    }

    /// The connection is gone, and all its posted buffers are back: lets go of the rest.
    pub(crate) fn close<P>(mut self, core: &mut Core<P>, id: ConnectionId) {
        core.credits.hold(self.account, self.held, 0);
        if let Some(account) = self.account {
            core.credits.close(account, &self.governor);
        }
        core.duplicates.close(id);
        core.seals.close(id);
        // Its message did not come to be taken in: one before it ended the connection.
        if let Some(Begun { xid, slot, terms, draft, pull }) = self.begun.take() {
            match (draft, terms.kept) {
                (Some(draft), kept) => {
                    core.put_draft(draft);
                    kept.into_iter().for_each(|entry| core.duplicates.forget(entry));
                }
                (None, Some(entry)) => core.duplicates.orphan(Token { connection: id, slot, xid }, entry),
                (None, None) => {}
            }
            if let Some(pull) = pull {
                self.put_pull(core, pull);
            }
        }
        if let Some(exposing) = self.exposing.take() {
            exposing.close(core);
        }
        if let Some(version2) = &mut self.version2 {
            version2.close(core);
        }
        self.responder.handle_disconnect(|_| {});
        for draft in self.blocked.drain(..) {
            core.put_draft(draft);
        }
        for (slot, pending) in (0..).zip(&mut self.slots) {
            let Some(pending) = pending.take() else { continue };
            let token = Token { connection: id, slot, xid: pending.xid };
            let (terms, pull) = match pending.into_stage() {
                Stage::Later { terms, pull, .. } => (Some(terms), pull),
                Stage::Carried(carried) => (Some(carried.terms), None),
                Stage::Pulling { pull, .. } => (None, Some(pull)),
                Stage::Repeated { .. } | Stage::Unsent { .. } => (None, None),
            };
            if let Some(entry) = terms.and_then(|terms| terms.kept) {
                core.duplicates.orphan(token, entry);
            }
            if let Some(mut pull) = pull {
                pull.held = 0;
                core.put_pull(pull);
            }
        }
        core.transit.close(&mut self.share);
    }

    /// Takes a Call out of its slot.
    pub(crate) fn release_slot(&mut self, id: ResponderCallId) -> Option<Pending> {
        let pending = self.slots[id.index()].take()?;
        self.pending -= 1;
        Some(pending)
    }

    /// Takes a Call out of its slot that is not to be pulled any further.
    fn release<P>(&mut self, core: &mut Core<P>, id: ResponderCallId) {
        if let Some(Stage::Pulling { pull, .. }) = self.release_slot(id).map(Pending::into_stage) {
            self.put_pull(core, pull);
        }
    }
}

/// Where a Call in a Receive comes in.
#[inline(always)]
fn origin<'c>(state: &EngineState, link: Link<'c>, call: &responder::ReceivedCall<'_>) -> Origin<'c> {
    let Link { id: connection, peer } = link;
    Origin { connection, slot: call.id.index() as u32, peer, local: None, now: state.now }
}
