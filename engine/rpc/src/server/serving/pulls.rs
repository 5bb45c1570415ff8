//! Calls of a serving connection whose chunks are on their way, or wait for memory; and time limits for both.

use std::time::Duration;

use stag_fabric::{Provider, WorkError};
use stag_memory::Buf;
use stag_proto::responder::{CallPayload, RefusedCall, ResponderCallId};

use super::Serving;
use crate::client::CloseReason;
use crate::connection::FinishedRead;
use crate::fault::fault;
use crate::server::pending::{Pending, PullNeed, Stage};
use crate::server::pulling::{
    Lack, Pressure, Pull, SILENCE_MAX, in_one_piece, place_wanted, plan_chunks, plan_long, post_reads,
};
use crate::server::pushing::Posted;
use crate::server::transit::{self, Obstacle};
use crate::service::Services;
use crate::state::{Core, Link, Pass};

impl Serving {
    /// Notes the client's progress; a client that lets nothing be read is no longer trusted. Returns whether it has left its
    /// Replies untaken, or our Reads unanswered, for too long. Each pull has a time of its own.
    pub(crate) fn observe_progress<P>(&mut self, core: &Core<P>) -> bool {
        let is_awaited = !self.sends.is_empty()
            || !self.blocked.is_empty()
            || self.exposing.as_ref().is_some_and(|exposing| exposing.has_waiting());
        if self.progress.observe(is_awaited, core.now, core.config.peer_timeout) {
            return true;
        }
        if self.share.unanswered() == 0 {
            return false;
        }
        let now = core.now;
        if self.pulls().any(|pull| pull.is_silent(now)) {
            self.share.is_trusted = false;
        }
        self.pulls().any(|pull| pull.is_overdue(now))
    }

    /// What is being pulled.
    fn pulls(&self) -> impl Iterator<Item = &Pull> {
        self.slots.iter().flatten().filter_map(Pending::pull)
    }

    /// How a Call waits for memory that others hold, if one does, and if its connection holds next to nothing: only
    /// then others have to give some back.
    pub(crate) fn pressure<P>(&self, core: &Core<P>) -> Option<Pressure> {
        // One whose own peer does not answer waits for that.
        if self.awaiting_memory.is_empty() || self.share.is_suspended {
            return None;
        }
        let pool = &core.pools.payload;
        let probe = transit::probe_len(pool, core.config.connections_max);
        if self.share.held() > if self.share.is_trusted { probe } else { 0 } {
            return None;
        }
        let slot = self.slots[*self.awaiting_memory.front()? as usize].as_ref();
        let pull = slot.and_then(Pending::pull)?;
        let since = pull.waits?;
        let owner = match core.transit.obstacle(&self.share, pool, pull.missing_pages(pool), pull.held) {
            Some(Obstacle::Owner(owner)) => Some(owner),
            // For a Reply it waits for what its own owner holds, be it at another reactor.
            None | Some(Obstacle::Connection) if pull.awaits_reply() => Some(self.share.account()),
            _ => None,
        };
        Some(Pressure { time: core.now.saturating_sub(since), owner })
    }

    /// Takes memory back, if the client has let nothing be read for a while: all that no Read is under way for.
    #[cold]
    pub(crate) fn vacate<P>(&mut self, core: &mut Core<P>) {
        if self.share.unanswered() == 0 || self.pulls().any(|pull| pull.is_fresh(core.now)) {
            return;
        }
        self.share.is_suspended = true;
        for slot in 0..self.slots.len() {
            let Some(pending) = &mut self.slots[slot] else { continue };
            let call = pending.id;
            let Some((_, pull)) = pending.pull_mut() else { continue };
            let (pages, asked) = pull.vacate(&core.pools.payload, core.now);
            if pages > 0 {
                core.transit.give(&mut self.share, pages);
                core.transit.unask(&mut self.share, asked);
                self.await_memory(call, Duration::MAX);
            }
        }
    }

    /// Whether it has some of the memory of `owner`; with `None`, of any owner.
    pub(crate) fn is_of(&self, owner: Option<u32>) -> bool {
        owner.is_none_or(|owner| self.share.is_of(owner))
    }

    /// Pages held for pulls of which the client lets nothing be read, and for Replies of which it takes nothing.
    pub(crate) fn idle_pages<P>(&self, core: &Core<P>) -> usize {
        let mut pages = 0;
        if self.progress.silence(core.now) >= SILENCE_MAX {
            pages += self.share.replies();
        }
        if self.share.unanswered() > 0 {
            let silent = self.pulls().filter(|pull| pull.is_silent(core.now));
            pages += silent.map(|pull| pull.held).sum::<usize>();
        }
        pages
    }

