//! The server half of a connection: drives the Responder, pulls chunks, runs services, sends Replies.
//!
//! ```text
//!  Receive ─▶ Responder ─▶ [pull Position Zero] ─▶ [pull data chunks] ─▶ service ─▶ Writes, Send
//!                                                                           └▶ later ─┘
//! ```

pub(crate) mod answering;
mod carrying;
mod exposing;
mod pulls;
mod receives;

pub(crate) use carrying::{ArrivedSingle, Carriage, Delivery};

use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::Provider;
use stag_memory::Buf;
use stag_proto::parameters::Parameters;
use stag_proto::responder::{
    self, CallPayload, ChunkError, ChunkLimits, RefusedCall, Responder, ResponderCallId, ResponderConfig,
    ResponderReceived,
};
use stag_wire::rpcrdma::{HEADER_LEN_MIN, SingleChunk};
use stag_wire::xdr::{Reader, Reduced};

use self::answering::warn_of_length;
use self::exposing::Exposing;
use crate::ConnectionId;
use crate::carried::{CarriedRoom, Destination};
use crate::client::CloseReason;
use crate::config::{EngineConfig, SEGMENTS_MAX, SPARE_RECEIVES};
use crate::fault::fault;
use crate::in_place::Begun;
use crate::server::client_log::ClientHost;
use crate::server::draft::Draft;
use crate::server::eviction::ConnectionUse;
use crate::server::governor::CreditGovernor;
use crate::server::pending::{CarriedCall, Pending, Stage};
use crate::server::progress::Progress;
use crate::server::pulling::{Pull, READ_CHUNKS_MAX, may_pull, read_at_once};
use crate::server::spares::Reused;
use crate::server::transit::TransitShare;
use crate::service::call::Placed;
use crate::service::dispatch::{Admission, Origin, ReplyPolicy, Route, admit, destination, route};
use crate::service::reply::{Reply, reply_chunk_len};
use crate::service::{Services, Token};
use crate::state::{Core, EngineState, Link, Pass};
use crate::version2::ServerVersion2;
use crate::version2::serving::RECEIVES_OWED;

/// The server half of a connection.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) responder: Responder,
    pub(crate) slots: Box<[Option<Pending>]>,
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
    pub(crate) pending: u32,
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

/// A Call that is here with its Payload stream, and where it came in.
pub(crate) struct Arrived<'a> {
    pub(crate) link: Link<'a>,
    pub(crate) call: &'a responder::ReceivedCall<'a>,
    pub(crate) message: &'a [u8],
    pub(crate) stream: &'a [u8],
}

/// The Reply of a Call that was executed cannot be sent. It is kept for who sends the Call again, if it can be.
#[cold]
fn drop_reply<P>(core: &mut Core<P>, terms: ReplyPolicy, draft: Box<Draft>) {
    if let Some(entry) = terms.kept {
        core.state.duplicates.keep(entry, &draft, &mut core.state.statistics);
    }
    core.put_draft(draft);
}

/// A Call that was left for later, out of its slot.
struct LateCall {
    id: ResponderCallId,
    terms: ReplyPolicy,
    /// `None`: it was carried from where it arrived.
    message: Option<Buf>,
    pull: Option<Box<Pull>>,
}

/// A Call that its service answers later, or once more.
pub(crate) struct Unanswered {
    pub(crate) terms: ReplyPolicy,
    /// What it pulled.
    pub(crate) pull: Option<Box<Pull>>,
    /// Pages that its Reply waits for: its service has answered, and will again.
    pub(crate) lacks: Option<u32>,
}

/// What became of a Call that was run.
pub(crate) enum Ran {
    Answered,
    Later(ReplyPolicy),
    /// It is another's retransmission, and waits for the answer to that: its data is not needed.
    Waits,
    /// Its client may not take the memory for its Reply now. The pages needed: it waits for them, and is executed again.
    Lacks(u32),
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
            && self.is_exposing_nothing()
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

    /// Whether the client has left too many results untaken, so that its next Calls wait.
    #[inline]
    pub(crate) fn is_over_limit(&self, state: &EngineState) -> bool {
        state.transit.is_over_limit(&self.share, &state.pools.payload)
    }

