//! The home's part of a carried Call: it came in a record of a lane, and its Reply goes back in one.

use stag_fabric::Peer;
use stag_memory::Shared;
use stag_runtime::ReactorId;
use stag_wire::rpcrdma::HEADER_LEN_MIN;

use super::light::{PAYLOAD_MAX, send_short, send_single};
use super::record::{CarriedItem, CarriedReply, CarriedRoom, Ending, WRITE_CHUNKS_MAX};
use super::{Carrier, LaterCall, name_elsewhere};
use crate::server::draft::{Draft, Verdict};
use crate::server::owner::owner;
use crate::server::transit::MemoryHolder;
use crate::service::Token;
use crate::service::call::Caller;
use crate::service::dispatch::{ReplyPolicy, Run};
use crate::service::reply::{Frame, Reply, Room, Space};
use crate::service::steps::{Arrival, Exit, answer};
use crate::state::EngineState;
use crate::statistics::Statistics;

/// A carried Call at its home.
pub(super) struct Answering<'a> {
    pub(super) from: ReactorId,
    /// Names it where its connection is.
    token: Token,
    pub(super) peer: Option<&'a Peer>,
    /// Where it waits here if it is answered later.
    slot: u32,
    room: &'a CarriedRoom,
    /// Where its payload is built: the carrier's.
    space: Vec<u8>,
}

impl<'a> Answering<'a> {
    #[inline(always)]
    pub(super) fn new(
        from: ReactorId,
        token: Token,
        peer: Option<&'a Peer>,
        room: &'a CarriedRoom,
    ) -> Answering<'a> {
        Answering { from, token, peer, slot: 0, room, space: Vec::new() }
    }

    /// If it is answered later, it waits in this place. Returns its name here.
    #[inline(always)]
    pub(super) fn wait_at(&mut self, slot: u32) -> Token {
        self.slot = slot;
        Token { connection: name_elsewhere(self.from, self.token.connection), slot, xid: self.token.xid }
    }

    /// Sends a Reply without memory, or with one piece of a store's, to where the Call came in. `false`: it is another.
    #[inline]
    fn send_light(&mut self, carrier: &mut Carrier, statistics: &mut Statistics, draft: &mut Draft) -> bool {
        let is_light = draft.verdict == Verdict::Encoded
            && draft.long.is_empty()
            && draft.payload_len <= PAYLOAD_MAX
            && self.from != carrier.own;
        let payload = match self.space.get(..draft.payload_len) {
            Some(payload) if is_light => payload,
            _ => return false,
        };
        match (&draft.items[..], &draft.pieces[..]) {
            ([], []) => send_short(carrier.vacant(self.from), &self.token, draft.is_service, payload),
            ([item], [piece]) if item.reduced && piece.is_stored() => {
                let len = piece.len();
                send_single(carrier.vacant(self.from), &self.token, draft, payload, len);
                if let Some(piece) = draft.pieces.pop() {
                    carrier.attach(self.from, piece.lend());
                }
                statistics.pieces_lent += 1;
            }
            _ => return false,
        }
        true
    }

    /// The Call is answered later.
    #[cold]
    fn keep_later(&self, state: &mut EngineState, terms: ReplyPolicy) {
        let mut share = state.transit.open(owner(self.peer));
        state.transit.expect(&mut share, terms.pages as usize);
        let (peer, room) = (self.peer.cloned(), self.room.clone());
        let call = LaterCall { from: self.from, token: self.token, peer, room, terms, share };
        if let Some(carrier) = &mut state.carrier {
            carrier.keep_later(self.slot, call);
        }
    }

    /// Sends any Reply to where the Call came in, with the memory of its draft.
    #[inline(never)]
    fn send_any(&mut self, state: &mut EngineState, draft: &mut Draft) {
        let EngineState { statistics, carrier, transit, .. } = state;
        let Some(carrier) = carrier else { return };
        let ending = match draft.verdict {
            Verdict::Encoded => Ending::Encoded,
            Verdict::BadChunks => Ending::BadChunks,
            Verdict::NoMemory(_) => Ending::NoMemory,
            Verdict::TooLong | Verdict::Empty | Verdict::Panicked | Verdict::BadSum(..) => Ending::TooLong,
        };
        let is_inline = ending == Ending::Encoded && draft.long.is_empty();
        let payload = if is_inline { &self.space[..draft.payload_len] } else { &[] };
        let items = draft.items.iter().take(WRITE_CHUNKS_MAX).map(|item| CarriedItem {
            len: item.len,
            pieces_end: item.pieces_end as u16,
            is_reduced: item.reduced,
        });
        let reply = CarriedReply {
            token: self.token,
            are_stored: draft.pieces.iter().all(Shared::is_stored),
            ending,
            is_service: draft.is_service,
            splice: draft.splice,
            left_out: draft.left_out,
            items: items.collect(),
            pieces: draft.pieces.len() as u16,
            long: (draft.long.len() as u16, if is_inline { 0 } else { draft.payload_len as u32 }),
        };
        if self.from != carrier.own {
            carrier.note_lent(transit, self.peer, draft);
        }
        let Draft { pieces, long, .. } = draft;
        let count = pieces.len() + long.len();
        let pieces = pieces.drain(..).chain(long.drain(..));
        statistics.pieces_lent += count as u64;
        carrier.send_reply(self.from, &reply, payload, (count, pieces));
    }
}

