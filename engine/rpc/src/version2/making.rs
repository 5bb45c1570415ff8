//! Makes a Call of version 2: in one Send where it leaves, as a group of Sends with its data in targets, or by plan as in version
//! 1 with another header.

use arrayvec::ArrayVec;
use stag_fabric::{
    GATHERED_DATA_LEN_MAX, GATHERED_PIECES_MAX, GatheredPieces, PostError, Provider, SendRequest,
};
use stag_memory::{Buf, Shared};
use stag_proto::cut::{MessageCut, MessageShape};
use stag_proto::layout::target_numbers;
use stag_proto::requester::{ChunkLists, GroupCall, LoneRequest};
use stag_proto::responder::{LoneAnswer, Responder2};
use stag_wire::rpcrdma::Segment;
use stag_wire::rpcrdma2::{
    DirectedPlace, DirectionSet, Elements, ItemPlace, PlacedItem, ResponseTransmission, ResultDirection,
};
use stag_wire::xdr::{Overflow, Writer};

use crate::ConnectionId;
use crate::client::calling::Calling;
use crate::client::making::{Making, NOT_AS_PLANNED};
use crate::client::slot::{Ending, Slot, Stage, Written};
use crate::client::{CLIENT_SEGMENTS_MAX, CallError, CallRefused, Chunks};
use crate::state::Core;
use crate::version2::receives::take_message;
use crate::version2::{CONTINUATION_MAX, ClientVersion2, copy_pieces};

/// Whether a Call that was begun is made.
pub(crate) enum Made {
    Yes,
    /// It is for the general way, and nothing happened.
    No,
    Refused(CallRefused),
}

/// A Call's RPC message, encoded.
pub(crate) struct EncodedCall<'a> {
    pub(crate) payload: &'a [u8],
    /// Where its reduced arguments belong.
    pub(crate) positions: &'a [u32],
    pub(crate) reply_payload_len_max: u32,
}

/// What makes a Call one that may go in one Send, and be answered in one.
struct LoneShape {
    /// Octets of its data.
    data_len: u32,
    /// Octets that its result may have, if it has one.
    results: Option<u32>,
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

    /// The most Receives that a Reply takes with `results` octets in targets, and `payload_len` others. `None`: more than either end
    /// allows.
    fn reply_transmissions(&self, results: Option<u32>, payload_len: u32) -> Option<u32> {
        let own = &self.own.layout;
        let limit = (self.own.response_receives + 1).min(self.peer.response_transmissions());
        if results.is_some() && !(own.targets() > 0 && self.peer.places_results()) {
            return None;
        }
        let range = own.place(0, results.unwrap_or(0), u32::MAX)?;
        let place = ItemPlace::Buffers { offset: 0, numbers: target_numbers(&range) };
        let items = [PlacedItem { displacement: 0, len: results.unwrap_or(0), place }];
        let items = if results.is_some() { &items[..] } else { &[] };
        let response = ResponseTransmission { items: Elements::new(items), count: 1, payload_len };
        let lens: ArrayVec<u32, 1> = results.into_iter().collect();
        let lead_len = response.header_len() as u32;
        let shape = MessageShape { lead_len, payload_len: payload_len.max(8), items: &lens };
        Some(MessageCut::new(shape, own, limit).ok()?.count())
    }

    /// Posts the outbox, which counts as one of the `unsent` while it is not empty. `false`: some of it still waits.
    pub(crate) fn post_outbox<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        unsent: &mut u32,
    ) -> bool {
        let was_waiting = !self.outbox.is_empty();
        while let Some(buf) = self.outbox.pop_front() {
            let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
            if let Err(refused) = core.post_send(id, request)
                && refused.error == PostError::Full
            {
                self.outbox.push_front(refused.request.buf);
                return false;
            }
        }
        *unsent -= u32::from(was_waiting);
        true
    }
}

/// Builds and sends a Call in one Send where it leaves, if its Reply may come in one as well. `false`: it is another, or there is no
/// room, and nothing happened.
#[inline(never)]
pub(crate) fn make_lone<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    making: &Making<'_>,
    chunks: &mut Chunks,
    encode: &dyn Fn(&mut Writer<'_>) -> Result<(), Overflow>,
) -> Result<bool, CallRefused> {
    let reply_payload_len_max = making.reply_payload_len_max();
    let shape =
        calling.version2.as_deref().and_then(|version2| version2.lone_shape(chunks, reply_payload_len_max));
    let Some(LoneShape { data_len, results }) = shape else { return Ok(false) };
    if !calling.provide_receives_for(core, making.id, 1) {
        return Err(CallRefused::NoMemory);
    }
    let Some(version2) = &mut calling.version2 else { return Ok(false) };
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
    let emitted = version2.requester2.emit_lone(&mut calling.requester, making.call, &lone, stream, out);
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
    calling.keep(making, payload, &[displacement][..count], chunks, None);
    match chunks.read.take_only() {
        Some((_, data)) => pieces.push(data),
        None => pieces.extend(chunks.read.drain().map(|(_, data)| data)),
    }
    calling.occupy(core, making);
    hold_results(&mut calling.slots[making.call.index()], chunks);
    core.provider.send_gathered(making.id, len, &mut pieces);
    core.statistics.calls_sent += 1;
    core.statistics.groups_sent += u64::from(is_transmission);
    core.statistics.messages_short += u64::from(!is_transmission);
    core.statistics.items_placed += u64::from(count > 0);
    Ok(true)
}

