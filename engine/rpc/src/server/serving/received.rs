//! A Call in a Receive, or in a group of them: what happens at its steps, and the Send or the group that answers it.

use stag_fabric::Provider;
use stag_memory::Buf;
use stag_proto::responder::{self, RefusedCall, ReplyError};
use stag_wire::rpcrdma::{HEADER_LEN_MIN, SingleChunk};

use super::Serving;
use crate::carried::CarriedRoom;
use crate::client::CloseReason;
use crate::fault::fault;
use crate::server::draft::{Draft, Verdict};
use crate::server::pending::Served;
use crate::server::pulling::{read_at_once, take_at_once};
use crate::server::transit::MemoryHolder;
use crate::service::Repeat;
use crate::service::call::{Caller, Placed};
use crate::service::dispatch::{ReplyPolicy, Run};
use crate::service::reply::{Frame, Room, reply_chunk_len};
use crate::service::steps::{Arrival, Exit};
use crate::state::{Core, Link};
use crate::version2::answering::{BaseRoom, GroupRoom, answer_group, is_group, send_base};

/// What carries the Reply.
#[derive(Clone, Copy, Debug)]
enum ReplyCarrier {
    /// A Send of version 1.
    First,
    /// A Send of version 2.
    Base(BaseRoom),
    /// One or more Sends of version 2.
    Group(GroupRoom),
}

/// A Call in a Receive.
pub(crate) struct Received<'a> {
    serving: &'a mut Serving,
    link: Link<'a>,
    call: &'a responder::ReceivedCall<'a>,
    message: &'a [u8],
    /// Octets of its Reply's header, and what carries that, once it is planned.
    header_len: usize,
    reply: ReplyCarrier,
    /// Data that is not in its Payload stream.
    items: usize,
    /// All of that is here.
    are_here: bool,
    /// Pages of data that was read at once.
    pub(crate) held: Option<usize>,
    /// Memory for data that could not be, and its pages.
    pub(crate) unread: Option<(Buf, usize)>,
}

impl<'a> Received<'a> {
    /// `message` is the first of the Call's, or as much of it as says which chunks it has.
    #[inline(always)]
    pub(crate) fn new(
        serving: &'a mut Serving,
        link: Link<'a>,
        call: &'a responder::ReceivedCall<'a>,
        message: &'a [u8],
    ) -> Received<'a> {
        let (header_len, reply) = (HEADER_LEN_MIN, ReplyCarrier::First);
        let items = call.read_chunk_count();
        Received {
            serving,
            link,
            call,
            message,
            header_len,
            reply,
            items,
            are_here: false,
            held: None,
            unread: None,
        }
    }

    /// The same with its data, which was pulled or came with it.
    #[inline(always)]
    pub(crate) fn with_items(self, items: usize) -> Received<'a> {
        Received { items, are_here: true, ..self }
    }

    /// Finds out what its Reply goes by. `Err`: there can be none.
    #[inline(always)]
    fn plan<P: Provider>(&mut self, core: &mut Core<P>) -> Result<(), Result<Served, CloseReason>> {
        if self.call.is_plain() {
            return Ok(());
        }
        let form = match self.serving.responder.plan_reply(self.call.id, self.message, &[], 0) {
            Ok(form) => form,
            Err(error) => return Err(self.refuse(core, RefusedCall::Reply(error))),
        };
        self.header_len = form.header_len as usize;
        if let Some(version2) = &self.serving.version2 {
            if let Some(base) = version2.base_room(core, self.message) {
                self.reply = ReplyCarrier::Base(base);
            } else if is_group(self.message) {
                let room = version2.group_room(self.message);
                let room = room.ok_or_else(|| Err(fault("a Call is answered as a group that is none")))?;
                self.reply = ReplyCarrier::Group(room);
            }
        }
        Ok(())
    }

    #[cold]
    fn refuse<P: Provider>(&mut self, core: &mut Core<P>, why: RefusedCall) -> Result<Served, CloseReason> {
        self.serving.refuse(core, self.link.id, self.call.id, why)
    }

    /// Goes on with a Reply that was filled in where the Call arrived.
    #[cold]
    pub(crate) fn go_on<P: Provider>(
        mut self,
        core: &mut Core<P>,
        terms: ReplyPolicy,
        mut draft: Box<Draft>,
    ) -> Result<Served, CloseReason> {
        if let Err(ran) = self.plan(core) {
            core.put_draft(draft);
            return ran;
        }
        // In a group its payload is behind a longer header than that of the Reply may be.
        if !matches!(self.reply, ReplyCarrier::Group(_)) {
            draft.header_len = self.header_len;
        }
        if draft.send.is_none() && !draft.take_send(&core.pools.messages) {
            core.put_draft(draft);
            return Err(CloseReason::CannotReply);
        }
        self.send(core, terms, draft)
    }

    /// Pages that its Reply waits for; `None`: it does not wait. The Call is executed again then: so it is none that must not be, and
    /// none with data, which its handler has had.
    #[inline(always)]
    fn lacked_pages(&self, terms: ReplyPolicy, draft: &Draft) -> Option<u32> {
        let Verdict::NoMemory(pages) = draft.verdict else { return None };
        let may_wait = terms.procedure.repeat == Repeat::Harmless
            && self.call.read_chunk_count() == 0
            && !matches!(self.reply, ReplyCarrier::Group(_))
            && !self.serving.share.is_last_try;
        may_wait.then_some(pages)
    }
}