impl Exit<EngineState> for Answering<'_> {
    type Served = ();

    #[inline(always)]
    fn open(&mut self, state: &mut EngineState) -> Result<Box<Draft>, ()> {
        if let Some(carrier) = &mut state.carrier {
            self.space = std::mem::take(&mut carrier.space);
        }
        Ok(state.draft_in_place())
    }

    #[inline(always)]
    fn frame(&mut self) -> Frame<'_> {
        let room = self.room;
        Frame {
            xid: self.token.xid,
            room: Room::Carried(room),
            inline_len_max: room.inline_len_max as usize + HEADER_LEN_MIN,
            space: Some(Space { octets: &mut self.space, header_len: HEADER_LEN_MIN }),
            holder: Some(MemoryHolder::Guest { owner: owner(self.peer), is_last_try: room.is_last_try }),
        }
    }

    #[inline]
    fn payload<'d>(&'d self, draft: &'d Draft) -> Option<&'d [u8]> {
        self.space.get(..draft.payload_len)
    }

    #[inline]
    fn send(&mut self, state: &mut EngineState, _: ReplyPolicy, mut draft: Box<Draft>) {
        let EngineState { carrier: Some(carrier), statistics, .. } = state else {
            // An engine does not leave its group.
            return state.put_draft(draft);
        };
        if !self.send_light(carrier, statistics, &mut draft) {
            self.send_any(state, &mut draft);
        }
        if let Some(carrier) = &mut state.carrier {
            carrier.space = std::mem::take(&mut self.space);
        }
        draft.forget_results();
        state.put_draft_in_place(draft);
    }

    #[cold]
    fn keep(&mut self, state: &mut EngineState, terms: ReplyPolicy, draft: Option<Box<Draft>>) {
        if let Some(mut draft) = draft {
            draft.forget_results();
            state.put_draft_in_place(draft);
        }
        if let Some(carrier) = &mut state.carrier {
            carrier.space = std::mem::take(&mut self.space);
        }
        self.keep_later(state, terms);
    }
}

impl Arrival<EngineState> for Answering<'_> {
    const MAY_LEAVE: bool = false;
    const IS_VERIFIED: bool = true;

    #[inline(always)]
    fn meet(&mut self, _: &Caller<'_>) {}

    #[inline(always)]
    fn check(&mut self, _: &mut EngineState, _: &Run<'_>) -> Result<(), ()> {
        Ok(())
    }

    fn room(&mut self, state: &mut EngineState, _: &Run<'_>) -> Result<CarriedRoom, ()> {
        self.discard(state);
        Err(())
    }

    #[cold]
    fn discard(&mut self, state: &mut EngineState) {
        if let Some(carrier) = &mut state.carrier {
            let reply = CarriedReply::dropped(self.token);
            carrier.send_reply(self.from, &reply, &[], (0, std::iter::empty()));
        }
    }

    #[cold]
    fn wait(&mut self, state: &mut EngineState) {
        self.keep_later(state, ReplyPolicy::ENGINE);
    }
}

/// Another reactor's Call that was left for later is answered. `false`: that Call is gone.
pub(crate) fn finish(state: &mut EngineState, token: Token, fill: &mut dyn FnMut(&mut Reply<'_>)) -> bool {
    let Some(LaterCall { from, token: theirs, peer, room, terms, .. }) = take_later(state, token) else {
        return false;
    };
    answer(state, &mut Answering::new(from, theirs, peer.as_ref(), &room), terms, fill);
    true
}

/// Another reactor's Call that was left for later is not answered at all.
#[cold]
pub(crate) fn drop_later(state: &mut EngineState, token: Token) {
    if let Some(LaterCall { from, token: theirs, room, .. }) = take_later(state, token) {
        Answering::new(from, theirs, None, &room).discard(state);
    }
}

fn take_later(state: &mut EngineState, token: Token) -> Option<LaterCall> {
    let mut call = state.carrier.as_mut()?.take_later(&token)?;
    state.transit.close(&mut call.share);
    Some(call)
}
