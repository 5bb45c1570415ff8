//! Calls and Replies of version 2 in one Send, handled where they arrived: no Receive, no Send buffer, no completion, no slot.
//!
//! The counterpart of [`in_place`](crate::in_place) for version 2, by the same rules: anything unusual takes the general way.
//! Data is copied once, from where it arrived to where it is kept; results leave from where they lie.

use stag_fabric::{
    GATHERED_DATA_LEN_MAX, GATHERED_LEN_MAX, GATHERED_PIECES_MAX, GatheredPieces, Provider, ScatteredMessage,
    Taken,
};
use stag_memory::{Buf, Shared};
use stag_proto::layout::TargetRun;
use stag_proto::requester::LoneRequest;
use stag_proto::responder::{LoneAnswer, LoneCall, Responder2};
use stag_wire::rpcrdma2::{CONTINUATION_LEN, HEADER_LEN_MIN};
use stag_wire::xdr::{Overflow, Reduced, Writer};

use crate::carried::CarriedRoom;
use crate::client::calling::Calling;
use crate::client::making::Making;
use crate::client::slot::{Stage, Written, results_start};
use crate::client::taking::ReplyMessage;
use crate::client::{CallRefused, Chunks};
use crate::few::Few;
use crate::in_place::xid_of_stream;
use crate::server::draft::{Draft, Verdict};
use crate::server::serving::Serving;
use crate::server::transit::{self, MemoryHolder, TransitShare};
use crate::service::Services;
use crate::service::call::{Caller, Placed, PlacedPieces};
use crate::service::dispatch::{ReplyPolicy, Run};
use crate::service::reply::{Frame, Room, Space};
use crate::service::steps::{Arrival, Arrived, Exit, serve};
use crate::state::{Core, EngineState, Link, Pass};
use crate::version2::ClientVersion2;
use crate::version2::answering::{GroupRoom, least_reply_len};

/// What makes a Call one that may go in one Send, and be answered in one.
struct LoneShape {
    /// Octets of its data.
    data_len: u32,
    /// Octets that its result may have, if it has one.
    results: Option<u32>,
}

/// A Call in one Send that is shown where it arrived: it is answered there, or takes the general way.
struct ShownLone<'a> {
    serving: &'a mut Serving,
    call: LoneCall<'a>,
    xid: u32,
    /// Where its result may go.
    targets: Option<TargetRun>,
    /// Octets of a Send that the client takes: a longer Reply than fits here goes in one from elsewhere.
    send_len_max: usize,
    inline_len_max: usize,
    /// Where its Reply is built: a header of this number of octets at most, and the Payload stream up to `room_end`.
    space: &'a mut [u8],
    header_len: usize,
    room_end: usize,
    /// Takes the result.
    pieces: &'a mut GatheredPieces,
    /// Pages of its data.
    held: Option<usize>,
}