    /// Begins to pull what a Call has in Read chunks: its Payload stream, or its data, which may be beside that.
    pub(super) fn pull<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        (call_id, xid): (ResponderCallId, u32),
        message: Buf,
        pull: Option<Box<Pull>>,
    ) -> Result<(), CloseReason> {
        let mut pull = pull.unwrap_or_else(|| pass.core.pulls.take());
        let Some(call) = self.responder.call(call_id, &message) else {
            self.put_pull(pass.core, pull);
            return Err(fault("a Call that just came is not in process"));
        };
        match call.payload {
            CallPayload::Long(len) if pull.long.is_empty() => plan_long(pass.core, &mut pull, len),
            _ if pull.items.is_empty() => plan_chunks(pass.core, &mut pull, &call),
            _ => {}
        }
        self.keep(call_id, xid, Stage::Pulling { message, pull, need: PullNeed::Reads });
        self.advance(pass, link, call_id)
    }

    /// Posts the Reads of a Call that are due, and runs the Call when all are done.
    pub(super) fn advance<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        call_id: ResponderCallId,
    ) -> Result<(), CloseReason> {
        loop {
            let Some(pending) = &mut self.slots[call_id.index()] else {
                return Err(fault("a Call goes on that is in no slot"));
            };
            // A Call that a service has already keeps its memory until it is answered. It comes here when its slot waited for
            // something as long as another Call was in it.
            let Some((message, pull)) = pending.pull_mut() else { return Ok(()) };
            let Some(call) = self.responder.call(call_id, message) else {
                return Err(fault("a Call in a slot is not in process"));
            };
            match place_wanted(pass.core, &mut self.share, pull) {
                Ok(()) => {}
                Err(Lack::ForNow) => {
                    let memory_wait_max =
                        pull.waits.map_or(pass.core.now, |since| pull.memory_wait_max(since));
                    self.await_memory(call_id, memory_wait_max);
                    return Ok(());
                }
                Err(Lack::ForGood) => {
                    self.release(pass.core, call_id);
                    // There is no memory for a Long Call: its sender may try again later.
                    return self.refuse(pass.core, link.id, call_id, RefusedCall::Payload).map(|_| ());
                }
            }
            match post_reads(pass.core, &mut self.share, link.id, &call, pull) {
                Posted::All => {}
                Posted::Full => {
                    pending.set_need(PullNeed::Room);
                    self.wait(call_id);
                    return Ok(());
                }
                Posted::Refused => return Err(CloseReason::CannotReply),
                Posted::Faulty(what) => return Err(fault(what)),
            }
            if pull.pending > 0 {
                pending.set_need(PullNeed::Reads);
                return Ok(());
            }
            if pass.core.is_short() {
                pending.set_need(PullNeed::Room);
                self.wait(call_id);
                return Ok(());
            }
            if pull.wants_more() {
                continue;
            }
            if matches!(call.payload, CallPayload::Long(_)) && pull.long.is_empty() {
                // The Payload stream is here; there may be data chunks beside it.
                pull.keep_long();
                let gathered = &mut pass.core.gathered;
                let stream = in_one_piece(&pull.long, gathered);
                if let Err(error) = self.responder.handle_pulled(call_id, stream) {
                    self.release(pass.core, call_id);
                    self.replace_receive(pass.core, link.id);
                    let Some(error) = error else { return Err(fault("a Call was pulled that is over")) };
                    return self.send_error(pass.core, link.id, &error);
                }
            }
            break;
        }
        self.run_slot(pass, link, call_id)
    }

    /// Runs a Call whose Payload stream, or all of whose data, is here.
    fn run_slot<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        call_id: ResponderCallId,
    ) -> Result<(), CloseReason> {
        let Some(pending) = self.release_slot(call_id) else {
            return Err(fault("a Call goes on that is in no slot"));
        };
        let xid = pending.xid;
        let Stage::Pulling { message, mut pull, .. } = pending.into_stage() else {
            return Err(fault("a Call goes on that pulls nothing"));
        };
        pull.collect();
        let Some(call) = self.responder.call(call_id, &message) else {
            self.put_pull(pass.core, pull);
            return Err(fault("a Call in a slot is not in process"));
        };
        let long = std::mem::take(&mut pull.long);
        let mut gathered = std::mem::take(&mut pass.core.gathered);
        let stream = match call.payload {
            CallPayload::Inline(stream) => stream,
            CallPayload::Long(_) => in_one_piece(&long, &mut gathered),
        };
        self.share.is_last_try = pull.is_last_try;
        let ran = self.run_pulled(pass, link, &call, (&message, stream), &mut pull);
        self.share.is_last_try = false;
        pass.core.gathered = gathered;
        pull.long = long;
        match ran {
            Ok(ran) => self.settle(pass, link, (call_id, xid), message, Some(pull), ran),
            Err(reason) => {
                self.put_pull(pass.core, pull);
                Err(reason)
            }
        }
    }

    /// Puts away what a Call pulled, with its memory.
    pub(crate) fn put_pull<P>(&mut self, core: &mut Core<P>, mut pull: Box<Pull>) {
        core.transit.give(&mut self.share, std::mem::take(&mut pull.held));
        core.put_pull(pull);
    }

    /// Lets a Call wait for `pages` for its Reply, as a pull waits. It is executed again then; what was pulled of it stays.
    #[cold]
    pub(crate) fn starve<P>(
        &mut self,
        core: &mut Core<P>,
        id: ResponderCallId,
        xid: u32,
        message: Buf,
        pull: Option<Box<Pull>>,
        pages: u32,
    ) {
        let mut pull = pull.unwrap_or_else(|| core.pulls.take());
        core.statistics.replies_starved += 1;
        pull.await_reply(pages as usize, core.now);
        let memory_wait_max = pull.memory_wait_max(core.now);
        core.state.transit.refuse(&mut self.share, &core.state.pools.payload);
        self.keep(id, xid, Stage::Pulling { message, pull, need: PullNeed::Reads });
        self.await_memory(id, memory_wait_max);
    }

    /// Lets a Call wait for memory, until `memory_wait_max`.
    #[cold]
    pub(super) fn await_memory(&mut self, call: ResponderCallId, memory_wait_max: Duration) {
        let slot = call.index() as u32;
        if let Some(pending) = &mut self.slots[call.index()] {
            pending.set_need(PullNeed::Memory);
        }
        if self.awaiting_memory.is_empty() {
            self.memory_wait_max = memory_wait_max;
        }
        self.memory_wait_max = self.memory_wait_max.min(memory_wait_max);
        if !self.awaiting_memory.contains(&slot) {
            self.awaiting_memory.push_back(slot);
        }
    }

    /// Tries again what waited for memory, if there is any use in it. Returns how many Calls go on.
    #[cold]
    pub(super) fn feed<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
    ) -> Result<usize, CloseReason> {
        if pass.core.now < self.memory_wait_max
            && !pass.core.transit.is_worth_trying(&self.share, &pass.core.pools.payload)
        {
            return Ok(0);
        }
        // Those that go on waiting say until when.
        self.memory_wait_max = Duration::MAX;
        let waited = self.awaiting_memory.len();
        for _ in 0..waited {
            let Some(slot) = self.awaiting_memory.pop_front() else { break };
            // It may have got memory by another way, and be answered.
            let Some(call_id) = self.slots[slot as usize].as_ref().map(|pending| pending.id) else {
                continue;
            };
            self.advance(pass, link, call_id)?;
        }
        Ok(waited.saturating_sub(self.awaiting_memory.len()))
    }

    /// Lets a Call wait for room in the send queue, or for memory.
    #[cold]
    pub(crate) fn wait(&mut self, call: ResponderCallId) {
        let slot = call.index() as u32;
        if !self.waiting.contains(&slot) {
            self.waiting.push_back(slot);
        }
    }

    /// A Read is done.
    pub(crate) fn read_done<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        link: Link<'_>,
        read: FinishedRead,
    ) -> Result<(), CloseReason> {
        let FinishedRead { request, buf, result } = read;
        let (slot, place) = ((request >> 32) as usize, (request & 0xffff_ffff) as usize);
        // A Call stays in its slot while a Read for it is under way.
        let pending = self.slots.get_mut(slot).and_then(Option::as_mut);
        let Some((call_id, xid, pull)) =
            pending.and_then(|pending| Some((pending.id, pending.xid, pending.pull_mut()?.1)))
        else {
            return Err(fault("a Read is done for a Call that is in no slot"));
        };
        let Some(incoming) = pull.incoming.get_mut(place).filter(|incoming| incoming.buf.is_none()) else {
            return Err(fault("a Read is done that its Call did not wait for"));
        };
        incoming.buf = Some(buf);
        if let Err(error) = result {
            if error == WorkError::RemoteAccess {
                pass.core.state.refused_calls.add(link.peer, xid, pass.core.state.now);
            }
            // The connection is ending, with everything in it.
            return Ok(());
        }
        pass.core.statistics.read_bytes += u64::from(incoming.len);
        let pages = transit::pages(&pass.core.pools.payload, incoming.len as usize);
        pull.pending -= 1;
        pull.in_flight -= 1;
        pull.touched = pass.core.now;
        pass.core.state.transit.answered(&mut self.share, pages);
        if pull.is_here() && !pass.core.is_short() {
            return self.run_slot(pass, link, call_id);
        }
        self.advance(pass, link, call_id)
    }
}
