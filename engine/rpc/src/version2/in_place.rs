//! Calls and Replies of version 2 in one Send, handled where they arrived: no Receive, no Send buffer, no completion, no slot.
//!
//! The counterpart of [`in_place`](crate::in_place) for version 2, by the same rules: anything unusual takes the general way.
//! Data is copied once, from where it arrived to where it is kept; results leave from where they lie.

use std::slice;

use stag_fabric::{
    GATHERED_DATA_LEN_MAX, GATHERED_LEN_MAX, GATHERED_PIECES_MAX, GatheredPieces, Provider, ScatteredMessage,
    Taken,
};
use stag_memory::{Buf, Shared};
use stag_proto::requester::LoneRequest;
use stag_proto::responder::{LoneAnswer, Responder2};
use stag_wire::rpcrdma2::{CONTINUATION_LEN, HEADER_LEN_MIN};
use stag_wire::xdr::{Overflow, Reader, Reduced, Writer};

use crate::carried::Carrier;
use crate::client::calling::Calling;
use crate::client::making::Making;
use crate::client::slot::{Stage, Written, results_start};
use crate::client::taking::ReplyMessage;
use crate::client::{CallRefused, Chunks};
use crate::few::Few;
use crate::in_place::Execution;
use crate::server::serving::Serving;
use crate::server::transit::{self, TransitShare};
use crate::service::Services;
use crate::service::call::{Placed, PlacedPieces};
use crate::service::dispatch::{Origin, Route, Run, admit_new, destination, route};
use crate::service::reply::Room;
use crate::state::{Core, EngineState, Link, Pass};
use crate::version2::ClientVersion2;
use crate::version2::answering::{GroupRoom, least_reply_len};

/// Whether a Call is not to be answered here and now: by another reactor, or with the word that it ended a connection.
#[inline(always)]
fn is_for_others<S: Services>(pass: &Pass<'_, EngineState, S>, run: &Run<'_>, origin: &Origin<'_>) -> bool {
    let Pass { core: state, services } = pass;
    let is_carried = |carrier: &Carrier| destination(carrier, &**services, run, origin).is_some();
    state.refused_calls.has(origin.peer, run.head.xid, state.now)
        || state.carrier.as_deref().is_some_and(is_carried)
}

/// What makes a Call one that may go in one Send, and be answered in one.
struct LoneShape {
    /// Octets of its data.
    data_len: u32,
    /// Octets that its result may have, if it has one.
    results: Option<u32>,
}

impl Serving {
    /// Answers a Call where it arrived. [`Taken::No`]: it is for the general way, which finds in `begun` what happened already.
    #[inline(never)]
    pub(crate) fn answer_lone<S: Services>(
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
        // Octets of a Send that the client takes: a longer Reply than fits here goes in one from elsewhere.
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
        if !self.may_begin(pass.core, call.credits) {
            return Taken::No;
        }
        let reduced = call.item.map(|item| Reduced::read_chunk(0, item.displacement, item.data.len() as u32));
        let reader = Reader::with_reduced(call.stream, reduced.as_slice());
        let routed = route(pass.services, reader);
        // By reference: it is large to move.
        let Route::Run(run) = &routed else { return Taken::No };
        if !self.responder.may_answer(run.head.xid) {
            return Taken::No;
        }
        let origin = self.origin(pass.core, link);
        if is_for_others(pass, run, &origin)
            || room_end - header_len < least_reply_len(run.procedure) as usize
        {
            return Taken::No;
        }
        // Filled in place: it is large to move.
        let mut data = Placed { pieces: PlacedPieces::new(), len: 0 };
        let mut held = None;
        if let Some(item) = call.item {
            if run.procedure.eligible_arguments == 0 {
                return Taken::No;
            }
            let Some((mut buf, pages)) = take_for(pass.core, &self.share, item.data.len()) else {
                return Taken::No;
            };
            buf.copy_from_slice(item.data);
            data.len = buf.len() as u32;
            data.pieces.push(buf);
            held = Some(pages);
        }
        let placed = if held.is_some() { slice::from_mut(&mut data) } else { &mut [] };
        let Some(terms) = admit_new(pass.core, run, call.stream, placed, link.id, link.peer) else {
            return Taken::No;
        };
        self.note_arrival(pass.core);
        self.host.note(&run.head.caller);
        pass.core.transit.take(&mut self.share, held.unwrap_or(0));
        pass.core.statistics.items_placed += u64::from(held.is_some());
        let least_header_len = if call.is_transmission { CONTINUATION_LEN } else { HEADER_LEN_MIN };
        let room = Room::Group(GroupRoom {
            item_room: targets.map(|run| run.room().into()),
            long_len_max: send_len_max.saturating_sub(least_header_len),
        });
        let inline_len_max = send_len_max.min(pass.core.pools.messages.unit_len());
        let execution = Execution { run, origin: &origin, terms, room, header_len, inline_len_max };
        let placed = if held.is_some() { slice::from_mut(&mut data) } else { &mut [] };
        let body = &mut space[header_len..room_end];
        if !self.execute_with(pass, execution, (placed, held), body) {
            return Taken::No;
        }
        let draft = &mut *pass.core.draft_in_place;
        let item = draft.items.first().filter(|item| item.reduced);
        let result = item.map(|item| (draft.splice, item.len));
        let answer = LoneAnswer { result, payload_len: draft.payload_len as u32 };
        let own_len = Responder2::lone_header_len(targets, &answer);
        let data_len = result.map_or(0, |(_, len)| len as usize);
        let fits = draft.items.len() <= 1
            && draft.pieces.len() <= GATHERED_PIECES_MAX
            && data_len <= GATHERED_DATA_LEN_MAX
            && targets.is_none_or(|run| run.start as usize + data_len <= send_len_max)
            && draft.long.is_empty()
            && draft.pieces.iter().all(Shared::is_stored);
        if !fits {
            return self.leave_filled(pass.core, run.head.xid, terms, header_len, &space[header_len..]);
        }
        if let Some(entry) = terms.kept {
            let payload = draft.items.is_empty().then(|| &space[header_len..][..draft.payload_len]);
            pass.core.duplicates.keep_octets(entry, payload, &mut pass.core.statistics);
        }
        let payload = header_len..header_len + draft.payload_len;
        let mut len = own_len + draft.payload_len;
        space.copy_within(payload, own_len);
        if let Some(run) = targets.filter(|_| data_len > 0) {
            let start = run.start as usize;
            space[len..start].fill(0);
            len = start;
            // Nearly always one.
            match draft.pieces.pop() {
                Some(piece) if draft.pieces.is_empty() => pieces.push(piece),
                last => pieces.extend(draft.pieces.drain(..).chain(last)),
            }
        }
        pass.core.statistics.groups_received += u64::from(call.is_transmission);
        pass.core.statistics.groups_sent += u64::from(targets.is_some());
        pass.core.statistics.items_placed += u64::from(result.is_some());
        self.end_in_place(pass.core);
        // It counts as a group, not as a short message.
        pass.core.statistics.messages_short -= u64::from(call.is_transmission);
        let limit = self.credit_limit();
        if let Some(version2) = &mut self.version2 {
            let out = &mut space[..own_len];
            let emitted =
                version2.responder2.answer_lone(&mut self.responder, &call, limit, targets, &answer, out);
            debug_assert_eq!(emitted, Ok(own_len), "the Payload stream is behind the header");
        }
        Taken::AnsweredGathered { len }
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