impl<P: Provider> Exit<Core<P>> for Received<'_> {
    type Served = Result<Served, CloseReason>;

    #[inline(always)]
    fn open(&mut self, core: &mut Core<P>) -> Result<Box<Draft>, Self::Served> {
        self.plan(core)?;
        let mut draft = core.draft();
        if !draft.take_send(&core.pools.messages) {
            core.put_draft(draft);
            return Err(Err(CloseReason::CannotReply));
        }
        draft.header_len = self.header_len;
        Ok(draft)
    }

    #[inline(always)]
    fn frame(&mut self) -> Frame<'_> {
        let threshold = self.serving.responder.parameters().reply_threshold as usize;
        let (room, inline_len_max) = match self.reply {
            ReplyCarrier::First => (Room::Chunks(self.call), threshold),
            ReplyCarrier::Base(BaseRoom { inline_len_max, send_len_max }) => {
                (Room::Base(self.call, send_len_max.saturating_sub(self.header_len)), inline_len_max)
            }
            ReplyCarrier::Group(room) => (Room::Group(room), threshold),
        };
        let holder = Some(MemoryHolder::Share(&self.serving.share));
        Frame { xid: self.call.xid(), room, inline_len_max, space: None, holder }
    }

    #[inline(always)]
    fn send(&mut self, core: &mut Core<P>, terms: ReplyPolicy, draft: Box<Draft>) -> Self::Served {
        if let Some(pages) = self.lacked_pages(terms, &draft) {
            core.put_draft(draft);
            return Ok(Served::Lacks(pages));
        }
        if draft.verdict != Verdict::Encoded {
            let why = match draft.verdict {
                Verdict::BadChunks => RefusedCall::Ineligible,
                _ => RefusedCall::Reply(ReplyError::NoReplyChunk),
            };
            core.put_draft(draft);
            return self.refuse(core, why);
        }
        if draft.is_service {
            self.serving.note_service(core.now);
        }
        let &mut Received { ref mut serving, link, call, message, reply, .. } = self;
        match reply {
            ReplyCarrier::First => serving.send(core, link.id, call, message, draft)?,
            ReplyCarrier::Base(_) => send_base(serving, core, link.id, call, message, draft, core.now)?,
            ReplyCarrier::Group(_) => answer_group(serving, core, link.id, call, message, draft)?,
        }
        Ok(Served::Over)
    }

    #[inline]
    fn keep(&mut self, core: &mut Core<P>, terms: ReplyPolicy, draft: Option<Box<Draft>>) -> Self::Served {
        core.transit.expect(&mut self.serving.share, terms.pages as usize);
        if let Some(draft) = draft {
            core.put_draft(draft);
        }
        Ok(Served::Later(terms))
    }
}

