//! Calls and Replies with one chunk of one segment, or none, handled where they arrived: no Receive, no Send buffer, no
//! completion, no slot. Those of version 2: [`crate::version2::in_place`].
//!
//! It is a fast path beside the general way, by the same rules. A Call is answered in place only if its connection has nothing
//! else to do first, if the fabric has the memory of its chunk in reach, and if the duplicate request cache does not know it. If
//! its handler then answers later, or with more than there is room for, the Call goes on in the general way, where the handler
//! left it.

use stag_fabric::{
    Handle, MemoryInReach, PlainMessage, Provider, RemoteSegment, ScatteredMessage, TakeShown, Taken,
    WholeMessage,
};
use stag_memory::Buf;
use stag_wire::rpc::{NullCall, OpaqueAuth, emit_success, leading_xid};
use stag_wire::rpcrdma::{HEADER_LEN_MIN, ReadSegment, SINGLE_LEN, Segment, Single, SingleChunk};
use stag_wire::xdr::{Reduced, Writer};

use crate::carried::{CarriedChunk, CarriedRoom, Destination};
use crate::connection::{Connection, Connections};
use crate::engine::{Engine, find};
use crate::server::draft::{Draft, Verdict};
use crate::server::pending::{CarriedCall, Stage};
use crate::server::pulling::take_at_once;
use crate::server::serving::Serving;
use crate::server::shown::{count_in_place, end_in_place, keep_data, leave, leave_unanswered, origin};
use crate::server::transit::{MemoryHolder, TransitShare};
use crate::service::call::{Caller, Placed, PlacedPieces};
use crate::service::dispatch::{MayBeNameless, ReplyPolicy, Run, trace_call};
use crate::service::reply::{Frame, Room, Space};
use crate::service::steps::{Arrival, Arrived, CallToCarry, Exit, serve};
use crate::service::{Lookup, Services};
use crate::state::{Core, EngineState, Link, Pass};
use crate::version2::calling::complete_lone;
use crate::version2::in_place::take_lone;

/// The msg_type of a Reply.
const REPLY: [u8; 4] = 1_u32.to_be_bytes();

/// Polls the provider, and handles what can be handled where it arrived. Returns how much there was.
#[inline(always)]
pub(crate) fn poll_provider<P: Provider, S: Services>(engine: &mut Engine<P, S>) -> usize {
    if engine.core.recorder.is_some() {
        return poll_provider_recorded(engine);
    }
    let Engine { core, services, connections, completions, .. } = engine;
    let Core { provider, state } = core;
    let (now, burst) = (state.now, state.config.burst);
    let mut taker = Taker { pass: Pass { core: state, services }, connections };
    provider.poll_in_place(now, completions, burst, &mut taker)
}

// Not inline: a server that records nothing pays for one branch in each pass.
#[cold]
#[inline(never)]
fn poll_provider_recorded<P: Provider, S: Services>(engine: &mut Engine<P, S>) -> usize {
    let Engine { core, services, connections, completions, .. } = engine;
    let Core { provider, state } = core;
    let (now, burst) = (state.now, state.config.burst);
    let taker = Taker { pass: Pass { core: state, services }, connections };
    provider.poll_in_place(now, completions, burst, &mut RecordingTaker(taker))
}

/// What takes messages where they arrived: an engine without its provider, which shows them.
struct Taker<'a, S> {
    pass: Pass<'a, EngineState, S>,
    connections: &'a mut Connections,
}

impl<S: Services> TakeShown for Taker<'_, S> {
    #[inline(always)]
    fn take_plain(&mut self, message: PlainMessage<'_>) -> Taken {
        let Some(found) = find(self.connections, message.queue_pair) else { return Taken::No };
        found.take_plain(&mut self.pass, message)
    }

    #[inline(never)]
    fn take_whole(&mut self, message: WholeMessage<'_>) -> Taken {
        let Some(found) = find(self.connections, message.queue_pair) else { return Taken::No };
        found.take_whole(&mut self.pass, message)
    }

    #[inline(never)]
    fn take_scattered(&mut self, message: ScatteredMessage<'_>) -> Taken {
        let Some(found) = find(self.connections, message.queue_pair) else { return Taken::No };
        found.take_scattered(&mut self.pass, message)
    }
}

