//! The client half of a connection: drives the Requester, and holds the memory of its Calls.

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{Exposed, Fence, Handle, PostError, Provider, SendRequest};
use stag_memory::{Buf, Shared};
use stag_proto::parameters::Parameters;
use stag_proto::plan::{Form, Shape};
use stag_proto::requester::{
    self, ChunkLists, Config, Failure, Memory, Outcome, Payload, Received, Requester,
};
use stag_wire::rpc::{CallHeader, OpaqueAuth, flavor};
use stag_wire::xdr::{Overflow, Writer};

use crate::ConnectionId;
use crate::client::offering::{Lists, WriteCounts, emit_chunks};
use crate::client::reconnect::ClientPolicy;
use crate::client::retransmission::{Kept, Standing};
use crate::client::slot::{Ending, Slot};
use crate::client::{
    CLIENT_SEGMENTS_MAX, CallError, CallId, CallRefused, Chunks, CompletedCall, Credentials, Request,
};
use crate::config::{EngineConfig, SEGMENTS_MAX, SPARE_RECEIVES};
use crate::few::Few;
use crate::service::reply::LONG_REPLY_LEN_MAX;
use crate::state::Core;

/// Octets of a header without chunks.
pub(crate) const HEADER_LEN_MIN: u32 = stag_wire::rpcrdma::HEADER_LEN_MIN as u32;

/// Positions of a Call's reduced arguments, in order.
pub(crate) type Positions = ArrayVec<u32, CLIENT_SEGMENTS_MAX>;

/// Octets of an accepted RPC Reply before its results: xid, type, status, an empty verifier, status. An error
/// reply is no longer than this but for PROG_MISMATCH's and RPC_MISMATCH's two words.
const REPLY_HEADER_LEN_MAX: u32 = 24 + 8;

/// Largest Long Call that a client makes, in octets.
const LONG_CALL_LEN_MAX: usize = 1 << 20;

/// The client half of a connection.
#[derive(Debug)]
pub(crate) struct Calling {
    pub(crate) requester: Requester,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) receives_posted: u32,
    receives_max: u32,
    /// Calls that are not over.
    pub(crate) outstanding: u32,
    /// Memory regions that are exposed, of all Calls, and how many the queue pair may have.
    pub(crate) exposed: u32,
    pub(crate) exposures_max: u32,
    /// Of the Call that is being made.
    pub(crate) lists: Lists,
    /// What its user calls the connection.
    pub(crate) name: ConnectionId,
    pub(crate) policy: ClientPolicy,
    /// What sending each Call again takes; empty if there is no other connection after this one.
    pub(crate) kept: Box<[Kept]>,
    /// Calls that wait for the next connection, or for a credit on it.
    pub(crate) interrupted: u32,
    /// Calls whose message found no room in the send queue.
    pub(crate) unsent: u32,
    /// When the last message came.
    pub(crate) heard: Duration,
    /// Since when Calls are in flight without a pause, as `keep_alive` saw it first.
    pub(crate) busy_since: Option<Duration>,
    /// A keep-alive is outstanding.
    pub(crate) probing: bool,
}

impl Calling {
    /// The client half of the connection that its user calls `name`.
    pub(crate) fn new(
        config: &EngineConfig,
        parameters: Parameters,
        seed: u32,
        name: ConnectionId,
        policy: ClientPolicy,
    ) -> Calling {
        // Twice the credits: a Call whose Reply came may still wait for fences while the next one starts.
        let slots = config.credits_max * 2;
        Calling {
            requester: Requester::new(&Config {
                slots,
                parameters,
                credits_requested: config.credits_max,
                segments_max: SEGMENTS_MAX,
                xid_seed: seed,
            }),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            receives_posted: 0,
            receives_max: config.credits_max + SPARE_RECEIVES,
            outstanding: 0,
            exposed: 0,
            exposures_max: config.capacity().exposures,
            lists: Lists::default(),
            name,
            policy,
            kept: (0..if policy.reconnect.is_some() { slots } else { 0 }).map(|_| Kept::default()).collect(),
            interrupted: 0,
            unsent: 0,
            heard: Duration::ZERO,
            busy_since: None,
            probing: false,
        }
    }

    #[inline]
    pub(crate) fn credits_available(&self) -> u32 {
        // Calls that were there before come first.
        if self.interrupted > 0 {
            return 0;
        }
        self.requester.available().saturating_sub(self.credits_reserved())
    }