/// Makes a Call that was begun as a group, if it fits and that is worth it.
pub(crate) fn make_group<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    making: &Making<'_>,
    chunks: &mut Chunks,
    encoded: &EncodedCall<'_>,
) -> Made {
    let Some(version2) = &calling.version2 else { return Made::No };
    // Nothing may go between the Sends of a group that is waiting.
    if !version2.outbox.is_empty() {
        return Made::Refused(CallRefused::FabricBusy);
    }
    let data_len: usize = chunks.read.iter().map(|(_, data)| data.len()).sum();
    let results_len: usize = chunks.write.iter().map(|(_, buf)| buf.len()).sum();
    let is_wanted = data_len <= version2.placement.data_max as usize
        && results_len <= version2.placement.results_max as usize;
    let has_one_result = chunks.write.iter().all(|(chunk, _)| *chunk == 0);
    if !is_wanted || !has_one_result || !version2.is_ready || !version2.takes_groups() {
        return Made::No;
    }
    let layout = version2.peer_layout;
    let offered: u32 = chunks.write.iter().map(|(_, buf)| buf.len() as u32).sum();
    let results = (!chunks.write.is_empty()).then_some(offered);
    let Some(receives) = version2.reply_transmissions(results, encoded.reply_payload_len_max) else {
        return Made::No;
    };
    // What a base message can do it does with less.
    let threshold = (version2.call_len_max() as usize).min(core.pools.messages.unit_len());
    let fits = stag_wire::rpcrdma2::HEADER_LEN_MIN + encoded.payload.len() <= threshold;
    if chunks.is_empty() && fits && receives == 1 && version2.fits_base(encoded.reply_payload_len_max) {
        return Made::No;
    }
    let mut lens: ArrayVec<u32, CLIENT_SEGMENTS_MAX> = ArrayVec::new();
    for (item, data) in chunks.read.iter() {
        match lens.get_mut(usize::from(*item)) {
            Some(len) => *len += data.len() as u32,
            None => lens.push(data.len() as u32),
        }
    }
    if lens.len() != encoded.positions.len() {
        return Made::No;
    }
    let mut items: ArrayVec<PlacedItem<'_>, CLIENT_SEGMENTS_MAX> = ArrayVec::new();
    let mut next = 0;
    for (&displacement, &len) in encoded.positions.iter().zip(&lens) {
        let Some(range) = layout.place(next, len, u32::MAX).filter(|_| layout.targets() > 0) else {
            return Made::No;
        };
        next = range.end;
        let place = ItemPlace::Buffers { offset: 0, numbers: target_numbers(&range) };
        items.push(PlacedItem { displacement, len, place });
    }
    let direction = [ResultDirection { min_len: 0, place: DirectedPlace::Buffers }];
    let sets = [DirectionSet { begin: 0, end: u32::MAX, items: Elements::new(&direction) }];
    let sets = if results.is_some() { &sets[..] } else { &[] };
    let group = GroupCall {
        items: &items,
        target_lens: &lens,
        directions: Elements::new(sets),
        payload_len: encoded.payload.len() as u32,
        response_receives: receives - 1,
    };
    let Ok(cut) = version2.requester2.plan_group(&calling.requester, &version2.peer, &layout, &group) else {
        return Made::No;
    };
    if cut.count() > CONTINUATION_MAX {
        return Made::No;
    }
    if !calling.provide_receives_for(core, making.id, receives) {
        return Made::Refused(CallRefused::NoMemory);
    }
    send_group(calling, core, making, chunks, encoded, (&group, &cut))
}