/// The same, and records them and their answers. No answer leaves before it was recorded: only `Taken` sends it.
struct RecordingTaker<'a, S>(Taker<'a, S>);

impl<S: Services> TakeShown for RecordingTaker<'_, S> {
    // Not inline: it is compiled once, not for each fabric.
    #[inline(never)]
    fn take_plain(&mut self, mut message: PlainMessage<'_>) -> Taken {
        let PlainMessage { queue_pair, credits, stream, .. } = message;
        let space = message.space.as_deref_mut();
        let taken = self.0.take_plain(PlainMessage { queue_pair, credits, stream, space });
        self.0.pass.core.note_plain_taken(&message, taken);
        taken
    }

    #[inline(never)]
    fn take_whole(&mut self, mut message: WholeMessage<'_>) -> Taken {
        let WholeMessage { queue_pair, octets, invalidated, .. } = message;
        let (space, exposed) = (message.space.as_deref_mut(), &mut *message.exposed);
        let memory = &mut *message.memory;
        let taken =
            self.0.take_whole(WholeMessage { queue_pair, octets, space, invalidated, exposed, memory });
        self.0.pass.core.note_whole_taken(&message, taken);
        taken
    }

    #[inline(never)]
    fn take_scattered(&mut self, mut message: ScatteredMessage<'_>) -> Taken {
        let ScatteredMessage { queue_pair, octets, .. } = message;
        let (space, pieces) = (message.space.as_deref_mut(), &mut *message.pieces);
        let taken = self.0.take_scattered(ScatteredMessage { queue_pair, octets, space, pieces });
        self.0.pass.core.note_scattered_taken(&message, taken);
        taken
    }
}

impl Connection {
    /// Whether messages take the general way.
    #[inline(always)]
    fn takes_nothing(&self, state: &EngineState) -> bool {
        self.is_special || state.stopping
    }

    /// Handles a message without chunks where it arrived, if that is all that it takes.
    #[inline(always)]
    fn take_plain<S: Services>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        message: PlainMessage<'_>,
    ) -> Taken {
        if self.takes_nothing(pass.core) {
            return Taken::No;
        }
        if let Some(serving) = &mut self.serving {
            // Only where Calls go both ways a Reply comes to a server.
            if is_reply(message.stream)
                && let Some(calling) = &mut self.calling
            {
                let is_done = calling.complete_plain(pass.core, message.credits, message.stream);
                return if is_done { Taken::Done } else { Taken::No };
            }
            let link = Link { id: self.id, peer: self.peer.as_ref() };
            let taken = take_plain(serving, pass, link, message);
            if taken == Taken::Done {
                // It is carried: there is a Call in process that is not to be forgotten.
                pass.core.ready.wake(self);
            }
            return taken;
        }
        let Some(calling) = &mut self.calling else { return Taken::No };
        let is_done = calling.complete_plain(pass.core, message.credits, message.stream);
        if is_done { Taken::Done } else { Taken::No }
    }

    /// Handles any other message where it arrived, if that is all that it takes.
    #[inline(always)]
    fn take_whole<S: Services>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        message: WholeMessage<'_>,
    ) -> Taken {
        if self.takes_nothing(pass.core) {
            return Taken::No;
        }
        // Where Calls go both ways, one that invalidates memory is a Reply: Calls have no handle to invalidate.
        let is_reply = message.invalidated.is_some() && self.calling.is_some();
        if let Some(serving) = &mut self.serving
            && !is_reply
        {
            let link = Link { id: self.id, peer: self.peer.as_ref() };
            let taken = take_whole(serving, pass, link, message);
            if taken == Taken::Done {
                // As above.
                pass.core.ready.wake(self);
            }
            return taken;
        }
        let Some(calling) = &mut self.calling else { return Taken::No };
        if calling.complete_whole(pass.core, message) { Taken::Done } else { Taken::No }
    }

    /// Handles a message of version 2 where it arrived, if that is all that it takes.
    #[inline(always)]
    fn take_scattered<S: Services>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        message: ScatteredMessage<'_>,
    ) -> Taken {
        // Before it is established its version is not known.
        if pass.core.stopping || self.is_ending() || !self.established {
            return Taken::No;
        }
        let is_reply = self.calling.is_some() && is_reply_of_version2(message.octets);
        if let Some(serving) = &mut self.serving
            && !is_reply
        {
            let link = Link { id: self.id, peer: self.peer.as_ref() };
            return take_lone(serving, pass, link, message);
        }
        let Some(calling) = &mut self.calling else { return Taken::No };
        if complete_lone(calling, pass.core, message.octets) { Taken::Done } else { Taken::No }
    }
}

