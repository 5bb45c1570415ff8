//! Calls of version 2 in one Send, answered where they arrived: no Receive, no Send buffer, no completion, no slot.
//!
//! The counterpart of [`in_place`](crate::in_place) for version 2, by the same rules: anything unusual takes the general way.
//! Data is copied once, from where it arrived to where it is kept; results leave from where they lie. The client's end:
//! [`make_lone`](super::making::make_lone) and [`complete_lone`](super::calling::complete_lone).

use stag_fabric::{
    GATHERED_DATA_LEN_MAX, GATHERED_LEN_MAX, GATHERED_PIECES_MAX, GatheredPieces, ScatteredMessage, Taken,
};
use stag_memory::{Buf, Shared};
use stag_proto::layout::TargetRun;
use stag_proto::responder::{LoneAnswer, LoneCall, Responder2};
use stag_wire::rpc::leading_xid;
use stag_wire::rpcrdma2::{CONTINUATION_LEN, HEADER_LEN_MIN};
use stag_wire::xdr::Reduced;

use crate::carried::CarriedRoom;
use crate::server::draft::{Draft, Verdict};
use crate::server::serving::Serving;
use crate::server::shown::{end_in_place, keep_data, leave, leave_unanswered, origin};
use crate::server::transit::{self, MemoryHolder, TransitShare};
use crate::service::Services;
use crate::service::call::{Caller, Placed, PlacedPieces};
use crate::service::dispatch::{ReplyPolicy, Run};
use crate::service::reply::{Frame, Room, Space};
use crate::service::steps::{Arrival, Arrived, Exit, serve};
use crate::state::{EngineState, Link, Pass};
use crate::version2::answering::{GroupRoom, least_reply_len};

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
            return leave(self.serving, xid, terms, draft);
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
            return leave(self.serving, xid, terms, draft);
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
        end_in_place(self.serving, state, draft);
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
            Some(draft) => leave_unanswered(self.serving, state, self.xid, terms, draft),
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

/// Takes a Call where it arrived. [`Taken::No`]: it is for the general way, which finds in `begun` what happened already.
#[inline(never)]
pub(crate) fn take_lone<S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, EngineState, S>,
    link: Link<'_>,
    message: ScatteredMessage<'_>,
) -> Taken {
    let ScatteredMessage { octets, space: Some(space), pieces, .. } = message else { return Taken::No };
    // The first Call is a probe, which is answered with more than a Reply.
    let Some(version2) = serving.version2.as_deref().filter(|version2| version2.has_told) else {
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
    let room_end = space.len().min(send_len_max).min(targets.map_or(usize::MAX, |run| run.start as usize));
    // Data is sent right behind what is built here.
    if room_end < header_len || targets.is_some_and(|run| run.start as usize > room_end) {
        return Taken::No;
    }
    let (xid, stream) = (leading_xid(call.stream), call.stream);
    if !serving.may_take::<true>(pass.core, link, xid, call.credits) {
        return Taken::No;
    }
    let reduced = call.item.as_ref();
    let reduced = reduced.map(|item| Reduced::read_chunk(0, item.displacement, item.data.len() as u32));
    let arrived =
        Arrived { origin: origin(&serving.responder, pass.core, link), stream, reduced: reduced.as_slice() };
    // Filled in place: it is large to move.
    let mut data = reduced.map(|_| Placed { pieces: PlacedPieces::new(), len: 0 });
    let inline_len_max = send_len_max.min(pass.core.pools.messages.unit_len());
    let mut shown = ShownLone {
        serving,
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
    keep_data(&mut serving.begun, pass.core, data.as_mut_slice(), held);
    taken
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

const _: () = assert!(super::HEAD_LEN as usize <= GATHERED_LEN_MAX, "what precedes data is built in place");
