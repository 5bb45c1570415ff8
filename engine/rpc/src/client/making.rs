//! Makes a Call: its credit, its form, its memory, and its message.
//!
//! There are three ways, each of which decides whether a Call fits before anything is done:
//!
//! - without chunks ([`Calling::make_plain`]), where it leaves;
//! - with one chunk of one segment ([`Calling::make_single`]), where it leaves, or in a buffer if the fabric has no such place;
//! - by plan ([`Calling::make_planned`]): any other, in a buffer. A Call that is sent again leaves so, too
//!   ([`Calling::leave`]), and in version 2 data may go in the messages themselves.

use stag_fabric::{Exposed, PostError, Provider, Refused, SendRequest};
use stag_memory::{Buf, Shared};
use stag_proto::plan::{CallForm, PlanError, Shape};
use stag_proto::requester;
use stag_wire::rpc::{CallHeader, OpaqueAuth, flavor};
use stag_wire::rpcrdma::{ReadSegment, SINGLE_LEN, Segment, SingleChunk};
use stag_wire::xdr::{Overflow, Writer};

use crate::ConnectionId;
use crate::client::calling::{Calling, HEADER_LEN_MIN, Positions};
use crate::client::offering::{WriteCounts, emit_chunks, segment, write_buf};
use crate::client::slot::{CallKind, CallMemory, Ending, Stage, Written};
use crate::client::{CLIENT_SEGMENTS_MAX, CallError, CallId, CallRefused, Chunks, Credentials, Request};
use crate::security::client::make_sealed;
use crate::service::reply::LONG_REPLY_LEN_MAX;
use crate::state::{Core, EngineState};
use crate::version2::making::{EncodedCall, Made, make_group, make_lone};

/// Octets of an accepted RPC Reply before its results: xid, type, status, an empty verifier, status. An error
/// reply is no longer than this but for PROG_MISMATCH's and RPC_MISMATCH's two words.
const REPLY_HEADER_LEN_MAX: u32 = 24 + 8;

/// Largest Long Call that a client makes, in octets.
pub(crate) const LONG_CALL_LEN_MAX: usize = 1 << 20;

/// The form of a Call without chunks.
const PLAIN: CallForm = CallForm { long: false, reply_chunk: false, header_len: HEADER_LEN_MIN };

/// The form of a Call with one chunk of one segment.
const SINGLE: CallForm = CallForm { long: false, reply_chunk: false, header_len: SINGLE_LEN as u32 };

/// A Call with chunk lists that is ready to leave.
pub(crate) struct PlannedCall<'a> {
    pub(crate) form: &'a CallForm,
    /// Segments of each Write chunk.
    pub(crate) counts: &'a [u32],
    pub(crate) memory: CallMemory<'a>,
    /// Its message: the Payload stream, of this length, behind the header of the form.
    pub(crate) send: Buf,
    pub(crate) payload_len: usize,
}

/// Why a Call did not leave. Its message, if all of its memory is exposed.
pub(crate) struct Unsent {
    pub(crate) error: PostError,
    pub(crate) message: Option<Buf>,
}

/// Writes the arguments of a Call.
pub(crate) type Encoder<'e> = dyn Fn(&mut Writer<'_>) -> Result<(), Overflow> + 'e;

/// A Call in the making: it has a credit and an xid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Making<'a> {
    pub(crate) call: requester::RequesterCallId,
    /// The queue pair that it leaves on.
    pub(crate) id: ConnectionId,
    pub(crate) request: &'a Request<'a>,
    /// Who makes it.
    pub(crate) kind: CallKind,
}

/// The plan of a Call and the lists that are sent agree by construction.
pub(crate) const NOT_AS_PLANNED: &str = "the message of a Call is not as it was planned";