/// Whether an RPC message is a Reply, by its msg_type (RFC 5531 section 9).
#[inline(always)]
fn is_reply(stream: &[u8]) -> bool {
    stream.get(4..8).is_some_and(|kind| kind == REPLY)
}

/// Whether the direction word of a message of version 2 says that it is a Reply (V2-3.2-a). Of an error it says nothing: none is
/// handled where it arrived.
#[inline(always)]
fn is_reply_of_version2(message: &[u8]) -> bool {
    message.get(16..20).is_some_and(|word| word == REPLY)
}

/// A Call of version 1 that is shown where it arrived: it is answered there, or takes the general way.
struct Shown<'a, K: MayHaveChunk<'a>> {
    serving: &'a mut Serving,
    xid: u32,
    /// Credits that it requests.
    requested: u32,
    /// Its chunk, or none.
    chunk: K,
    /// Where its Reply's Payload stream is built.
    space: &'a mut [u8],
    /// Pages of its data.
    held: Option<usize>,
}

/// The only chunk of a Call that is shown.
struct ShownChunk<'a> {
    call: Single,
    /// The peer's memory.
    memory: &'a mut dyn MemoryInReach,
    /// Where the Reply's header is built.
    header: &'a mut [u8],
}

/// What a Call that is shown may have: a chunk, or `()`.
trait MayHaveChunk<'a> {
    fn get(&mut self) -> Option<&mut ShownChunk<'a>>;
}

impl<'a> MayHaveChunk<'a> for () {
    #[inline(always)]
    fn get(&mut self) -> Option<&mut ShownChunk<'a>> {
        None
    }
}

impl<'a> MayHaveChunk<'a> for ShownChunk<'a> {
    #[inline(always)]
    fn get(&mut self) -> Option<&mut ShownChunk<'a>> {
        Some(self)
    }
}

impl<'a, K: MayHaveChunk<'a>> Shown<'a, K> {
    #[inline(always)]
    fn chunk(&mut self) -> Option<SingleChunk> {
        self.chunk.get().map(|chunk| chunk.call.chunk)
    }

    /// Counts the data that is here.
    #[inline(always)]
    fn count_data(&mut self, state: &mut EngineState) {
        if let (Some(pages), Some(SingleChunk::Read(read))) = (self.held, self.chunk()) {
            state.transit.take(&mut self.serving.share, pages);
            state.statistics.read_chunks += 1;
            state.statistics.read_bytes += u64::from(read.segment.length);
        }
    }
}

