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
use stag_wire::rpc::{NullCall, emit_success};
use stag_wire::rpcrdma::{HEADER_LEN_MIN, ReadSegment, SINGLE_LEN, Segment, SingleChunk};
use stag_wire::xdr::{Reader, Reduced, Writer};

use crate::connection::Connection;
use crate::engine::{Engine, find};
use crate::server::draft::{Draft, Verdict};
use crate::server::pulling::{Pull, take_at_once};
use crate::server::serving::{ArrivedSingle, Carriage, Serving};
use crate::server::spares::Reused;
use crate::server::transit::{MemoryHolder, TransitShare};
use crate::service::call::{Placed, PlacedPieces};
use crate::service::dispatch::{Origin, ReplyPolicy, Route, Run, admit_new, destination, route, trace_call};
use crate::service::reply::{Reply, Room, Space};
use crate::service::{Lookup, Repeat, Services};
use crate::state::{Core, EngineState, Link, Pass};

/// The msg_type of a Reply.
const REPLY: [u8; 4] = 1_u32.to_be_bytes();

/// A Call whose handler ran in place, and that goes on in the general way.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) xid: u32,
    pub(crate) terms: ReplyPolicy,
    /// What the handler filled in; `None`: it answers later.
    pub(crate) draft: Option<Box<Draft>>,
    /// Its data, if the handler answers later.
    pub(crate) pull: Option<Box<Pull>>,
}

impl<P: Provider, S: Services> Engine<P, S> {
    /// Polls the provider, and handles what can be handled where it arrived. Returns how much there was.
    #[inline(always)]
    pub(crate) fn poll_provider(&mut self) -> usize {
        if self.core.state.carrier.is_some() {
            return self.poll_provider_in_group();
        }
        let Engine { core, services, connections, completions, .. } = self;
        let Core { provider, state } = core;
        let (now, burst) = (state.now, state.config.burst);
        let mut taker = Taker::<S, false> { pass: Pass { core: state, services }, connections };
        provider.poll_in_place(now, completions, burst, &mut taker)
    }

    // Code of its own: it would slow down an engine that is alone.
    #[inline(never)]
    fn poll_provider_in_group(&mut self) -> usize {
        let Engine { core, services, connections, completions, .. } = self;
        let Core { provider, state } = core;
        let (now, burst) = (state.now, state.config.burst);
        let mut taker = Taker::<S, true> { pass: Pass { core: state, services }, connections };
        provider.poll_in_place(now, completions, burst, &mut taker)
    }
}

/// What takes messages where they arrived: an engine without its provider, which shows them. `IS_MEMBER`: it is one of a group.
struct Taker<'a, S, const IS_MEMBER: bool> {
    pass: Pass<'a, EngineState, S>,
    connections: &'a mut [Option<Box<Connection>>],
}