impl Exit<EngineState> for ShownLone<'_> {
    type Served = Taken;

    #[inline(always)]
    fn open(&mut self, state: &mut EngineState) -> Result<Box<Draft>, Taken> {
        self.serving.note_arrival(state);
        if let Some(pages) = self.held {
            state.transit.take(&mut self.serving.share, pages);
            state.statistics.items_placed += 1;
        }
        Ok(state.draft_in_place())
    }

    #[inline(always)]
    fn frame(&mut self) -> Frame<'_> {
        let least_header_len = if self.call.is_transmission { CONTINUATION_LEN } else { HEADER_LEN_MIN };
        let room = Room::Group(GroupRoom {
            item_room: self.targets.map(|run| run.room().into()),
            long_len_max: self.send_len_max.saturating_sub(least_header_len),
        });
        let octets = &mut self.space[self.header_len..self.room_end];
        let space = Some(Space { octets, header_len: self.header_len });
        let holder = Some(MemoryHolder::Share(&self.serving.share));
        Frame { xid: self.xid, room, inline_len_max: self.inline_len_max, space, holder }
    }

    #[inline]
    fn payload<'d>(&'d self, draft: &'d Draft) -> Option<&'d [u8]> {
        match draft.send {
            None => self.space.get(self.header_len..self.header_len + draft.payload_len),
            Some(_) => draft.sent_payload(),
        }
    }

    #[inline(always)]
    fn send(&mut self, state: &mut EngineState, terms: ReplyPolicy, mut draft: Box<Draft>) -> Taken {
        if let Some(pages) = self.held {
            state.transit.give(&mut self.serving.share, pages);
        }
        let &mut ShownLone { xid, targets, header_len, .. } = self;
        if draft.verdict != Verdict::Encoded || draft.send.is_some() || !draft.long.is_empty() {
            return self.serving.leave(xid, terms, draft);
        }
        let item = draft.items.first().filter(|item| item.reduced);
        let result = item.map(|item| (draft.splice, item.len));
        let answer = LoneAnswer { result, payload_len: draft.payload_len as u32 };
        let own_len = Responder2::lone_header_len(targets, &answer);
        let data_len = result.map_or(0, |(_, len)| len as usize);
        let fits = draft.items.len() <= 1
            && draft.pieces.len() <= GATHERED_PIECES_MAX
            && data_len <= GATHERED_DATA_LEN_MAX
            && targets.is_none_or(|run| run.start as usize + data_len <= self.send_len_max)
            && draft.pieces.iter().all(Shared::is_stored);
        if !fits {
            draft.rescue(&state.pools.messages, header_len, &self.space[header_len..]);
            return self.serving.leave(xid, terms, draft);
        }
        let payload = header_len..header_len + draft.payload_len;
        let mut len = own_len + draft.payload_len;
        if own_len < header_len {
            self.space.copy_within(payload, own_len);
        }
        if let (Some(run), true) = (targets, data_len > 0) {
            let start = run.start as usize;
            self.space[len..start].fill(0);
            len = start;
            // Nearly always one.
            match draft.pieces.pop() {
                Some(piece) if draft.pieces.is_empty() => self.pieces.push(piece),
                last => self.pieces.extend(draft.pieces.drain(..).chain(last)),
            }
        }
        state.statistics.groups_received += u64::from(self.call.is_transmission);
        state.statistics.groups_sent += u64::from(targets.is_some());
        state.statistics.items_placed += u64::from(result.is_some());
        self.serving.end_in_place(state, draft);
        // It counts as a group, not as a short message.
        state.statistics.messages_short -= u64::from(self.call.is_transmission);
        let limit = self.serving.credit_limit();
        let Serving { version2, responder, .. } = &mut *self.serving;
        if let Some(version2) = version2 {
            let out = &mut self.space[..own_len];
            let emitted =
                version2.responder2.answer_lone(responder, &self.call, limit, targets, &answer, out);
            debug_assert_eq!(emitted, Ok(own_len), "the Payload stream is behind the header");
        }
        Taken::AnsweredGathered { len }
    }

    #[cold]
    fn keep(&mut self, state: &mut EngineState, terms: ReplyPolicy, draft: Option<Box<Draft>>) -> Taken {
        match draft {
            Some(draft) => self.serving.leave_unanswered(state, self.xid, terms, draft),
            None => Taken::No,
        }
    }
}

impl Arrival<EngineState> for ShownLone<'_> {
    const IS_SHOWN: bool = true;

    #[inline(always)]
    fn meet(&mut self, caller: &Caller<'_>) {
        self.serving.host.note(caller);
    }

    #[inline(always)]
    fn check(&mut self, _: &mut EngineState, run: &Run<'_>) -> Result<(), Taken> {
        let has_room = self.room_end - self.header_len >= least_reply_len(run.procedure) as usize;
        let is_eligible = self.call.item.is_none() || run.procedure.eligible_arguments > 0;
        if has_room && is_eligible { Ok(()) } else { Err(Taken::No) }
    }

    #[inline(always)]
    fn bring(&mut self, state: &mut EngineState, items: &mut [Placed]) -> Result<(), Taken> {
        if let (Some(item), [placed]) = (&self.call.item, items) {
            let taken = take_for(state, &self.serving.share, item.data.len());
            let Some((mut buf, pages)) = taken else { return Err(Taken::No) };
            buf.copy_from_slice(item.data);
            placed.len = buf.len() as u32;
            placed.pieces.push(buf);
            self.held = Some(pages);
        }
        Ok(())
    }

    /// None is carried from here.
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