impl<'a, K: MayHaveChunk<'a>> Exit<EngineState> for Shown<'a, K> {
    type Served = Taken;

    #[inline(always)]
    fn open(&mut self, state: &mut EngineState) -> Result<Box<Draft>, Taken> {
        self.serving.note_arrival(state);
        self.count_data(state);
        Ok(state.draft_in_place())
    }

    #[inline(always)]
    fn frame(&mut self) -> Frame<'_> {
        let (room, header_len) = match self.chunk() {
            Some(SingleChunk::Write(segment)) => (Some(segment.length), SINGLE_LEN),
            Some(SingleChunk::Read(_)) | None => (None, HEADER_LEN_MIN),
        };
        Frame {
            xid: self.xid,
            room: Room::Single(room),
            inline_len_max: self.serving.responder.parameters().reply_threshold as usize,
            space: Some(Space { octets: self.space, header_len }),
            holder: Some(MemoryHolder::Share(&self.serving.share)),
        }
    }

    #[inline]
    fn payload<'d>(&'d self, draft: &'d Draft) -> Option<&'d [u8]> {
        match draft.send {
            None => self.space.get(..draft.payload_len),
            Some(_) => draft.sent_payload(),
        }
    }

    #[inline(always)]
    fn send(&mut self, state: &mut EngineState, terms: ReplyPolicy, mut draft: Box<Draft>) -> Taken {
        if let Some(pages) = self.held {
            state.transit.give(&mut self.serving.share, pages);
        }
        if draft.verdict != Verdict::Encoded || draft.send.is_some() || !draft.long.is_empty() {
            return leave(self.serving, self.xid, terms, draft);
        }
        let Shown { serving, chunk, space, xid, requested, .. } = self;
        let Some(ShownChunk { call, memory, header }) = chunk.get() else {
            let len = end_in_place(serving, state, draft);
            let credits = serving.responder.answer_plain(*requested, serving.credit_limit());
            return Taken::Answered { credits, len };
        };
        let Some(written) = write_in_reach(state, &mut draft, call.chunk, *memory) else {
            draft.rescue(&state.pools.messages, header.len(), space);
            return leave(serving, *xid, terms, draft);
        };
        let len = header.len() + end_in_place(serving, state, draft);
        let emitted = serving.responder.answer_single(call, serving.credit_limit(), written, header);
        debug_assert_eq!(emitted.header_len, header.len(), "the Payload stream is behind the header");
        Taken::AnsweredWhole { len, invalidate: emitted.invalidate.map(Handle) }
    }

    #[inline]
    fn keep(&mut self, state: &mut EngineState, terms: ReplyPolicy, draft: Option<Box<Draft>>) -> Taken {
        if let Some(draft) = draft {
            return leave_unanswered(self.serving, state, self.xid, terms, draft);
        }
        // It is on its way to another reactor. The Receive of its message stays posted.
        self.serving.note_arrival(state);
        self.count_data(state);
        let responder = &mut self.serving.responder;
        let (id, has_chunk) = match self.chunk.get() {
            Some(chunk) => (responder.begin_single(&chunk.call), true),
            None => (responder.begin_plain(self.xid, self.requested), false),
        };
        let held = self.held.unwrap_or(0) as u32;
        let carried = CarriedCall { terms, has_chunk, held };
        self.serving.keep(id, self.xid, Stage::Carried(carried));
        state.statistics.calls_received += 1;
        state.statistics.messages_short += 1;
        Taken::Done
    }
}