    /// Takes in a message, now or when there is memory to answer it. `Err`: the connection has to end.
    #[inline]
    pub(crate) fn receive<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        message: Buf,
    ) -> Result<(), CloseReason> {
        // One whose handler ran already has its buffers.
        if self.begun.is_none()
            && (pass.core.is_short() || !self.stalled.is_empty() || self.is_over_limit(pass.core))
        {
            // What ends the wait must not wait itself.
            if let Some(message) = self.take_done(pass.core, link.id, message, None)? {
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
        if self.begun.is_none() {
            self.note_arrival(&mut pass.core.state);
        }
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
                    match self.take_done(pass.core, link.id, message, None)? {
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
        pass.core.statistics.calls_received += 1;
        let call_id = call.id;
        if self.exposing.is_some() {
            self.supersede(pass.core, link.id, call.xid());
        }
        if let Some(begun) = self.begun.take() {
            pass.core.statistics.messages_short += 1;
            let xid = call.xid();
            if let Some(unanswered) = self.go_on(pass.core, link.id, begun, call, &message)? {
                self.keep_unanswered(pass.core, call_id, xid, message, unanswered);
            }
            return Ok(());
        }
        if pass.core.refused_calls.has(link.peer, call.xid(), pass.core.now) {
            drop(message);
            return self.refuse(pass.core, link.id, call_id, RefusedCall::EndedConnection).map(|_| ());
        }
        if let CallPayload::Inline(stream) = call.payload {
            let chunks = call.read_chunk_count();
            let read = match call.single() {
                Some(SingleChunk::Read(read)) => Some(read),
                _ => None,
            };
            let reduced = read.map(|read| Reduced::read_chunk(0, read.position, read.segment.length));
            let routed = route(pass.services, Reader::with_reduced(stream, reduced.as_slice()));
            let arrived = Arrived { link, call, message: &message, stream };
            let (ran, pull) = if chunks == 0 {
                pass.core.statistics.messages_short += 1;
                (self.run(pass, &arrived, &routed, &mut [])?, None)
            } else if !may_pull(&routed, chunks) {
                // Whatever is wrong with it, its data is not needed to say so.
                match self.run(pass, &arrived, &routed, &mut [])? {
                    Ran::Answered => return Ok(()),
                    Ran::Lacks(pages) => {
                        self.starve(pass.core, call_id, call.xid(), message, None, pages);
                        return Ok(());
                    }
                    // Not even a Call that comes again: its procedure may have fewer chunks, or is not served.
                    Ran::Later(_) | Ran::Waits => {
                        return Err(fault("a Call was given to a service without its data"));
                    }
                }
            } else if let Some(read) = read
                && !self.has_waiting()
                && let Some((buf, pages)) = read_at_once(pass.core, &self.share, link.id, read)
            {
                self.run_with_data(pass, &arrived, &routed, (buf, pages))?
            } else {
                return self.pull(pass, link, call_id, message);
            };
            match ran {
                Ran::Answered => {}
                Ran::Later(terms) => self.keep(call_id, call.xid(), Stage::Later { message, pull, terms }),
                Ran::Waits => self.keep(call_id, call.xid(), Stage::Repeated { message }),
                Ran::Lacks(pages) => self.starve(pass.core, call_id, call.xid(), message, pull, pages),
            }
            return Ok(());
        }
        self.pull(pass, link, call_id, message)
    }

    /// Keeps a Call whose handler ran where the message arrived, and that is not answered.
    #[cold]
    pub(crate) fn keep_unanswered<P>(
        &mut self,
        core: &mut Core<P>,
        id: ResponderCallId,
        xid: u32,
        message: Buf,
        unanswered: Unanswered,
    ) {
        let Unanswered { terms, pull, lacks } = unanswered;
        match lacks {
            None => self.keep(id, xid, Stage::Later { message, pull, terms }),
            Some(pages) => self.starve(core, id, xid, message, pull, pages),
        }
    }

    /// Goes on with a Call whose handler ran where the message arrived. `Some`: keep it, and answer later.
    #[cold]
    pub(crate) fn go_on<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        begun: Begun,
        call: &responder::ReceivedCall<'_>,
        message: &Buf,
    ) -> Result<Option<Unanswered>, CloseReason> {
        debug_assert_eq!(begun.xid, call.xid(), "it comes with the next message");
        let Some(mut draft) = begun.draft else {
            return Ok(Some(Unanswered { terms: begun.terms, pull: begun.pull, lacks: None }));
        };
        if self.is_group(message) {
            // Its payload is behind a longer header than that of the Reply may be.
            if draft.send.is_none() && !draft.take_send(&core.pools.messages) {
                drop_reply(core, begun.terms, draft);
                return Err(CloseReason::CannotReply);
            }
            self.conclude_group(core, id, call, message, begun.terms, draft)?;
            return Ok(None);
        }
        if let Some(pages) = self.lacked_pages(call, begun.terms, &draft) {
            core.put_draft(draft);
            return Ok(Some(Unanswered { terms: begun.terms, pull: begun.pull, lacks: Some(pages) }));
        }
        draft.header_len = match self.responder.plan_reply(call.id, message, &[], 0) {
            Ok(form) => form.header_len as usize,
            Err(error) => {
                drop_reply(core, begun.terms, draft);
                return self.refuse(core, id, call.id, RefusedCall::Reply(error)).map(|_| None);
            }
        };
        if draft.send.is_none() && !draft.take_send(&core.pools.messages) {
            drop_reply(core, begun.terms, draft);
            return Err(CloseReason::CannotReply);
        }
        match self.base_room(core, message) {
            None => self.conclude(core, id, call, message, begun.terms, draft)?,
            Some(_) => self.conclude_base(core, id, call, message, begun.terms, draft)?,
        }
        Ok(None)
    }

    /// Whether a Call that requests these credits may be answered in place: nothing else comes first.
    #[inline(always)]
    pub(crate) fn may_answer_in_place(&self, state: &EngineState, requested: u32) -> bool {
        self.held == self.wanted(requested)
            && self.governor.is_current(&state.credits)
            && !self.has_waiting()
            && self.begun.is_none()
            && !self.is_over_limit(state)
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

    /// Runs a Call whose Payload stream and data are here, and sends its Reply. `items` is the data.
    #[inline]
    pub(crate) fn run<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        arrived: &Arrived<'_>,
        routed: &Route<'_>,
        items: &mut [Placed],
    ) -> Result<Ran, CloseReason> {
        let &Arrived { link: Link { id, peer }, call, message, stream } = arrived;
        let run = match routed {
            Route::Run(run) => run,
            Route::Drop => {
                self.discard(pass.core, id, call.id);
                return Ok(Ran::Answered);
            }
            Route::Refuse(refusal) => {
                return self.answer(pass.core, id, call, message, ReplyPolicy::ENGINE, |reply| {
                    reply.header(refusal);
                    Ran::Answered
                });
            }
        };
        self.host.note(&run.head.caller);
        let procedure = run.procedure;
        if call.read_chunk_count() > usize::from(procedure.eligible_arguments) {
            // 8166-6.1-c
            return self.refuse(pass.core, id, call.id, RefusedCall::Ineligible);
        }
        if self.version2.is_some()
            && let Some(why) = self.reply_obstacle(call, message, procedure)
        {
            return self.refuse(pass.core, id, call.id, RefusedCall::Reply(why));
        }
        let origin =
            Origin { connection: id, slot: call.id.index() as u32, peer, local: None, now: pass.core.now };
        if let Some(carrier) = pass.core.carrier.as_deref()
            && let Some(destination) = destination(carrier, pass.services, run, &origin)
        {
            return self.carry(
                pass.core,
                arrived,
                ReplyPolicy::of(run),
                destination,
                (run.head.arguments.reduced(), items),
            );
        }
        let token = Token { connection: id, slot: origin.slot, xid: call.xid() };
        let terms = match admit(pass.core, run, token, stream, items, peer) {
            Admission::Execute(terms) => terms,
            Admission::Repeat(kept) => {
                return self.answer(pass.core, id, call, message, ReplyPolicy::ENGINE, |reply| {
                    reply.repeat(&kept);
                    Ran::Answered
                });
            }
            Admission::Wait => return Ok(Ran::Waits),
            Admission::Drop => {
                self.discard(pass.core, id, call.id);
                return Ok(Ran::Answered);
            }
        };
        self.answer(pass.core, id, call, message, terms, |reply| {
            match run.call(pass.services, &origin, items, reply) {
                true => Ran::Answered,
                false => Ran::Later(terms),
            }
        })
    }

    /// Leaves a Call to another reactor. The answer comes late.
    fn carry<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        arrived: &Arrived<'_>,
        terms: ReplyPolicy,
        destination: Destination,
        (reduced, items): (&[Reduced], &mut [Placed]),
    ) -> Result<Ran, CloseReason> {
        let &Arrived { link: Link { id, peer }, call, message, stream } = arrived;
        if destination == Destination::All && terms.procedure.has_eligible_items() {
            return self.answer(core, id, call, message, terms, |reply| {
                reply.system_error();
                Ran::Answered
            });
        }
        let header_len = match call.is_plain() {
            true => HEADER_LEN_MIN,
            false => match self.responder.plan_reply(call.id, message, &[], 0) {
                Ok(form) => form.header_len as usize,
                Err(error) => return self.refuse(core, id, call.id, RefusedCall::Reply(error)),
            },
        };
        let base = self.base_room(core, message);
        let inline_len_max =
            base.map_or(self.responder.parameters().reply_threshold as usize, |base| base.inline_len_max);
        let eligible = usize::from(terms.procedure.eligible_results);
        let group = self.group_room(message);
        let room = CarriedRoom {
            inline_len_max: inline_len_max.saturating_sub(header_len) as u32,
            reply_chunk_len: match (&group, &base) {
                (Some(group), _) => group.long_len_max as u32,
                (None, Some(base)) => {
                    (reply_chunk_len(call).max(base.send_len_max.saturating_sub(header_len))) as u32
                }
                (None, None) => (reply_chunk_len(call) as u32).max(self.share.exposed_len_max),
            },
            is_stream: false,
            wants_few_pieces: !core.transit.may_list(&self.share),
            is_last_try: self.share.is_last_try,
            write_chunks: match &group {
                Some(group) => group.item_room.into_iter().take(eligible).collect(),
                None => (0..eligible).map_while(|item| call.write_room(item)).collect(),
            },
        };
        let token = Token { connection: id, slot: call.id.index() as u32, xid: call.xid() };
        let Some(carrier) = &mut core.carrier else {
            return Err(fault("a Call is carried by a reactor that is alone"));
        };
        let lent = carrier.send_call(destination, &token, (peer, None), &room, (stream, reduced, items));
        core.statistics.calls_carried += 1;
        core.statistics.pieces_lent += lent;
        Ok(Ran::Later(terms))
    }

    /// A Call that was left for later is answered. `false`: that Call is gone.
    pub(crate) fn finish<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        token: Token,
        fill: impl FnOnce(&mut Reply<'_>),
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
        let ran = self.answer(core, id, &call, octets, terms, |reply| {
            fill(reply);
            Ran::Answered
        });
        self.share.is_last_try = false;
        let ran = ran?;
        if let Ran::Lacks(pages) = ran {
            let Some(message) = message else {
                return Err(fault("a Call without a Reply chunk has a Long Reply"));
            };
            self.starve(core, call_id, xid, message, pull, pages);
            return Ok(true);
        }
        if let Some(pull) = pull {
            self.put_pull(core, pull);
        }
        if self.version2.is_some()
            && let Some(message) = message
        {
            self.keep_unsent(call_id, message);
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
            if self.version2.is_some() && self.send_unsent(pass.core, link.id, call_id)? {
                continue;
            }
            self.advance(pass, link, call_id)?;
            // One that waits again made no progress that is worth another pass.
            count += usize::from(self.waiting.back() != Some(&slot));
        }
        if !self.awaiting_memory.is_empty() {
            count += self.feed(pass, link)?;
        }
        while !pass.core.is_short()
            && !self.is_over_limit(pass.core)
            && let Some(message) = self.stalled.pop_front()
        {
            if self.version2.is_some() {
                if !self.take_stalled(pass, link, message)? {
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
        // Its message did not come to be taken in: one before it ended the connection.
        if let Some(Begun { xid, terms, draft, pull }) = self.begun.take() {
            let slot = self.responder.next_slot();
            match (draft, terms.kept) {
                (Some(draft), _) => drop_reply(core, terms, draft),
                (None, Some(entry)) => core.duplicates.orphan(Token { connection: id, slot, xid }, entry),
                (None, None) => {}
            }
            if let Some(pull) = pull {
                self.put_pull(core, pull);
            }
        }
        self.close_exposing(core);
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