    /// Credits that no Call of a user gets: one for a keep-alive (8267-6.7.2-a), but not the only one.
    #[inline]
    fn credits_reserved(&self) -> u32 {
        let window = self.requester.window();
        let several = window.granted().min(window.requested()) > 1;
        u32::from(several && !self.probing && self.policy.keep_alive.is_some())
    }

    pub(crate) fn credits_granted(&self) -> u32 {
        self.requester.window().granted()
    }

    pub(crate) fn has_deadline(&self) -> bool {
        self.outstanding > 0
    }

    /// Posts Receives until there is one for each credit (8166-3.3.1-e).
    // Always inline: it is one turn of the loop for each Reply.
    #[inline(always)]
    pub(crate) fn post_receives<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        while self.receives_posted < self.receives_max {
            let Some(buf) = core.pools.messages.take() else { return };
            if core.provider.post_receive(id, 0, buf).is_err() {
                return;
            }
            self.receives_posted += 1;
        }
    }

    /// Whether Receives are posted for that many Replies (8166-3.3.1-e). Tries to post them, if not.
    #[inline]
    pub(crate) fn has_receives<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        replies: u32,
    ) -> bool {
        if self.receives_posted < replies {
            self.post_receives(core, id);
        }
        self.receives_posted >= replies
    }

    /// Begins a Call. See [`crate::Engine::call`].
    #[inline]
    pub(crate) fn call<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        request: &Request<'_>,
        chunks: &mut Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<CallId, CallRefused> {
        // Calls that were there before come first.
        if self.interrupted > 0 {
            return Err(CallRefused::NoCredit);
        }
        let call = self.make(core, id, request, chunks, false, encode)?;
        Ok(CallId { connection: self.name, call })
    }

    /// Makes a Call and sends it. `probe`: it is a keep-alive.
    pub(crate) fn make<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        request: &Request<'_>,
        chunks: &mut Chunks,
        probe: bool,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<requester::CallId, CallRefused> {
        let reserved = if probe { 0 } else { self.credits_reserved() };
        let Some(call) = self.requester.begin_beyond(reserved) else {
            return Err(CallRefused::NoCredit);
        };
        if let Err(refused) = self.make_begun(core, id, request, chunks, probe, encode, call) {
            let _ = self.requester.abandon(call);
            return Err(refused);
        }
        Ok(call)
    }

    /// Makes a Call that was begun. An error: nothing was exposed or sent.
    #[allow(clippy::too_many_arguments, reason = "the rest of `make`")]
    #[inline]
    fn make_begun<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        request: &Request<'_>,
        chunks: &mut Chunks,
        probe: bool,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
        call: requester::CallId,
    ) -> Result<(), CallRefused> {
        if chunks.read.len() > CLIENT_SEGMENTS_MAX || chunks.write.len() > CLIENT_SEGMENTS_MAX {
            return Err(CallRefused::TooManySegments);
        }
        // 8166-3.3.1-e: a Receive for the Reply comes before the Call.
        if !self.has_receives(core, id, self.requester.window().in_flight()) {
            return Err(CallRefused::NoMemory);
        }
        if self.is_plain(request, chunks) && self.send_in_place(core, id, request, probe, &encode, call) {
            return Ok(());
        }
        let Some(mut send) = core.pools.messages.take() else {
            return Err(CallRefused::NoMemory);
        };
        let threshold = self.requester.parameters().call_threshold as usize;
        send.set_len(threshold.min(send.capacity()));
        if self.is_plain(request, chunks) {
            // What most Calls are needs no plan, and nothing of what is in the way of one that does.
            let mut writer = Writer::new(&mut send[HEADER_LEN_MIN as usize..]);
            if write_payload(&mut writer, call.xid(), request, &encode).is_ok() {
                let len = writer.position();
                self.occupy(core, call, request, probe);
                self.keep(
                    call,
                    request,
                    &send[HEADER_LEN_MIN as usize..][..len],
                    &Positions::new(),
                    chunks,
                    None,
                );
                let form = Form { long: false, reply_chunk: false, header_len: HEADER_LEN_MIN };
                let emitted = self.requester.emit_call(call, &form, &ChunkLists::default(), &mut send);
                // The buffers of messages have room for a header.
                let Ok(header_len) = emitted else { unreachable!("the Call is not as planned: {emitted:?}") };
                send.set_len(header_len + len);
                if self.send(core, id, call, send) {
                    core.statistics.messages_short += 1;
                }
                return Ok(());
            }
        }
        self.make_planned(core, id, request, chunks, probe, &encode, call, send)
    }

    /// Whether a Call has no chunks, and its Reply is sure to fit inline. It may still be too long itself.
    #[inline]
    fn is_plain(&self, request: &Request<'_>, chunks: &Chunks) -> bool {
        let len = reply_payload_len_max(request).saturating_add(HEADER_LEN_MIN);
        chunks.is_empty() && len <= self.requester.parameters().reply_threshold
    }

    /// Makes a Call that was begun, with chunks, or with a Payload or a Reply that may not fit inline. An error: nothing was
    /// exposed or sent.
    #[allow(clippy::too_many_arguments, reason = "the rest of `make`")]
    #[inline(never)]
    fn make_planned<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        request: &Request<'_>,
        chunks: &mut Chunks,
        probe: bool,
        encode: &dyn Fn(&mut Writer<'_>) -> Result<(), Overflow>,
        call: requester::CallId,
        mut send: Buf,
    ) -> Result<(), CallRefused> {
        let counts = WriteCounts::of(chunks.write.iter().map(|(chunk, _)| *chunk));
        let mut shape = Shape {
            payload_len: 0,
            prefer_long_call: false,
            read_segments: chunks.read.len() as u32,
            write_chunks: counts.as_slice(),
            reply_payload_len_max: reply_payload_len_max(request),
            long_call_segments: 1,
            reply_chunk_segments: 1,
        };
        let write = |space: &mut [u8]| {
            let mut writer = Writer::new(space);
            write_payload(&mut writer, call.xid(), request, encode)?;
            let reduced = writer.reduced_positions().iter().take(CLIENT_SEGMENTS_MAX);
            Ok((writer.position(), reduced.copied().collect()))
        };
        // The Payload goes straight behind the header, or, when it does not fit, into a Long Call's buffer. A plain
        // Call is only here because it does not.
        let mut inline = Err(Overflow);
        let mut form = Form { long: false, reply_chunk: false, header_len: HEADER_LEN_MIN };
        if !self.is_plain(request, chunks) {
            form = self.requester.plan(&shape).map_err(|_| CallRefused::TooManySegments)?;
            inline = write(&mut send[form.header_len as usize..]);
        }
        let mut long = None;
        let (payload_len, positions) = match inline {
            Ok(written) => written,
            Err(Overflow) => {
                shape.payload_len = u32::MAX;
                let (planned, buf, positions) = self.long_payload(core, &shape, write)?;
                form = planned;
                long = Some(buf);
                (0, positions)
            }
        };
        let (items, reduced) = (read_items(chunks), positions.len() as u32);
        if items != reduced {
            return Err(CallRefused::NotReduced { items, reduced });
        }
        let regions = chunks.read.len() + chunks.write.len();
        let regions = regions as u32 + u32::from(long.is_some()) + u32::from(form.reply_chunk);
        if self.exposed + regions > self.exposures_max {
            return Err(CallRefused::FabricBusy);
        }
        let mut reply_buf = None;
        if form.reply_chunk {
            let len = (shape.reply_payload_len_max as usize).min(LONG_REPLY_LEN_MAX);
            let mut buf = core.pools.payload.take_len(len).ok_or(CallRefused::NoMemory)?;
            buf.set_len(len);
            reply_buf = Some(buf);
        }

        self.occupy(core, call, request, probe);
        let long_call = long.is_some();
        let long = long.map(Buf::share);
        let payload = &send[form.header_len as usize..][..payload_len];
        self.keep(call, request, payload, &positions, chunks, long.as_ref());
        let (slot, lists) = (&mut self.slots[call.index()], &mut self.lists);
        let exposed = slot.expose(core, id, chunks, &positions, long, reply_buf, lists);
        self.exposed += slot.exposed_count();
        if let Err(error) = exposed {
            self.end_unsent(core, id, call, error, None);
            return Ok(());
        }
        let emitted = emit_chunks(&mut self.requester, call, &form, lists, counts.as_slice(), &mut send);
        // The plan above and the lists agree by construction.
        let Ok(header_len) = emitted else { unreachable!("the Call is not as planned: {emitted:?}") };
        send.set_len(header_len + payload_len);
        if self.send(core, id, call, send) {
            if long_call {
                core.statistics.position_zero_chunks += 1;
            } else {
                core.statistics.messages_short += 1;
            }
        }
        Ok(())
    }

    /// Notes in its slot what a Call is.
    // Always inline, as `send`: there is a copy of their caller for each kind of arguments, but not of its way.
    #[inline(always)]
    pub(crate) fn occupy<P>(
        &mut self,
        core: &Core<P>,
        call: requester::CallId,
        request: &Request<'_>,
        probe: bool,
    ) {
        let slot = &mut self.slots[call.index()];
        slot.call = Some(call);
        slot.user = request.user;
        slot.procedure = request.procedure;
        slot.started = core.now;
        slot.timeout = request.timeout;
        slot.ending = None;
        slot.probe = probe;
        if self.requester.window().in_flight() == 1 {
            self.busy_since = None;
        }
        self.outstanding += 1;
        self.probing |= probe;
    }

    /// Keeps what sending a Call again takes, if there may be another connection.
    #[inline]
    pub(crate) fn keep(
        &mut self,
        call: requester::CallId,
        request: &Request<'_>,
        payload: &[u8],
        positions: &Positions,
        chunks: &Chunks,
        long: Option<&Shared>,
    ) {
        let Some(kept) = self.kept.get_mut(call.index()) else { return };
        kept.retransmit = request.retransmit;
        if request.retransmit {
            let threshold = self.requester.parameters().call_threshold as usize;
            kept.keep(payload, positions, chunks, long, reply_payload_len_max(request), threshold);
        }
    }

    /// Posts a Call's message. `false`: it was refused, and the Call ends or waits.
    #[inline(always)]
    fn send<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: requester::CallId,
        message: Buf,
    ) -> bool {
        let request = SendRequest { id: 0, buf: message, invalidate: None, signaled: false };
        if let Err(refused) = core.provider.post_send(id, request) {
            self.end_unsent(core, id, call, refused.error, Some(refused.request.buf));
            return false;
        }
        core.statistics.calls_sent += 1;
        true
    }

    /// Encodes a Payload that does not fit inline (8166-3.5.3-a), and plans the Call anew for it.
    fn long_payload<P: Provider>(
        &self,
        core: &mut Core<P>,
        shape: &Shape<'_>,
        write: impl Fn(&mut [u8]) -> Result<(usize, Positions), Overflow>,
    ) -> Result<(Form, Buf, Positions), CallRefused> {
        let form = self.requester.plan(shape).map_err(|_| CallRefused::TooManySegments)?;
        let mut buf = core.pools.payload.take_len(LONG_CALL_LEN_MAX).ok_or(CallRefused::NoMemory)?;
        buf.set_len(LONG_CALL_LEN_MAX);
        let (len, positions) = write(&mut buf).map_err(|Overflow| CallRefused::TooLong)?;
        core.statistics.copied_bytes += len as u64;
        buf.set_len(len);
        buf.shrink_to(len);
        Ok((form, buf, positions))
    }

    /// Ends a Call that could not be exposed, or not sent although all of it was: then its message is there.
    /// Rare: the queues are sized for all credits. It ends as one that was not sent, and its memory comes back with
    /// its completion; one that is kept goes later.
    #[cold]
    fn end_unsent<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: requester::CallId,
        error: PostError,
        message: Option<Buf>,
    ) {
        let complete = message.is_some();
        let kept = self.kept.get_mut(call.index()).filter(|kept| kept.retransmit);
        match (kept, message) {
            (Some(_), Some(message)) => return self.set_unsent(core, call.index(), error, message),
            (Some(kept), None) if error == PostError::NotConnected => {
                kept.standing = Standing::Halfway;
                return;
            }
            // One that is not kept, or that the fabric has no room to expose: it ends.
            _ => {}
        }
        let slot = &mut self.slots[call.index()];
        slot.ending = Some(Ending::Failed(match error {
            PostError::NotConnected => CallError::NotSent,
            error => CallError::NotPosted(error),
        }));
        // The Requester was not told of these handles: their fences are awaited here.
        slot.withdrawn = !complete && slot.exposed_count() > 0;
        if slot.withdrawn {
            return;
        }
        let memory = self.requester.abandon(call);
        self.settle(core, id, call, memory);
    }

    /// Gives up a Call, with `error` as its end.
    pub(crate) fn cancel<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: requester::CallId,
        error: CallError,
    ) {
        let slot = &mut self.slots[call.index()];
        if slot.call != Some(call) || slot.ending.is_some() {
            return;
        }
        slot.ending = Some(Ending::Failed(error));
        // What was exposed of it is being fenced, or comes back with the end of the connection: it ends then.
        if slot.withdrawn {
            return;
        }
        let standing = self.kept.get_mut(call.index()).map(|kept| std::mem::take(&mut kept.standing));
        let memory = match standing.unwrap_or_default() {
            Standing::Halfway => return,
            Standing::Unsent(_) => {
                self.unsent -= 1;
                self.requester.abandon(call)
            }
            Standing::Interrupted => {
                self.interrupted -= 1;
                self.requester.cancel(call)
            }
            Standing::Plain => self.requester.cancel(call),
        };
        self.settle(core, id, call, memory);
    }

    /// Gives up all Calls whose time is over. `true`: a keep-alive is among them, and nothing else came since it
    /// was sent; the server is gone.
    pub(crate) fn expire<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) -> bool {
        if self.outstanding == 0 {
            return false;
        }
        let mut is_silent = false;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let elapsed = core.now.saturating_sub(slot.started);
            let Some(call) = slot.call.filter(|_| elapsed >= slot.timeout) else { continue };
            if !slot.probe {
                self.cancel(core, id, call, CallError::TimedOut);
            } else if self.heard > slot.started {
                // Slow, but alive.
                slot.started = core.now;
            } else {
                is_silent = true;
            }
        }
        is_silent
    }

    /// Takes in a message. `Err`: the connection has to end, and why.
    // Always inline: there is one caller, which has taken the completion apart already.
    #[inline(always)]
    pub(crate) fn receive<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        message: Buf,
        invalidated: Option<Handle>,
        exposed: &mut Option<Exposed>,
    ) -> Result<(), &'static str> {
        self.heard = core.now;
        // The Receive first: a Call that the Reply lets out brings back a Reply that needs one.
        self.receives_posted -= 1;
        self.post_receives(core, id);
        core.statistics.remote_invalidations += u64::from(invalidated.is_some());
        match self.requester.handle_receive(&message, invalidated.map(|handle| handle.0)) {
            Received::Reply(reply) => {
                let call = reply.call;
                let slot = &mut self.slots[call.index()];
                slot.ending = Some(match reply.payload {
                    Payload::Inline(payload) => Ending::Inline((message.len() - payload.len()) as u32),
                    Payload::Long(len) => {
                        core.statistics.reply_chunks += 1;
                        Ending::Long(len)
                    }
                });
                if !slot.written.is_empty() {
                    slot.chunk_lens = [0; CLIENT_SEGMENTS_MAX];
                    for (len, place) in reply.write_lens().zip(&mut slot.chunk_lens) {
                        *place = len;
                    }
                }
                let memory = reply.memory;
                slot.message = Some(message);
                if exposed.is_some() {
                    self.exposed -= slot.take_back(invalidated, exposed.take());
                }
                core.statistics.replies_received += 1;
                match memory {
                    Memory::Safe => self.finish(core, call),
                    Memory::Exposed => self.settle(core, id, call, memory),
                }
            }
            Received::Failed { call, failure, memory } => {
                let slot = &mut self.slots[call.index()];
                slot.ending = Some(Ending::Failed(match failure {
                    Failure::Version { low, high } => CallError::TransportVersion { low, high },
                    Failure::Chunk => CallError::Chunk,
                    Failure::Violation(_) => CallError::BadReply,
                }));
                self.exposed -= slot.take_back(invalidated, exposed.take());
                self.settle(core, id, call, memory);
            }
            Received::Late { call, memory } => {
                self.exposed -= self.slots[call.index()].take_back(invalidated, exposed.take());
                self.settle(core, id, call, memory);
            }
            Received::Dropped(_) => core.statistics.messages_discarded += 1,
            Received::Close(_) => {
                // Whose it was must get it back with the end of the connection all the same.
                let owner = self.slots.iter_mut().find(|slot| invalidated.is_some_and(|h| slot.exposes(h.0)));
                if let Some(slot) = owner {
                    self.exposed -= slot.take_back(invalidated, exposed.take());
                }
                return Err("its Send invalidated a handle that it must not (8797-X-2)");
            }
        }
        Ok(())
    }

    /// A fence is done.
    pub(crate) fn fenced<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        handle: Handle,
        exposed: Exposed,
    ) {
        // By handle, not by slot: at the end of a connection handles come back that nobody fenced.
        // None: the peer's Send invalidated it, and brought the memory back, while its fence was under way.
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.exposes(handle.0)) else { return };
        let call = slot.call;
        self.exposed -= slot.take_back(Some(handle), Some(exposed));
        let Some(call) = call else {
            core.fault(id, "memory of a Call that is over was exposed");
            return;
        };
        if slot.withdrawn {
            self.withdrawn(core, id, call.index());
        } else if let Some(memory) = self.requester.handle_fenced(call, handle.0) {
            self.settle(core, id, call, memory);
        }
    }

    /// The connection is gone, and all memory is back: every Call ends now.
    pub(crate) fn close<P: Provider>(mut self, core: &mut Core<P>) {
        let slots = &mut self.slots;
        let mut over: Vec<requester::CallId> = Vec::new();
        self.requester.handle_disconnect(|call, outcome| {
            let slot = &mut slots[call.index()];
            if slot.call == Some(call) {
                slot.ending.get_or_insert(Ending::Failed(match outcome {
                    Outcome::NotSent => CallError::NotSent,
                    _ => CallError::ConnectionLost,
                }));
                over.push(call);
            }
        });
        for call in over {
            self.finish(core, call);
        }
    }

    /// Fences what is left of a Call's memory, and ends the Call when nothing is.
    #[inline]
    pub(crate) fn settle<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: requester::CallId,
        mut memory: Memory,
    ) {
        if memory == Memory::Exposed {
            while let Some(handle) = self.requester.poll_fence(call) {
                core.statistics.local_fences += 1;
                match core.provider.fence(id, Handle(handle), u64::from(call.xid())) {
                    Some(Fence::Done(exposed)) => {
                        let slot = &mut self.slots[call.index()];
                        self.exposed -= slot.take_back(Some(Handle(handle)), Some(exposed));
                    }
                    Some(Fence::Pending) => continue,
                    // Not exposed any more: the connection is ending, and its completion carries the memory.
                    None => continue,
                }
                if let Some(now) = self.requester.handle_fenced(call, handle) {
                    memory = now;
                }
            }
        }
        if memory == Memory::Safe {
            self.finish(core, call);
        }
    }

    /// Hands a Call that is over to its user.
    #[inline]
    pub(crate) fn finish<P>(&mut self, core: &mut Core<P>, call: requester::CallId) {
        let slot = &mut self.slots[call.index()];
        // The late Reply of a cancelled Call, whose end was reported already.
        if slot.call != Some(call) {
            return;
        }
        let ending = slot.ending.take().unwrap_or_else(|| {
            // Its user waits for it, however it is.
            core.fault(self.name, "a Call is over, and nobody knows how");
            Ending::Failed(CallError::ConnectionLost)
        });
        slot.call = None;
        self.outstanding -= 1;
        if let Some(kept) = self.kept.get_mut(call.index()) {
            kept.clear();
        }
        if slot.probe {
            // All that counts is that something came.
            slot.probe = false;
            slot.message = None;
            self.probing = false;
            return;
        }
        let result = slot.results(ending, call, &mut core.statistics);
        core.statistics.calls_failed += u64::from(result.is_err());
        let written = if slot.written.is_empty() {
            Few::new()
        } else {
            debug_assert!(slot.written.iter().all(|part| part.buf.is_some()), "a Call is over, and exposed");
            slot.written.drain(..).filter_map(|part| Some((part.chunk, part.buf?))).collect()
        };
        slot.reply_chunk = None;
        core.completed.push_back(CompletedCall {
            call: CallId { connection: self.name, call },
            user: slot.user,
            procedure: slot.procedure,
            started: slot.started,
            result,
            written,
        });
    }
}

/// Octets that the Payload stream of a Call's Reply has at most.
#[inline]
fn reply_payload_len_max(request: &Request<'_>) -> u32 {
    request.results_len_max.saturating_add(REPLY_HEADER_LEN_MAX)
}

/// Items that the Read chunks are of: numbered from 0, ascending.
#[inline]
fn read_items(chunks: &Chunks) -> u32 {
    chunks.read.iter().last().map_or(0, |(item, _)| u32::from(*item) + 1)
}

/// Encodes a Call's RPC message.
#[inline]
pub(crate) fn write_payload(
    writer: &mut Writer<'_>,
    xid: u32,
    request: &Request<'_>,
    encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
) -> Result<(), Overflow> {
    CallHeader {
        xid,
        program: request.program,
        version: request.version,
        procedure: request.procedure,
        credential: match request.credentials {
            Credentials::None => OpaqueAuth::NONE,
            Credentials::Sys(body) => OpaqueAuth { flavor: flavor::AUTH_SYS, body },
        },
        verifier: OpaqueAuth::NONE,
    }
    .emit(writer)?;
    encode(writer)
}