impl<'a, K: MayHaveChunk<'a>> Arrival<EngineState> for Shown<'a, K> {
    const IS_SHOWN: bool = true;

    #[inline(always)]
    fn meet(&mut self, caller: &Caller<'_>) {
        self.serving.host.note(caller);
    }

    #[inline(always)]
    fn check(&mut self, _: &mut EngineState, run: &Run<'_>) -> Result<(), Taken> {
        match self.chunk() {
            Some(SingleChunk::Read(_)) if run.procedure.eligible_arguments == 0 => Err(Taken::No),
            _ => Ok(()),
        }
    }

    #[inline(always)]
    fn bring(&mut self, state: &mut EngineState, items: &mut [Placed]) -> Result<(), Taken> {
        if let (Some(ShownChunk { call, memory, .. }), [item]) = (self.chunk.get(), items)
            && let SingleChunk::Read(read) = call.chunk
        {
            let read = read_in_reach(state, &self.serving.share, *memory, read);
            let Some((buf, pages)) = read else { return Err(Taken::No) };
            item.len = buf.len() as u32;
            item.pieces.push(buf);
            self.held = Some(pages);
        }
        Ok(())
    }

    /// From where it arrived into the lane; or it takes the general way.
    #[inline(never)]
    fn carry(
        &mut self,
        state: &mut EngineState,
        (arrived, run, items): CallToCarry<'_>,
        to: Destination,
    ) -> Taken {
        let Destination::One(to) = to else { return Taken::No };
        // A Reply that may be exposed may be of any length.
        if self.serving.exposes_replies() {
            return Taken::No;
        }
        let (chunk, header_len) = match self.chunk() {
            None => (None, HEADER_LEN_MIN),
            Some(SingleChunk::Write(segment)) if state.transit.may_list(&self.serving.share) => {
                (Some(CarriedChunk::Write(segment.length)), SINGLE_LEN)
            }
            Some(SingleChunk::Write(_)) => return Taken::No,
            Some(SingleChunk::Read(read)) => {
                let (position, len) = (read.position, read.segment.length);
                (Some(CarriedChunk::Read { position, len }), HEADER_LEN_MIN)
            }
        };
        let threshold = self.serving.responder.parameters().reply_threshold as usize;
        let peer = (arrived.origin.peer, threshold.saturating_sub(header_len) as u32);
        let (stream, token) = (arrived.stream, arrived.token(run));
        let carrier = state.carrier.as_deref_mut().filter(|carrier| carrier.may_send_light(to, stream.len()));
        let Some(carrier) = carrier else { return Taken::No };
        let data = items.first_mut().and_then(|item| item.pieces.pop()).map(|buf| buf.share().lend());
        state.statistics.pieces_lent += u64::from(data.is_some());
        carrier.send_light(to, &token, peer, chunk, data, stream);
        state.statistics.calls_carried += 1;
        self.meet(&run.head.caller);
        self.keep(state, ReplyPolicy::of(run), None)
    }

    #[cold]
    fn room(&mut self, _: &mut EngineState, _: &Run<'_>) -> Result<CarriedRoom, Taken> {
        Err(Taken::No)
    }

    #[cold]
    fn discard(&mut self, _: &mut EngineState) -> Taken {
        Taken::No
    }

    #[cold]
    fn wait(&mut self, _: &mut EngineState) -> Taken {
        Taken::No
    }
}

/// Takes a Call without chunks.
#[inline(always)]
fn take_plain<S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, EngineState, S>,
    link: Link<'_>,
    message: PlainMessage<'_>,
) -> Taken {
    let PlainMessage { credits: requested, stream, space: Some(space), .. } = message else {
        return Taken::No;
    };
    match NullCall::parse(stream) {
        Some(null) => answer_null(serving, pass, link, null, requested, space),
        None => serve_plain(serving, pass, link, (requested, stream), space),
    }
}

/// Answers a Call of procedure 0, which has no results and which the service does not execute. It takes no memory.
// By hand: the steps of any other Call would take twice the instructions.
#[inline(always)]
fn answer_null<S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, EngineState, S>,
    link: Link<'_>,
    null: NullCall,
    requested: u32,
    space: &mut [u8],
) -> Taken {
    let NullCall { xid, program, version } = null;
    if !serving.may_take::<false>(pass.core, link, xid, requested)
        || !pass.services.named_caller(OpaqueAuth::NONE, MayBeNameless)
    {
        return Taken::No;
    }
    let Lookup::Found { service, .. } = pass.services.lookup(program, version, 0) else {
        return Taken::No;
    };
    if tracing::enabled!(tracing::Level::TRACE) {
        trace_call(link.peer, xid, (program, version, 0));
    }
    let mut writer = Writer::new(space);
    if emit_success(&mut writer, xid).is_err() {
        return Taken::No;
    }
    let len = writer.position();
    pass.services.note_null(service, program, version);
    serving.note_arrival(pass.core);
    count_in_place(pass.core);
    let credits = serving.responder.answer_plain(requested, serving.credit_limit());
    Taken::Answered { credits, len }
}