/// Sends a Call as a group that was planned.
fn send_group<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    making: &Making<'_>,
    chunks: &mut Chunks,
    encoded: &EncodedCall<'_>,
    (group, cut): (&GroupCall<'_>, &MessageCut<'_>),
) -> Made {
    let call = making.call;
    let mut sends: ArrayVec<Buf, { CONTINUATION_MAX as usize }> = ArrayVec::new();
    for sent in cut.transmissions() {
        let Some(buf) = take_message(core, sent.len as usize) else {
            return Made::Refused(CallRefused::NoMemory);
        };
        sends.push(buf);
    }
    let mut reply_buf = None;
    if group.response_receives > 0 || encoded.reply_payload_len_max as usize > core.pools.messages.unit_len()
    {
        let Some(buf) = take_message(core, encoded.reply_payload_len_max as usize) else {
            return Made::Refused(CallRefused::NoMemory);
        };
        reply_buf = Some(buf);
    }
    calling.occupy(core, making);
    calling.keep(making, encoded.payload, encoded.positions, chunks, None);
    let Some(version2) = &mut calling.version2 else { return Made::No };
    let writes: &[&[Segment]] = if group.directions.is_empty() { &[] } else { &[&[]] };
    let lists = ChunkLists { writes, ..ChunkLists::default() };
    let mut data: ArrayVec<(u8, Shared), CLIENT_SEGMENTS_MAX> = chunks.read.drain().collect();
    for (sent, out) in cut.transmissions().zip(&mut sends) {
        let requester = &mut calling.requester;
        let header_len = match sent.number {
            0 => version2.requester2.emit_lead(requester, call, group, cut, &lists, out).ok(),
            _ => version2.requester2.emit_continuation(requester, call, &sent, out).ok().flatten(),
        };
        let Some(at) = header_len else {
            core.fault(making.id, NOT_AS_PLANNED);
            return Made::Yes;
        };
        let part = &encoded.payload[sent.payload_at as usize..][..sent.payload_len as usize];
        out[at..at + part.len()].copy_from_slice(part);
        let mut filled = at + part.len();
        for piece in cut.pieces(&sent) {
            let at = piece.at as usize;
            out[filled..at].fill(0);
            filled = at + piece.len as usize;
            let pieces =
                data.iter().filter(|(number, _)| usize::from(*number) == piece.item).map(|(_, data)| data);
            copy_pieces(pieces, piece.from as usize, &mut out[at..filled]);
        }
        core.statistics.copied_bytes += u64::from(sent.len) - header_len.unwrap_or(0) as u64;
    }
    data.clear();
    version2.promised += 1 + group.response_receives;
    version2.reply_bufs[call.index()] = reply_buf;
    hold_results(&mut calling.slots[call.index()], chunks);
    core.statistics.groups_sent += 1;
    core.statistics.continuations += sends.len() as u64 - 1;
    core.statistics.items_placed += group.items.len() as u64;
    post_group(calling, core, making, sends)
}

/// Posts the Sends of a group. Those that find no room wait in the outbox, and nothing else leaves before them.
fn post_group<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    making: &Making<'_>,
    sends: ArrayVec<Buf, { CONTINUATION_MAX as usize }>,
) -> Made {
    let Making { call, id, .. } = *making;
    let (is_kept, mut is_begun) = (calling.keeps(call), false);
    for buf in sends {
        let Some(version2) = &mut calling.version2 else { return Made::No };
        if !version2.outbox.is_empty() {
            version2.outbox.push_back(buf);
            continue;
        }
        let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
        match core.post_send(id, request) {
            Ok(()) => is_begun = true,
            Err(refused) if refused.error == PostError::Full => {
                version2.outbox.push_back(refused.request.buf);
                calling.unsent += 1;
                core.ready.touch_late(id);
                is_begun = true;
            }
            // The connection is ending, and the Call with it. One that is kept counts as sent until then.
            Err(_) if is_begun => break,
            Err(refused) if is_kept && refused.error == PostError::NotConnected => return Made::Yes,
            Err(refused) => {
                let error = match refused.error {
                    PostError::NotConnected => CallError::NotSent,
                    error => CallError::NotPosted(error),
                };
                version2.forget_unsent(&mut calling.requester, call);
                calling.slots[call.index()].enter(Stage::Ending(Ending::Failed(error)));
                let memory = calling.requester.abandon(call);
                calling.settle(core, id, call, memory);
                return Made::Yes;
            }
        }
    }
    core.statistics.calls_sent += 1;
    Made::Yes
}

/// Keeps the buffers for a Call's results in its slot. The client puts the results into them, so none is exposed.
fn hold_results(slot: &mut Slot, chunks: &mut Chunks) {
    slot.reply_chunk = None;
    slot.written.clear();
    slot.reads.clear();
    for (chunk, buf) in chunks.write.drain() {
        slot.written.push(Written { chunk, handle: 0, offered: buf.len() as u32, buf: Some(buf) });
    }
}