impl Serving {
    /// Takes a Call where it arrived. [`Taken::No`]: it is for the general way, which finds in `begun` what happened already.
    #[inline(never)]
    pub(crate) fn take_lone<S: Services>(
        &mut self,
        pass: &mut Pass<'_, EngineState, S>,
        link: Link<'_>,
        message: ScatteredMessage<'_>,
    ) -> Taken {
        let ScatteredMessage { octets, space: Some(space), pieces, .. } = message else { return Taken::No };
        // The first Call is a probe, which is answered with more than a Reply.
        let Some(version2) = self.version2.as_deref().filter(|version2| version2.has_told) else {
            return Taken::No;
        };
        let Some(call) = version2.responder2.peek_lone(octets) else { return Taken::No };
        let send_len_max = version2.peer_layout.len() as usize;
        let targets = match (call.is_directed, version2.peer_run) {
            (false, _) => None,
            (true, Some(run)) => Some(run),
            (true, None) => return Taken::No,
        };
        // The longest that the header may be; the Payload stream moves up when it is known.
        let result_max = targets.map(|run| (0, run.room()));
        let longest = LoneAnswer { result: result_max, payload_len: 0 };
        let header_len = Responder2::lone_header_len(targets, &longest);
        let room_end =
            space.len().min(send_len_max).min(targets.map_or(usize::MAX, |run| run.start as usize));
        // Data is sent right behind what is built here.
        if room_end < header_len || targets.is_some_and(|run| run.start as usize > room_end) {
            return Taken::No;
        }
        let (xid, stream) = (xid_of_stream(call.stream), call.stream);
        if !self.may_take::<true>(pass.core, link, xid, call.credits) {
            return Taken::No;
        }
        let reduced = call.item.as_ref();
        let reduced = reduced.map(|item| Reduced::read_chunk(0, item.displacement, item.data.len() as u32));
        let arrived = Arrived { origin: self.origin(pass.core, link), stream, reduced: reduced.as_slice() };
        // Filled in place: it is large to move.
        let mut data = reduced.map(|_| Placed { pieces: PlacedPieces::new(), len: 0 });
        let inline_len_max = send_len_max.min(pass.core.pools.messages.unit_len());
        let mut shown = ShownLone {
            serving: self,
            call,
            xid,
            targets,
            send_len_max,
            inline_len_max,
            space,
            header_len,
            room_end,
            pieces,
            held: None,
        };
        let taken = serve(pass, &mut shown, &arrived, data.as_mut_slice());
        let held = shown.held;
        self.keep_data(pass.core, data.as_mut_slice(), held);
        taken
    }
}

/// Takes memory for the data of a Call that arrived, by the rules of the general way: its pages, and the number of them to
/// count.
#[inline]
fn take_for(state: &EngineState, share: &TransitShare, len: usize) -> Option<(Buf, usize)> {
    let pool = &state.pools.payload;
    let pages = transit::pages(pool, len);
    if state.transit.obstacle(share, pool, pages, 0).is_some() {
        return None;
    }
    Some((pool.take_len(len)?, pages))
}

impl Calling {
    /// Builds and sends a Call in one Send where it leaves, if its Reply may come in one as well. `false`: it is another, or there is no
    /// room, and nothing happened.
    #[inline(never)]
    pub(crate) fn make_lone<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        making: &Making<'_>,
        chunks: &mut Chunks,
        encode: &dyn Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<bool, CallRefused> {
        let reply_payload_len_max = making.reply_payload_len_max();
        let shape =
            self.version2.as_deref().and_then(|version2| version2.lone_shape(chunks, reply_payload_len_max));
        let Some(LoneShape { data_len, results }) = shape else { return Ok(false) };
        if !self.provide_receives_for(core, making.id, 1) {
            return Err(CallRefused::NoMemory);
        }
        let Some(version2) = &mut self.version2 else { return Ok(false) };
        let Some(space) = core.provider.gather_space(making.id) else { return Ok(false) };
        let targets = version2.peer_run.map_or(0, |run| run.count_for(data_len));
        let count = usize::from(data_len > 0);
        let data = (count > 0).then_some((data_len, targets));
        let lone = LoneRequest { data, is_directed: results.is_some() };
        let header_len = lone.header_len();
        // Behind it, up to the data, which goes right behind what is built here.
        let room_end = match version2.peer_run {
            Some(run) if count > 0 && run.start as usize > space.len() => return Ok(false),
            Some(run) if count > 0 => run.start as usize,
            _ => space.len().min(version2.call_len_max() as usize),
        };
        let Some(body) = space.get_mut(header_len..room_end) else { return Ok(false) };
        let mut writer = Writer::new(body);
        if making.write_payload(&mut writer, encode).is_err() {
            return Ok(false);
        }
        let payload_len = writer.position();
        let displacement = match *writer.reduced_positions() {
            [] if count == 0 => 0,
            [position] if count == 1 => position,
            // The general way says what is wrong.
            _ => return Ok(false),
        };
        let (stream, out) = ((displacement, payload_len as u32), &mut space[..header_len]);
        let emitted = version2.requester2.emit_lone(&mut self.requester, making.call, &lone, stream, out);
        debug_assert_eq!(emitted, Ok(header_len), "the Payload stream is behind the header");
        let mut len = header_len + payload_len;
        version2.promised += 1;
        let is_transmission = count > 0 || results.is_some();
        let mut pieces = GatheredPieces::new();
        if count > 0 {
            space[len..room_end].fill(0);
            len = room_end;
        }
        let payload = &space[header_len..][..payload_len];
        self.keep(making, payload, &[displacement][..count], chunks, None);
        match chunks.read.take_only() {
            Some((_, data)) => pieces.push(data),
            None => pieces.extend(chunks.read.drain().map(|(_, data)| data)),
        }
        self.occupy(core, making);
        let slot = &mut self.slots[making.call.index()];
        slot.reply_chunk = None;
        slot.written.clear();
        slot.reads.clear();
        for (chunk, buf) in chunks.write.drain() {
            slot.written.push(Written { chunk, handle: 0, offered: buf.len() as u32, buf: Some(buf) });
        }
        core.provider.send_gathered(making.id, len, &mut pieces);
        core.statistics.calls_sent += 1;
        core.statistics.groups_sent += u64::from(is_transmission);
        core.statistics.messages_short += u64::from(!is_transmission);
        core.statistics.items_placed += u64::from(count > 0);
        Ok(true)
    }