// Not inline: it would slow down NULL, and the loop over the messages of a connection.
#[inline(never)]
fn serve_plain<S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, EngineState, S>,
    link: Link<'_>,
    (requested, stream): (u32, &[u8]),
    space: &mut [u8],
) -> Taken {
    let xid = leading_xid(stream);
    if !serving.may_take::<true>(pass.core, link, xid, requested) {
        return Taken::No;
    }
    let arrived = Arrived { origin: origin(&serving.responder, pass.core, link), stream, reduced: &[] };
    let mut shown = Shown { serving, xid, requested, chunk: (), space, held: None };
    serve(pass, &mut shown, &arrived, &mut [])
}

/// Takes a Call with one chunk of one segment.
// `inline(always)`: there is one caller, which would only hand on a large argument.
#[inline(always)]
fn take_whole<S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, EngineState, S>,
    link: Link<'_>,
    message: WholeMessage<'_>,
) -> Taken {
    let WholeMessage { octets, space: Some(space), memory, .. } = message else { return Taken::No };
    let Some((call, stream)) = serving.responder.peek_single(octets) else { return Taken::No };
    let Single { xid, credits: requested, chunk } = call;
    if !serving.may_take::<true>(pass.core, link, xid, requested) {
        return Taken::No;
    }
    let (read, header_len) = match chunk {
        SingleChunk::Read(read) => (Some(read), HEADER_LEN_MIN),
        SingleChunk::Write(_) => (None, SINGLE_LEN),
    };
    let (header, space) = space.split_at_mut(header_len);
    let reduced = read.map(|read| Reduced::read_chunk(0, read.position, read.segment.length));
    let origin = origin(&serving.responder, pass.core, link);
    let arrived = Arrived { origin, stream, reduced: reduced.as_slice() };
    let chunk = ShownChunk { call, memory, header };
    let mut shown = Shown { serving, xid, requested, chunk, space, held: None };
    // Filled in place: it is large to move.
    let mut data = read.map(|_| Placed { pieces: PlacedPieces::new(), len: 0 });
    let taken = serve(pass, &mut shown, &arrived, data.as_mut_slice());
    let held = shown.held;
    keep_data(&mut serving.begun, pass.core, data.as_mut_slice(), held);
    taken
}

/// Reads a Call's chunk at once, if there is memory for it by the rules of the general way. Returns the memory, and the
/// number of pages to count for it.
#[inline(always)]
pub(crate) fn read_in_reach(
    state: &EngineState,
    share: &TransitShare,
    memory: &mut dyn MemoryInReach,
    read: ReadSegment,
) -> Option<(Buf, usize)> {
    let (mut buf, pages) = take_at_once(state, share, read)?;
    let Segment { handle, offset, .. } = read.segment;
    memory.fill(&mut buf, RemoteSegment { handle: Handle(handle), offset }).then_some((buf, pages))
}

/// Writes a Reply's result to the Call's Write chunk at once, and returns how many octets that are. `None`: not now, or it is in
/// more than one piece.
#[inline]
fn write_in_reach(
    state: &mut EngineState,
    draft: &mut Draft,
    chunk: SingleChunk,
    memory: &mut dyn MemoryInReach,
) -> Option<u32> {
    let EngineState { statistics, .. } = state;
    let (item, piece) = match (&draft.items[..], &draft.pieces[..]) {
        ([], []) => return Some(0),
        ([item], []) if item.len == 0 || !item.reduced => {
            statistics.write_chunks_unused += u64::from(item.reduced);
            return Some(0);
        }
        ([item], [piece]) => (item, piece),
        _ => return None,
    };
    let SingleChunk::Write(segment) = chunk else { return None };
    if !item.reduced || piece.len() != item.len as usize || item.len > segment.length {
        return None;
    }
    let target = RemoteSegment { handle: Handle(segment.handle), offset: segment.offset };
    if !memory.write(piece, target) {
        return None;
    }
    statistics.write_chunks += 1;
    statistics.write_bytes += u64::from(item.len);
    Some(item.len)
}