impl<S: Services, const IS_MEMBER: bool> TakeShown for Taker<'_, S, IS_MEMBER> {
    #[inline(always)]
    fn take_plain(&mut self, message: PlainMessage<'_>) -> Taken {
        let Some(found) = find(self.connections, message.queue_pair) else { return Taken::No };
        found.take_plain::<S, IS_MEMBER>(&mut self.pass, message)
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

impl Connection {
    /// Whether messages take the general way.
    #[inline(always)]
    fn takes_nothing(&self, state: &EngineState) -> bool {
        self.is_special || state.stopping
    }

    /// Handles a message without chunks where it arrived, if that is all that it takes.
    #[inline(always)]
    fn take_plain<S: Services, const IS_MEMBER: bool>(
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
            let taken = serving.answer_plain::<S, IS_MEMBER>(pass, link, message);
            if IS_MEMBER && taken == Taken::Done {
                // There is a Call in process that is not to be forgotten.
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
            let mut is_carried = false;
            let taken = serving.answer_whole(pass, link, message, &mut is_carried);
            if is_carried {
                // There is a Call in process that is not to be forgotten.
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
        if pass.core.stopping || self.is_ending() {
            return Taken::No;
        }
        if let Some(serving) = &mut self.serving {
            let link = Link { id: self.id, peer: self.peer.as_ref() };
            return serving.answer_lone(pass, link, message);
        }
        let Some(calling) = &mut self.calling else { return Taken::No };
        if calling.complete_lone(pass.core, message.octets) { Taken::Done } else { Taken::No }
    }
}

/// Whether an RPC message is a Reply, by its msg_type (RFC 5531 section 9).
#[inline(always)]
fn is_reply(stream: &[u8]) -> bool {
    stream.get(4..8).is_some_and(|kind| kind == REPLY)
}

/// A Call without chunks, where it arrived.
struct ShownCall<'a> {
    /// Credits that it requests.
    requested: u32,
    stream: &'a [u8],
    /// Where its Reply's Payload stream is built.
    space: &'a mut [u8],
}

/// A Call that is executed where it arrived.
// Passed by value: keeps the fields in registers.
pub(crate) struct Execution<'c, 'a> {
    pub(crate) run: &'c Run<'a>,
    pub(crate) origin: &'c Origin<'c>,
    pub(crate) terms: ReplyPolicy,
    /// What there is for its results.
    pub(crate) room: Room<'a>,
    /// Octets of its Reply's header.
    pub(crate) header_len: usize,
    /// Octets of its Reply, header included, in a buffer for messages.
    pub(crate) inline_len_max: usize,
}

impl Serving {
    /// In a group, [`Taken::Done`] says that the Call is on its way to another engine.
    #[inline(always)]
    fn answer_plain<S: Services, const IS_MEMBER: bool>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        link: Link<'_>,
        message: PlainMessage<'_>,
    ) -> Taken {
        let PlainMessage { credits: requested, stream, space: Some(space), .. } = message else {
            return Taken::No;
        };
        if let Some(null) = NullCall::parse(stream) {
            return self.answer_null(pass, link, null, requested, space);
        }
        let call = ShownCall { requested, stream, space };
        self.answer_procedure::<S, IS_MEMBER>(pass, link, call)
    }

    /// Answers a Call of procedure 0, which has no results and of which the service does not hear. It takes no memory.
    #[inline(always)]
    fn answer_null<S: Services>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        link: Link<'_>,
        null: NullCall,
        requested: u32,
        space: &mut [u8],
    ) -> Taken {
        let NullCall { xid, program, version } = null;
        if !self.may_answer_in_place(pass.core, requested)
            || !matches!(pass.services.lookup(program, version, 0), Lookup::Found { .. })
            || !self.responder.may_answer(xid)
            || pass.core.refused_calls.has(link.peer, xid, pass.core.now)
        {
            return Taken::No;
        }
        if tracing::enabled!(tracing::Level::TRACE) {
            trace_call(link.peer, xid, (program, version, 0));
        }
        let mut writer = Writer::new(space);
        if emit_success(&mut writer, xid).is_err() {
            return Taken::No;
        }
        let len = writer.position();
        self.note_arrival(pass.core);
        self.count_in_place(pass.core);
        let credits = self.responder.answer_plain(requested, self.credit_limit());
        Taken::Answered { credits, len }
    }

    // Not inline: it would slow down NULL, and the loop over the messages of a connection.
    #[inline(never)]
    fn answer_procedure<S: Services, const IS_MEMBER: bool>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        link: Link<'_>,
        call: ShownCall<'_>,
    ) -> Taken {
        let ShownCall { requested, stream, space } = call;
        if !self.may_begin(pass.core, requested) {
            return Taken::No;
        }
        let routed = route(pass.services, Reader::new(stream));
        // By reference: it is large to move.
        let Route::Run(run) = &routed else { return Taken::No };
        // What may have chunks takes memory, and the duplicate request cache is for the general way.
        let procedure = run.procedure;
        let is_simple = procedure.repeat == Repeat::Harmless && !procedure.has_eligible_items();
        if !is_simple && !IS_MEMBER {
            return Taken::No;
        }
        if !self.responder.may_answer(run.head.xid) {
            return Taken::No;
        }
        let origin = self.origin(pass.core, link);
        if pass.core.refused_calls.has(origin.peer, run.head.xid, pass.core.now) {
            return Taken::No;
        }
        if IS_MEMBER {
            match self.carry_plain(pass.core, pass.services, run, &origin, (requested, stream)) {
                Carriage::Here if is_simple => {}
                Carriage::Sent => return Taken::Done,
                Carriage::Here | Carriage::Left => return Taken::No,
            }
        }
        self.note_arrival(pass.core);
        self.host.note(&run.head.caller);
        let (terms, header_len) = (ReplyPolicy::of(run), HEADER_LEN_MIN);
        let room = Room::Single(None);
        let inline_len_max = self.responder.parameters().reply_threshold as usize;
        let execution = Execution { run, origin: &origin, terms, room, header_len, inline_len_max };
        if !self.execute(pass, execution, &mut [], space) {
            return Taken::No;
        }
        let len = self.end_in_place(pass.core);
        let credits = self.responder.answer_plain(requested, self.credit_limit());
        Taken::Answered { credits, len }
    }

    /// `is_carried` becomes true if the Call is on its way to another engine.
    // `inline(always)`: there is one caller, which would only hand on a large argument.
    #[inline(always)]
    fn answer_whole<S: Services>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        link: Link<'_>,
        message: WholeMessage<'_>,
        is_carried: &mut bool,
    ) -> Taken {
        let WholeMessage { octets, space: Some(space), memory, .. } = message else { return Taken::No };
        let Some((call, stream)) = self.responder.peek_single(octets) else { return Taken::No };
        if !self.may_begin(pass.core, call.credits) {
            return Taken::No;
        }
        let (read, room, header_len) = match call.chunk {
            SingleChunk::Read(read) => (Some(read), None, HEADER_LEN_MIN),
            SingleChunk::Write(segment) => (None, Some(segment.length), SINGLE_LEN),
        };
        let (header, space) = space.split_at_mut(header_len);
        let reduced = read.map(|read| Reduced::read_chunk(0, read.position, read.segment.length));
        let reader = Reader::with_reduced(stream, reduced.as_slice());
        let routed = route(pass.services, reader);
        // By reference: it is large to move.
        let Route::Run(run) = &routed else { return Taken::No };
        if !self.responder.may_answer(run.head.xid) {
            return Taken::No;
        }
        let origin = self.origin(pass.core, link);
        if pass.core.refused_calls.has(origin.peer, run.head.xid, pass.core.now) {
            return Taken::No;
        }
        if let Some(carrier) = pass.core.carrier.as_deref()
            && let Some(destination) = destination(carrier, pass.services, run, &origin)
        {
            let arrived = ArrivedSingle { call, stream };
            *is_carried =
                self.carry_single(pass.core, run, &origin, &arrived, memory, destination) == Carriage::Sent;
            return if *is_carried { Taken::Done } else { Taken::No };
        }
        let mut data = None;
        let mut held = 0;
        if let Some(read) = read {
            if run.procedure.eligible_arguments == 0 {
                return Taken::No;
            }
            let Some((buf, pages)) = read_in_reach(pass.core, &self.share, memory, read) else {
                return Taken::No;
            };
            // Filled in place: it is large to move.
            let placed = data.insert(Placed { pieces: PlacedPieces::new(), len: buf.len() as u32 });
            placed.pieces.push(buf);
            held = pages;
        }
        let placed = data.as_mut_slice();
        let Some(terms) = admit_new(pass.core, run, stream, placed, link.id, link.peer) else {
            return Taken::No;
        };
        self.note_arrival(pass.core);
        self.host.note(&run.head.caller);
        if let Some(read) = read {
            pass.core.transit.take(&mut self.share, held);
            pass.core.statistics.read_chunks += 1;
            pass.core.statistics.read_bytes += u64::from(read.segment.length);
        }
        let room = Room::Single(room);
        let inline_len_max = self.responder.parameters().reply_threshold as usize;
        let execution = Execution { run, origin: &origin, terms, room, header_len, inline_len_max };
        let held = read.is_some().then_some(held);
        if !self.execute_with(pass, execution, (placed, held), space) {
            return Taken::No;
        }
        let Some(written) = write_in_reach(pass.core, call.chunk, memory) else {
            return self.leave_filled(pass.core, run.head.xid, terms, header_len, space);
        };
        if let Some(entry) = terms.kept {
            let draft = &pass.core.draft_in_place;
            let payload = draft.items.is_empty().then(|| &space[..draft.payload_len]);
            pass.core.duplicates.keep_octets(entry, payload, &mut pass.core.statistics);
        }
        let len = self.end_in_place(pass.core);
        let emitted = self.responder.answer_single(&call, self.credit_limit(), written, header);
        debug_assert_eq!(emitted.header_len, header_len, "the Payload stream is behind the header");
        Taken::AnsweredWhole { len: header_len + len, invalidate: emitted.invalidate.map(Handle) }
    }

    /// As [`Serving::execute`], of a Call with data, for which the pages are counted until it is answered. A Call without data
    /// has none, and `None`.
    #[inline(always)]
    pub(crate) fn execute_with<S: Services>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        execution: Execution<'_, '_>,
        (placed, held): (&mut [Placed], Option<usize>),
        space: &mut [u8],
    ) -> bool {
        let is_done = self.execute(pass, execution, placed, space);
        if let Some(begun) = self.begun.as_mut().filter(|begun| begun.draft.is_none()) {
            // The handler answers later, and has its data till then.
            if let Some(held) = held {
                let mut pull = pass.core.pulls.take();
                pull.items.extend(placed.iter_mut().map(std::mem::take));
                pull.held = held;
                begun.pull = Some(pull);
            }
            return false;
        }
        if let Some(held) = held {
            pass.core.transit.give(&mut self.share, held);
        }
        is_done
    }

    /// Whether a Call that requests this number of credits may begin now: no Calls or Replies wait, and no Receives are due
    /// to be posted. A handler may need a buffer after all.
    #[inline(always)]
    pub(crate) fn may_begin(&self, state: &EngineState, requested: u32) -> bool {
        self.may_answer_in_place(state, requested) && !state.is_short()
    }

    /// Where a Call comes in that [`Responder::may_answer`](stag_proto::responder::Responder::may_answer).
    #[inline(always)]
    pub(crate) fn origin<'c>(&self, state: &EngineState, link: Link<'c>) -> Origin<'c> {
        let slot = self.responder.next_slot();
        Origin { connection: link.id, slot, peer: link.peer, local: None, now: state.now }
    }

    /// Lets the service answer into `space`. `false`: the Call goes on in the general way.
    #[inline(always)]
    fn execute<S: Services>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        execution: Execution<'_, '_>,
        items: &mut [Placed],
        space: &mut [u8],
    ) -> bool {
        let Execution { run, origin, terms, room, header_len, inline_len_max } = execution;
        let mut reply = Reply {
            draft: &mut pass.core.draft_in_place,
            xid: run.head.xid,
            room,
            inline_len_max,
            space: Some(Space { octets: space, header_len, messages: Some(&pass.core.pools.messages) }),
            payload: &pass.core.pools.payload,
            transit: Some((&pass.core.transit, MemoryHolder::Share(&self.share))),
            scratch: &mut pass.core.scratch,
            eligible: terms.procedure.eligible_results,
            copied_bytes: &mut pass.core.statistics.copied_bytes,
            deferrals: &pass.core.deferrals,
        };
        let is_done = run.call(pass.services, origin, items, &mut reply);
        let is_in_place = reply.space.is_some();
        let draft = &*pass.core.draft_in_place;
        if is_done && is_in_place && draft.verdict == Verdict::Encoded && draft.defect().is_none() {
            return true;
        }
        self.go_on_later(pass.core, run.head.xid, terms, is_done);
        false
    }

    /// Ends a Call that is answered in place, and forgets its results. Returns the octets of its Reply's Payload stream.
    #[inline(always)]
    pub(crate) fn end_in_place(&mut self, state: &mut EngineState) -> usize {
        let draft = &mut *state.draft_in_place;
        let len = draft.payload_len;
        if draft.is_service {
            self.note_service(state.now);
        }
        draft.forget_results();
        self.count_in_place(state);
        len
    }

    /// Counts a Call that is answered in place.
    #[inline(always)]
    fn count_in_place(&self, state: &mut EngineState) {
        state.statistics.calls_received += 1;
        state.statistics.messages_short += 1;
        state.statistics.replies_sent += 1;
    }

    /// Leaves a Call to the general way whose Reply is in `space`: its results cannot go out from here.
    #[cold]
    pub(crate) fn leave_filled(
        &mut self,
        state: &mut EngineState,
        xid: u32,
        terms: ReplyPolicy,
        header_len: usize,
        space: &[u8],
    ) -> Taken {
        state.draft_in_place.rescue(&state.pools.messages, header_len, space);
        self.go_on_later(state, xid, terms, true);
        Taken::No
    }

    /// Leaves a Call to the general way, which takes it in next. `is_done`: its handler has answered.
    #[cold]
    fn go_on_later(&mut self, state: &mut EngineState, xid: u32, mut terms: ReplyPolicy, is_done: bool) {
        let draft = &mut state.draft_in_place;
        let mut filled = None;
        if is_done {
            filled = Some(std::mem::replace(draft, state.drafts.take()));
        } else {
            terms.pages = std::mem::take(&mut draft.pages);
            draft.clear();
            state.transit.expect(&mut self.share, terms.pages as usize);
        }
        self.begun = Some(Begun { xid, terms, draft: filled, pull: None });
    }
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
    chunk: SingleChunk,
    memory: &mut dyn MemoryInReach,
) -> Option<u32> {
    let EngineState { draft_in_place: draft, statistics, .. } = state;
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
