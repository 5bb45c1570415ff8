//! The Calls of a byte stream: a record is one, and its Reply goes to the outbox.

use arrayvec::ArrayVec;
use stag_wire::record::MARK_LEN;
use stag_wire::rpc::{Accepted, leading_xid};
use stag_wire::xdr::Reduced;

use super::{Connection, Ending, Later};
use crate::carried::CarriedRoom;
use crate::pools::PAGE_LEN;
use crate::security::sealed::answer_later;
use crate::server::draft::{Draft, Verdict};
use crate::server::transit::MemoryHolder;
use crate::service::call::{Caller, Placed};
use crate::service::dispatch::{Origin, ReplyPolicy, Run};
use crate::service::reply::{Frame, Reply, Room};
use crate::service::steps::{Arrival, Arrived, Exit, serve};
use crate::service::{Services, Token};
use crate::state::{Core, EngineState, Pass};
use crate::stream::outbox::PADDING_MAX;
use crate::stream::outstanding::is_reply;

/// A Call in a record.
pub(super) struct Record<'a> {
    connection: &'a mut Connection,
    xid: u32,
    /// Where it waits if it is answered later.
    slot: u32,
    /// Where its Reply begins in its page, and the octets of that.
    at: usize,
    page_len: usize,
}

impl<'a> Record<'a> {
    pub(super) fn new(connection: &'a mut Connection, xid: u32, slot: u32) -> Record<'a> {
        Record { connection, xid, slot, at: 0, page_len: 0 }
    }
}

impl Exit<EngineState> for Record<'_> {
    type Served = Result<(), Ending>;

    fn open(&mut self, state: &mut EngineState) -> Result<Box<Draft>, Self::Served> {
        let outbox = &mut self.connection.outbox;
        let Some(mut page) = outbox.open(&state.pools.payload) else {
            return Err(Err(Ending::CannotReply));
        };
        if outbox.queued() == 0 {
            self.connection.progress = state.now;
        }
        self.at = if page.len() == page.capacity() { 0 } else { page.len() };
        self.page_len = page.capacity();
        page.set_len(self.page_len);
        let mut draft = state.draft();
        draft.send = Some(page);
        draft.header_len = self.at + MARK_LEN;
        Ok(draft)
    }

    fn frame(&mut self) -> Frame<'_> {
        let (room, inline_len_max) = (Room::Stream, self.page_len - PADDING_MAX);
        let holder = Some(MemoryHolder::Share(&self.connection.share));
        Frame { xid: self.xid, room, inline_len_max, space: None, holder }
    }

    fn instead(&self, verdict: Verdict) -> Option<Accepted> {
        match verdict {
            // Arguments that were placed and must not be: on a stream they are just wrong.
            Verdict::BadChunks => Some(Accepted::GarbageArgs),
            // Longer than any Reply may be, or no memory for it.
            Verdict::TooLong | Verdict::NoMemory(_) => Some(Accepted::SystemErr),
            Verdict::Encoded | Verdict::Empty | Verdict::Panicked | Verdict::BadSum(..) => None,
        }
    }

    fn send(&mut self, state: &mut EngineState, _: ReplyPolicy, mut draft: Box<Draft>) -> Self::Served {
        if draft.is_service {
            self.connection.served = Some(state.now);
        }
        state.statistics.replies_sent += 1;
        let closed = self.connection.outbox.close(&mut draft, self.at);
        debug_assert!(closed.is_ok(), "the pieces of a result are as long as was said");
        state.put_draft(draft);
        self.connection.count_replies(&mut state.transit);
        closed.map_err(|_| Ending::CannotReply)
    }

    fn keep(
        &mut self,
        state: &mut EngineState,
        terms: ReplyPolicy,
        draft: Option<Box<Draft>>,
    ) -> Self::Served {
        if let Some(mut draft) = draft {
            if let Some(page) = draft.send.take() {
                self.connection.outbox.put_back(page, self.at);
            }
            state.put_draft(draft);
        }
        state.transit.expect(&mut self.connection.share, terms.pages as usize);
        self.connection.keep_later(self.slot, Later { xid: self.xid, terms });
        Ok(())
    }
}

impl Arrival<EngineState> for Record<'_> {
    fn meet(&mut self, caller: &Caller<'_>) {
        self.connection.host.note(caller);
    }

    fn check(&mut self, _: &mut EngineState, _: &Run<'_>) -> Result<(), Self::Served> {
        Ok(())
    }

    fn room(&mut self, _: &mut EngineState, _: &Run<'_>) -> Result<CarriedRoom, Self::Served> {
        let inline_len_max = (PAGE_LEN - MARK_LEN - PADDING_MAX) as u32;
        Ok(CarriedRoom {
            inline_len_max,
            is_stream: true,
            write_chunks: ArrayVec::new(),
            ..CarriedRoom::default()
        })
    }

    fn discard(&mut self, _: &mut EngineState) -> Self::Served {
        Ok(())
    }

    fn wait(&mut self, state: &mut EngineState) -> Self::Served {
        self.keep(state, ReplyPolicy::ENGINE, None)
    }
}

impl Connection {
    /// Runs a Call and puts its Reply into the outbox; or takes the Reply to a Call of ours.
    pub(super) fn run<P, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        stream: &[u8],
        item: Option<(&mut Placed, &[Reduced])>,
    ) -> Result<(), Ending> {
        if self.calls_back.is_some() && is_reply(stream) {
            self.take_reply(&mut pass.core.state, stream);
            return Ok(());
        }
        self.calls += 1;
        pass.core.statistics.calls_received += 1;
        let (items, reduced): (&mut [Placed], &[Reduced]) = match item {
            Some((placed, reduced)) => (std::slice::from_mut(placed), reduced),
            None => (&mut [], &[]),
        };
        let slot = self.later_slot();
        // Not borrowed from `self`, which makes the Reply.
        let (connection, peer, local) = (self.id, self.peer.clone(), self.local);
        let origin =
            Origin { connection, slot, peer: Some(&peer), local: local.as_ref(), now: pass.core.now };
        let xid = leading_xid(stream);
        let Pass { core, services } = pass;
        let pass = &mut Pass { core: &mut core.state, services: &mut **services };
        serve(pass, &mut Record::new(self, xid, slot), &Arrived { origin, stream, reduced }, items)
    }

    /// A free place for a Call that is answered later.
    fn later_slot(&self) -> u32 {
        self.later.iter().position(Option::is_none).unwrap_or(self.later.len()) as u32
    }

    fn keep_later(&mut self, slot: u32, later: Later) {
        let slot = slot as usize;
        if slot == self.later.len() {
            self.later.push(None);
        }
        self.later[slot] = Some(later);
        self.later_count += 1;
    }

    /// A Call that was left for later is answered. `false`: that Call is gone.
    pub(in crate::stream) fn finish(
        &mut self,
        state: &mut EngineState,
        token: Token,
        fill: &mut dyn FnMut(&mut Reply<'_>),
    ) -> Result<bool, Ending> {
        let Some(Later { xid, terms }) = self.take_later(state, token) else { return Ok(false) };
        answer_later(state, &mut Record::new(self, xid, token.slot), token, terms, fill)?;
        Ok(true)
    }

    /// Takes out a Call that was left for later: it is answered, or not at all.
    pub(in crate::stream) fn take_later(&mut self, state: &mut EngineState, token: Token) -> Option<Later> {
        let later = self.later.get_mut(token.slot as usize)?.take_if(|later| later.xid == token.xid)?;
        self.later_count -= 1;
        state.transit.expect_no_more(&mut self.share, later.terms.pages as usize);
        Some(later)
    }
}