    /// Takes in a Reply where it arrived. `false`: it is for the general way, and nothing happened.
    #[inline(never)]
    pub(crate) fn complete_lone(&mut self, state: &mut EngineState, octets: &[u8]) -> bool {
        let Some(version2) = self.version2.as_deref_mut().filter(|version2| version2.is_ready) else {
            return false;
        };
        if state.pools.messages.free_units() == 0 {
            return false;
        }
        let Some(reply) = version2.requester2.peek_lone(&self.requester, octets) else { return false };
        let call = reply.call;
        let slot = &mut self.slots[call.index()];
        let data = reply.item.map_or(&[][..], |item| item.data);
        let has_room = match &slot.written[..] {
            [] => data.is_empty(),
            [part] => part.buf.is_some() && data.len() <= part.offered as usize,
            _ => false,
        };
        // The results are copied to a buffer for a message.
        let has_room = has_room && reply.stream.len() <= state.pools.messages.unit_len();
        if !has_room || !matches!(slot.stage(), Stage::Sent) {
            return false;
        }
        version2.requester2.accept_lone(&mut self.requester, &reply);
        let unused = version2.requester2.take_unused();
        version2.promised = version2.promised.saturating_sub(1 + unused);
        version2.reply_bufs[call.index()] = None;
        self.heard = state.now;
        state.statistics.replies_received += 1;
        state.statistics.groups_received += u64::from(reply.is_transmission);
        state.statistics.items_placed += u64::from(reply.item.is_some());
        let mut written = Few::new();
        if let Some(Written { chunk, buf: Some(mut buf), .. }) = slot.written.pop() {
            buf.set_len(data.len());
            buf.copy_from_slice(data);
            state.statistics.count_write_chunk(data.len() as u32);
            written = Few::one((chunk, buf));
        }
        let message = &octets[..reply.start as usize + reply.stream.len()];
        let result = match results_start(message, reply.start as usize, call) {
            Ok(first) => {
                let message = ReplyMessage::Shown(message);
                let results = message.into_results(&state.pools.messages, first, data.len() as u32);
                results.and_then(|results| match reply.item {
                    None => Ok(results),
                    Some(item) => results.placed(item.displacement, first - reply.start),
                })
            }
            Err(error) => Err(error),
        };
        self.hand_over(state, call, result, written);
        true
    }
}

impl ClientVersion2 {
    /// What a Call with these chunks is, if it may go in one Send and be answered in one. `None`: it is for the general way.
    #[inline]
    fn lone_shape(&self, chunks: &Chunks, reply_payload_len_max: u32) -> Option<LoneShape> {
        if !self.is_ready || !self.outbox.is_empty() {
            return None;
        }
        if chunks.is_empty() {
            return self.fits_base(reply_payload_len_max).then_some(LoneShape { data_len: 0, results: None });
        }
        if !self.takes_groups() {
            return None;
        }
        let mut data_len = 0;
        if !chunks.read.is_empty() {
            if chunks.read.len() > GATHERED_PIECES_MAX || chunks.read.iter().any(|(item, _)| *item > 0) {
                return None;
            }
            let len: usize = chunks.read.iter().map(|(_, data)| data.len()).sum();
            let room = self.peer_run?.room().min(self.placement.data_max).min(GATHERED_DATA_LEN_MAX as u32);
            if len == 0 || len > room as usize {
                return None;
            }
            data_len = len as u32;
        }
        let Some((chunk, buf)) = chunks.write.only() else {
            let is_other = !chunks.write.is_empty() || !self.fits_base(reply_payload_len_max);
            return (!is_other).then_some(LoneShape { data_len, results: None });
        };
        let results = buf.len() as u32;
        let run = self.own_run.filter(|_| *chunk == 0 && self.peer.places_results())?;
        let longest = LoneAnswer { result: Some((0, results)), payload_len: 0 };
        let header_len = Responder2::lone_header_len(Some(run), &longest);
        let head_len = header_len as u64 + u64::from(reply_payload_len_max);
        let fits = results <= run.room().min(self.placement.results_max) && head_len <= run.start.into();
        fits.then_some(LoneShape { data_len, results: Some(results) })
    }
}

const _: () = assert!(super::HEAD_LEN as usize <= GATHERED_LEN_MAX, "what precedes data is built in place");