impl<P: Provider> Arrival<Core<P>> for Received<'_> {
    #[inline(always)]
    fn meet(&mut self, caller: &Caller<'_>) {
        self.serving.host.note(caller);
    }

    #[inline(always)]
    fn check(&mut self, core: &mut Core<P>, run: &Run<'_>) -> Result<(), Self::Served> {
        if self.items > usize::from(run.procedure.eligible_arguments) {
            // 8166-6.1-c
            return Err(self.refuse(core, RefusedCall::Ineligible));
        }
        let Serving { version2, responder, .. } = &mut *self.serving;
        if let Some(version2) = version2
            && let Some(why) = version2.reply_obstacle(responder, self.call, self.message, run.procedure)
        {
            return Err(self.refuse(core, RefusedCall::Reply(why)));
        }
        Ok(())
    }

    #[inline(always)]
    fn bring(&mut self, core: &mut Core<P>, items: &mut [Placed]) -> Result<(), Self::Served> {
        if self.items == 0 || self.are_here {
            return Ok(());
        }
        if let Some(SingleChunk::Read(read)) = self.call.single()
            && let Some(item) = items.first_mut()
            && !self.serving.has_waiting()
            && let Some((mut buf, pages)) = take_at_once(core, &self.serving.share, read)
        {
            if !read_at_once(core, self.link.id, &mut buf, read) {
                // More is read a window at a time.
                if core.transit.may_ask(&self.serving.share, &core.pools.payload, pages) {
                    self.unread = Some((buf, pages));
                }
                return Err(Ok(Served::Pulls));
            }
            core.transit.take(&mut self.serving.share, pages);
            self.held = Some(pages);
            item.len = buf.len() as u32;
            item.pieces.push(buf);
            return Ok(());
        }
        Err(Ok(Served::Pulls))
    }

    fn room(&mut self, core: &mut Core<P>, run: &Run<'_>) -> Result<CarriedRoom, Self::Served> {
        self.plan(core)?;
        let share = &self.serving.share;
        let eligible = usize::from(run.procedure.eligible_results);
        let threshold = self.serving.responder.parameters().reply_threshold as usize;
        let chunk_len = reply_chunk_len(self.call);
        let (inline_len_max, long_len_max) = match &self.reply {
            ReplyCarrier::First => (threshold, chunk_len.max(share.exposed_len_max as usize)),
            ReplyCarrier::Base(base) => {
                (base.inline_len_max, chunk_len.max(base.send_len_max.saturating_sub(self.header_len)))
            }
            ReplyCarrier::Group(group) => (threshold, group.long_len_max),
        };
        Ok(CarriedRoom {
            inline_len_max: inline_len_max.saturating_sub(self.header_len) as u32,
            reply_chunk_len: long_len_max as u32,
            is_stream: false,
            wants_few_pieces: !core.transit.may_list(share),
            is_last_try: share.is_last_try,
            write_chunks: match &self.reply {
                ReplyCarrier::Group(group) => group.item_room.into_iter().take(eligible).collect(),
                _ => (0..eligible).map_while(|item| self.call.write_room(item)).collect(),
            },
        })
    }

    fn discard(&mut self, core: &mut Core<P>) -> Self::Served {
        self.serving.discard(core, self.link.id, self.call.id);
        Ok(Served::Over)
    }

    fn wait(&mut self, _: &mut Core<P>) -> Self::Served {
        Ok(Served::Repeats)
    }
}