impl Making<'_> {
    /// Octets that the Payload stream of its Reply has at most.
    #[inline]
    pub(crate) fn reply_payload_len_max(&self) -> u32 {
        self.request.results_len_max.saturating_add(REPLY_HEADER_LEN_MAX)
    }

    /// Encodes its RPC message.
    #[inline]
    pub(crate) fn write_payload(
        &self,
        writer: &mut Writer<'_>,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<(), Overflow> {
        let Request { program, version, procedure, credentials, .. } = *self.request;
        let xid = self.call.xid();
        match credentials {
            Credentials::None => CallHeader::emit_anonymous(writer, xid, program, version, procedure)?,
            Credentials::Sys(body) => {
                let credential = OpaqueAuth { flavor: flavor::AUTH_SYS, body };
                let verifier = OpaqueAuth::NONE;
                CallHeader { xid, program, version, procedure, credential, verifier }.emit(writer)?;
            }
            // It is sealed once, in a buffer: there is no room for it anywhere else.
            Credentials::Own(_) => return Err(Overflow),
        }
        encode(writer)
    }
}

impl Calling {
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
        let call = self.make(core, id, request, chunks, CallKind::Usual, encode)?;
        Ok(CallId { connection: self.name, call })
    }

    /// Begins a reverse Call. See [`crate::Engine::call_back`].
    pub(crate) fn call_back<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        request: &Request<'_>,
        kind: CallKind,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<CallId, CallRefused> {
        let made = self.make(core, id, request, &mut Chunks::default(), kind, encode);
        // There is no plan without chunks for it.
        let call = made.map_err(|refused| match refused {
            CallRefused::TooManySegments => CallRefused::NotInline,
            refused => refused,
        })?;
        Ok(CallId { connection: self.name, call })
    }

    /// Makes a Call and sends it.
    pub(crate) fn make<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        request: &Request<'_>,
        chunks: &mut Chunks,
        kind: CallKind,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<requester::RequesterCallId, CallRefused> {
        let reserved = if kind == CallKind::KeepAlive { 0 } else { self.credits_reserved() };
        let Some(call) = self.requester.begin_beyond(reserved) else {
            return Err(CallRefused::NoCredit);
        };
        let making = Making { call, id, request, kind };
        if let Err(refused) = self.make_begun(core, &making, chunks, encode) {
            let _ = self.requester.abandon(call);
            return Err(refused);
        }
        Ok(call)
    }

    /// Makes a Call that was begun. An error: nothing was exposed or sent.
    #[inline]
    fn make_begun<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        making: &Making<'_>,
        chunks: &mut Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<(), CallRefused> {
        let len = making.reply_payload_len_max().saturating_add(HEADER_LEN_MIN);
        let is_short = len <= self.requester.parameters().reply_threshold;
        // It may still be too long itself.
        let is_plain = chunks.is_empty() && (is_short || self.leave_reply(making));
        // 8166-3.3.1-e: a Receive for the Reply comes before the Call.
        if !self.provide_receives(core, making.id, self.requester.window().in_flight()) {
            return Err(CallRefused::NoMemory);
        }
        let is_made = if is_plain {
            // What is built where it leaves cannot be recorded.
            core.recorder.is_none() && self.make_plain(core, making, &encode)
        } else {
            self.make_single(core, making, chunks, &encode)?
        };
        if is_made {
            return Ok(());
        }
        self.make_planned(core, making, chunks, &encode)
    }

    /// Makes a Call that was begun, without chunks, where it leaves. `false`: there is no room there, and nothing happened.
    #[inline(always)]
    fn make_plain<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        making: &Making<'_>,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> bool {
        let room = (self.requester.parameters().call_threshold - HEADER_LEN_MIN) as usize;
        let Core { provider, state } = core;
        let is_sent = provider.build_plain(making.id, |space| {
            let room = room.min(space.len());
            let mut writer = Writer::new(&mut space[..room]);
            making.write_payload(&mut writer, &encode).ok()?;
            let len = writer.position();
            if !self.kept.is_empty() {
                self.keep_apart(making, &space[..len], &[], &Chunks::default());
            }
            self.occupy(state, making);
            Some((self.requester.emit_plain(making.call), len))
        });
        if is_sent {
            state.statistics.calls_sent += 1;
            state.statistics.messages_short += 1;
        }
        is_sent
    }

    /// Takes a buffer for a Call's message, as long as the message may be.
    #[inline]
    fn take_message<P>(&self, core: &Core<P>) -> Result<Buf, CallRefused> {
        let mut send = core.pools.messages.take().ok_or(CallRefused::NoMemory)?;
        let threshold = self.requester.parameters().call_threshold as usize;
        send.set_len(threshold.min(send.capacity()));
        Ok(send)
    }

    /// Leaves a Reply that may not fit inline to the server, which exposes it if it does not. `false`: the Call needs a Reply
    /// chunk.
    #[cold]
    fn leave_reply(&mut self, making: &Making<'_>) -> bool {
        let (mode, len_max) = (making.request.reply_mode, making.reply_payload_len_max());
        self.pulls.as_mut().is_some_and(|pulls| pulls.leave_reply(making.call, mode, len_max))
    }

    /// Makes a Call that was begun, with one Read chunk of one piece or one Write chunk of one segment, and with a
    /// Payload and a Reply that fit inline. `false`: it is another, and nothing happened.
    #[inline(never)]
    fn make_single<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        making: &Making<'_>,
        chunks: &mut Chunks,
        encode: &dyn Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<bool, CallRefused> {
        let Making { call, id, .. } = *making;
        let is_write = chunks.read.is_empty();
        // The Reply returns a Write chunk.
        let reply_header_len = if is_write { SINGLE.header_len } else { PLAIN.header_len };
        let reply_len = making.reply_payload_len_max().saturating_add(reply_header_len);
        if reply_len > self.requester.parameters().reply_threshold || self.exposed >= self.exposures_max {
            return if self.version2.is_some() {
                make_lone(self, core, making, chunks, encode)
            } else {
                Ok(false)
            };
        }
        // What a kept Call is sent again with, as its memory is in other hands when it is built.
        let mut again = Chunks::default();
        if !self.kept.is_empty() {
            again.read = chunks.read.clone();
        }
        let Some(memory) = chunks.take_single() else { return Ok(false) };
        let length = match &memory {
            Exposed::Write(buf) => buf.len() as u32,
            Exposed::Read(data) => data.len() as u32,
        };
        let threshold = self.requester.parameters().call_threshold as usize;
        let mut memory = Some(memory);
        let Core { provider, state } = core;
        let is_sent = provider.build_exposing(id, &mut memory, |space, target| {
            let room = threshold.min(space.len());
            let (head, space) = space[..room].split_first_chunk_mut()?;
            let (payload_len, position) = self.write_single(making, (is_write, &again), encode, space)?;
            self.occupy(state, making);
            let chunk =
                self.note_exposed(state, call, segment(target, length), (!is_write).then_some(position));
            self.requester.emit_single_call(call, chunk, head);
            Some(SINGLE_LEN + payload_len)
        });
        if is_sent {
            state.statistics.calls_sent += 1;
            state.statistics.messages_short += 1;
            return Ok(true);
        }
        let Some(memory) = memory else {
            core.fault(making.id, "the memory of a Call is gone, and the Call was not sent");
            return Err(CallRefused::NoMemory);
        };
        self.post_single(core, making, (memory, length), chunks, (&again, encode))
    }

    /// As [`Calling::make_single`], by a message in a buffer. `memory`, of this number of octets, is put back to `chunks` if the
    /// Call is another.
    #[inline(never)]
    fn post_single<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        making: &Making<'_>,
        (memory, length): (Exposed, u32),
        chunks: &mut Chunks,
        (again, encode): (&Chunks, &Encoder<'_>),
    ) -> Result<bool, CallRefused> {
        let Making { call, id, .. } = *making;
        let is_write = matches!(memory, Exposed::Write(_));
        let mut send = match self.take_message(core) {
            Ok(send) => send,
            Err(refused) => {
                chunks.put_back(memory);
                return Err(refused);
            }
        };
        let built = self.write_single(making, (is_write, again), encode, &mut send[SINGLE_LEN..]);
        let Some((payload_len, position)) = built else {
            chunks.put_back(memory);
            return Ok(false);
        };
        self.occupy(core, making);
        let segment = match core.provider.expose(id, memory) {
            Ok(target) => segment(target, length),
            Err(refused) => {
                self.end_unexposed(core, making, refused);
                return Ok(true);
            }
        };
        let chunk = self.note_exposed(core, call, segment, (!is_write).then_some(position));
        if let Some(head) = send.first_chunk_mut() {
            self.requester.emit_single_call(call, chunk, head);
        }
        send.set_len(SINGLE_LEN + payload_len);
        let is_sent = self.send(core, making, send);
        core.statistics.messages_short += u64::from(is_sent);
        Ok(true)
    }

    /// The only segment of a Call is exposed: to be read at a Position, or to be written.
    #[inline(always)]
    fn note_exposed(
        &mut self,
        state: &mut EngineState,
        call: requester::RequesterCallId,
        segment: Segment,
        position: Option<u32>,
    ) -> SingleChunk {
        self.exposed += 1;
        let slot = &mut self.slots[call.index()];
        match position {
            None => {
                let Segment { handle, length: offered, .. } = segment;
                slot.written.push(Written { chunk: 0, handle, offered, buf: None });
                SingleChunk::Write(segment)
            }
            Some(position) => {
                slot.reads.push(segment.handle);
                state.statistics.read_chunks += 1;
                SingleChunk::Read(ReadSegment { position, segment })
            }
        }
    }

    /// Writes the Payload stream of a Call with one chunk of one segment to `space`. Returns its length, and the Position of the
    /// item that is left out. `None`: it does not fit, or other items are left out than the chunk is for. The memory of a Read chunk
    /// is in `again`, if the Call is kept.
    #[inline(always)]
    fn write_single(
        &mut self,
        making: &Making<'_>,
        (is_write, again): (bool, &Chunks),
        encode: &dyn Fn(&mut Writer<'_>) -> Result<(), Overflow>,
        space: &mut [u8],
    ) -> Option<(usize, u32)> {
        let mut writer = Writer::new(space);
        making.write_payload(&mut writer, encode).ok()?;
        let len = writer.position();
        // A Call whose encoder left out other items than the chunk is for is refused in the general way.
        let position = match *writer.reduced_positions() {
            [] if is_write => 0,
            [position] if !is_write => position,
            _ => return None,
        };
        let positions = if is_write { &[][..] } else { &[position] };
        if !self.kept.is_empty() {
            self.keep_apart(making, &space[..len], positions, again);
        }
        Some((len, position))
    }

    /// The only segment of a Call could not be exposed.
    #[cold]
    fn end_unexposed<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        making: &Making<'_>,
        refused: Refused<Exposed>,
    ) {
        if let Some(buf) = write_buf(refused.request) {
            let part = Written { chunk: 0, handle: 0, offered: buf.len() as u32, buf: Some(buf) };
            self.slots[making.call.index()].written.push(part);
        }
        self.end_unsent(core, making, refused.error, None);
    }

    /// Makes a Call that was begun, in a buffer, with whatever chunks it takes. An error: nothing was exposed or sent.
    #[inline(never)]
    fn make_planned<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        making: &Making<'_>,
        chunks: &mut Chunks,
        encode: &Encoder<'_>,
    ) -> Result<(), CallRefused> {
        if let Credentials::Own(sealer) = making.request.credentials {
            return make_sealed(self, core, making, chunks, (sealer, encode));
        }
        self.make_in_buffer(core, making, chunks, &|writer| making.write_payload(writer, encode))
    }

    /// The same. `encode` writes the whole RPC message.
    pub(crate) fn make_in_buffer<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        making: &Making<'_>,
        chunks: &mut Chunks,
        encode: &Encoder<'_>,
    ) -> Result<(), CallRefused> {
        let mut send = self.take_message(core)?;
        let Making { call, id, .. } = *making;
        if let Some(version2) = &self.version2 {
            send.set_len(send.capacity().min(version2.call_len_max() as usize));
        }
        if chunks.read.len() > CLIENT_SEGMENTS_MAX || chunks.write.len() > CLIENT_SEGMENTS_MAX {
            return Err(CallRefused::TooManySegments);
        }
        let counts = WriteCounts::of(chunks.write.iter().map(|(chunk, _)| *chunk));
        let mut shape = Shape {
            payload_len: 0,
            prefer_long_call: false,
            read_segments: chunks.read.len() as u32,
            write_chunks: counts.as_slice(),
            reply_payload_len_max: if self.leave_reply(making) { 0 } else { making.reply_payload_len_max() },
            long_call_segments: 1,
            reply_chunk_segments: 1,
        };
        let write = |space: &mut [u8]| {
            let mut writer = Writer::new(space);
            encode(&mut writer)?;
            let reduced = writer.reduced_positions().iter().take(CLIENT_SEGMENTS_MAX);
            Ok((writer.position(), reduced.copied().collect::<Positions>()))
        };
        // The Payload goes straight behind the header, or, when it does not fit, into a Long Call's buffer.
        let mut form = self.plan(&shape).map_err(|_| CallRefused::TooManySegments)?;
        let mut long = None;
        let (payload_len, positions) = match write(&mut send[form.header_len as usize..]) {
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
        if self.version2.is_some() {
            let payload = match &long {
                None => &send[form.header_len as usize..][..payload_len],
                Some(buf) => &buf[..],
            };
            let reply_payload_len_max = shape.reply_payload_len_max;
            let encoded = EncodedCall { payload, positions: &positions, reply_payload_len_max };
            match make_group(self, core, making, chunks, &encoded) {
                Made::Yes => return Ok(()),
                Made::Refused(refused) => return Err(refused),
                Made::No if !self.provide_receives_for(core, id, 1) => return Err(CallRefused::NoMemory),
                Made::No => {}
            }
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

        self.occupy(core, making);
        let long_call = long.is_some();
        let long = long.map(Buf::share);
        let payload = &send[form.header_len as usize..][..payload_len];
        self.keep(making, payload, &positions, chunks, long.as_ref());
        let memory = CallMemory { chunks, positions: &positions, long, reply: reply_buf };
        let planned = PlannedCall { form: &form, counts: counts.as_slice(), memory, send, payload_len };
        match self.leave(core, id, call, planned) {
            Ok(()) if long_call => core.statistics.position_zero_chunks += 1,
            Ok(()) => core.statistics.messages_short += 1,
            Err(Unsent { error, message }) => {
                self.end_unsent(core, making, error, message);
                return Ok(());
            }
        }
        core.statistics.calls_sent += 1;
        Ok(())
    }

    /// Decides the form of a Call with chunk lists, in the version that the connection speaks.
    pub(crate) fn plan(&self, shape: &Shape<'_>) -> Result<CallForm, PlanError> {
        match &self.version2 {
            None => self.requester.plan(shape),
            Some(version2) => {
                version2.requester2.plan(&self.requester, &version2.peer, &version2.own_for_base(), shape)
            }
        }
    }

    /// Writes the header of a Call with the chunks of `self.lists`, in the version that the connection speaks.
    pub(crate) fn emit_planned(
        &mut self,
        call: requester::RequesterCallId,
        form: &CallForm,
        counts: &[u32],
        out: &mut [u8],
    ) -> Result<usize, requester::EmitError> {
        let Some(version2) = &mut self.version2 else {
            return emit_chunks(&self.lists, counts, |lists| {
                self.requester.emit_call(call, form, lists, out)
            });
        };
        version2.promised += 1;
        let requester = &mut self.requester;
        emit_chunks(&self.lists, counts, |lists| {
            version2.requester2.emit_call(requester, call, form, lists, out)
        })
    }

    /// Exposes the memory of a Call with chunk lists, writes its header, and posts it, for the first time or again.
    pub(crate) fn leave<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: requester::RequesterCallId,
        planned: PlannedCall<'_>,
    ) -> Result<(), Unsent> {
        let PlannedCall { form, counts, memory, mut send, payload_len } = planned;
        let slot = &mut self.slots[call.index()];
        let exposed = slot.expose(core, id, memory, &mut self.lists);
        self.exposed += slot.exposed_count();
        exposed.map_err(|error| Unsent { error, message: None })?;
        // The plan and the lists agree by construction.
        let Ok(header_len) = self.emit_planned(call, form, counts, &mut send) else {
            core.fault(id, NOT_AS_PLANNED);
            return Ok(());
        };
        send.set_len(header_len + payload_len);
        let request = SendRequest { id: 0, buf: send, invalidate: None, signaled: false };
        let posted = core.post_send(id, request);
        posted.map_err(|refused| Unsent { error: refused.error, message: Some(refused.request.buf) })
    }

    /// Notes in its slot what a Call is.
    // `inline(always)`: the caller is monomorphised for each encoder, and LLVM outlines this in some of them.
    #[inline(always)]
    pub(crate) fn occupy(&mut self, state: &mut EngineState, making: &Making<'_>) {
        let Making { call, request, kind, .. } = *making;
        let slot = &mut self.slots[call.index()];
        if !matches!(slot.stage(), Stage::Free) {
            state.fault(self.name, "a Call begins in the slot of another");
        }
        slot.enter(Stage::Sent);
        slot.user = request.user;
        slot.procedure = request.procedure;
        slot.started = state.now;
        slot.timeout = request.timeout;
        slot.kind = kind;
        if self.requester.window().in_flight() == 1 {
            self.busy_since = None;
        }
        self.outstanding += 1;
        self.probing |= kind == CallKind::KeepAlive;
    }

    /// As [`Calling::keep`], of a Call without a long message.
    // Not inline: it would slow down a client that does not connect again.
    #[inline(never)]
    pub(crate) fn keep_apart(
        &mut self,
        making: &Making<'_>,
        payload: &[u8],
        positions: &[u32],
        chunks: &Chunks,
    ) {
        self.keep(making, payload, positions, chunks, None);
    }

    /// Keeps what sending a Call again takes, if there may be another connection.
    #[inline]
    pub(crate) fn keep(
        &mut self,
        making: &Making<'_>,
        payload: &[u8],
        positions: &[u32],
        chunks: &Chunks,
        long: Option<&Shared>,
    ) {
        let Some(kept) = self.kept.get_mut(making.call.index()) else { return };
        kept.retransmit = making.request.retransmit;
        if kept.retransmit {
            let threshold = self.requester.parameters().call_threshold as usize;
            let reply = (making.reply_payload_len_max(), making.request.reply_mode);
            kept.keep(payload, positions, chunks, long, reply, threshold);
        }
    }

    /// Whether a Call goes to the next connection if this one ends.
    pub(crate) fn keeps(&self, call: requester::RequesterCallId) -> bool {
        self.kept.get(call.index()).is_some_and(|kept| kept.retransmit)
    }

    /// Posts a Call's message. `false`: it was refused, and the Call ends or waits.
    #[inline(always)]
    fn send<P: Provider>(&mut self, core: &mut Core<P>, making: &Making<'_>, message: Buf) -> bool {
        let request = SendRequest { id: 0, buf: message, invalidate: None, signaled: false };
        if let Err(refused) = core.post_send(making.id, request) {
            self.end_unsent(core, making, refused.error, Some(refused.request.buf));
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
    ) -> Result<(CallForm, Buf, Positions), CallRefused> {
        let form = self.plan(shape).map_err(|_| CallRefused::TooManySegments)?;
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
        making: &Making<'_>,
        error: PostError,
        message: Option<Buf>,
    ) {
        let Making { call, id, .. } = *making;
        let complete = message.is_some();
        let is_kept = self.keeps(call);
        let slot = &mut self.slots[call.index()];
        match message {
            Some(message) if is_kept => return self.set_unsent(core, id, call.index(), error, message),
            None if is_kept && error == PostError::NotConnected => {
                slot.enter(Stage::Halfway);
                return;
            }
            // One that is not kept, or that the fabric has no room to expose: it ends.
            _ => {}
        }
        let error = match error {
            PostError::NotConnected => CallError::NotSent,
            error => CallError::NotPosted(error),
        };
        // The Requester was not told of these handles: their fences are awaited here.
        if !complete && slot.exposed_count() > 0 {
            slot.enter(Stage::Withdrawing(Some(error)));
            return;
        }
        slot.enter(Stage::Ending(Ending::Failed(error)));
        if complete && let Some(version2) = &mut self.version2 {
            version2.forget_unsent(&mut self.requester, call);
        }
        let memory = self.requester.abandon(call);
        self.settle(core, id, call, memory);
    }
}

/// Items that the Read chunks are of: numbered from 0, ascending.
#[inline]
fn read_items(chunks: &Chunks) -> u32 {
    chunks.read.iter().last().map_or(0, |(item, _)| u32::from(*item) + 1)
}
