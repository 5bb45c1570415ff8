//! Replies that a serving connection exposes, because they fit neither inline nor in a Reply chunk (reliable reply).
//!
//! ```text
//!  the service's results ─▶ waiting ── one of the E places is free ─▶ exposed ── RDMA_DONE ─▶ fenced, and the place is free
//!                                                                       └ `peer_timeout` ─▶ fenced; the place waits for RDMA_DONE
//! ```
//!
//! Only if both ends announced it when they connected. An RDMA_DONE takes no credit, so as many Receives as places are posted
//! beside those of the Calls (RR-P-8). Each of them is posted again, with the buffer that the RDMA_DONE came in, so none is
//! ever missing, however little memory is left.

use std::collections::VecDeque;
use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{Exposed, Fence, Handle, Provider};
use stag_memory::{Buf, Shared};
use stag_proto::exposed::{DoneOutcome, ExposedId, ExposedReplies};
use stag_proto::requester::ExposedMemory;
use stag_proto::responder::{self, RefusedCall, ReplyError};
use stag_wire::rpcrdma::{Done, ReadSegment, Segment, replace_read_segments};

use super::Serving;
use crate::ConnectionId;
use crate::client::CloseReason;
use crate::client::offering::segment;
use crate::config::{EXPOSED_SEGMENTS_MAX, EngineConfig};
use crate::fault::fault;
use crate::pools::PAGE_LEN;
use crate::server::doomed::reply_id;
use crate::server::draft::{Draft, transit_pages};
use crate::server::pulling::SILENCE_MAX;
use crate::server::pushing::plan_writes;
use crate::server::transit::TransitShare;
use crate::state::Core;

/// What one place of the table holds.
#[derive(Debug, Default)]
struct Place {
    reply: Option<ExposedId>,
    /// Handles that are not dead.
    handles: ArrayVec<u32, EXPOSED_SEGMENTS_MAX>,
    /// Pages that are counted for it.
    pages: u32,
    /// Since when the peer may read it.
    since: Duration,
    /// Exposed: neither told of nor revoked.
    is_awaited: bool,
}

/// A Reply whose message is made, but for its handles.
#[derive(Debug)]
struct Waiting {
    xid: u32,
    draft: Box<Draft>,
    pages: u32,
}

/// The exposed Replies of one serving connection, and their memory.
#[derive(Debug)]
pub(crate) struct Exposing {
    replies: ExposedReplies,
    places: Box<[Place]>,
    /// Replies that wait for a place, oldest first.
    waiting: VecDeque<Waiting>,
    /// Receives posted for RDMA_DONE.
    done_receives: u32,
    /// Places whose Reply the peer may read.
    awaited: u32,
}

impl Exposing {
    /// Octets of heap of one, with its queue full.
    pub(crate) fn footprint(config: &EngineConfig) -> usize {
        let places = config.exposed_replies as usize;
        let offers = size_of::<u32>() * (places * EXPOSED_SEGMENTS_MAX);
        let waiting = (config.credits_max as usize + 1).next_power_of_two() * size_of::<Waiting>();
        // Of the table of `proto` a place has 64 octets at most.
        if places == 0 {
            0
        } else {
            size_of::<Exposing>() + places * (size_of::<Place>() + 64) + offers + waiting
        }
    }

    /// Whether the peer may read no exposed Reply, and none waits for a place.
    pub(super) fn is_idle(&self) -> bool {
        self.awaited == 0 && self.waiting.is_empty()
    }

    /// Whether a Reply waits for a place, which the peer frees by an RDMA_DONE.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A Receive came back while the connection ends. `false`: it was none of those for RDMA_DONE.
    pub(super) fn lose_receive(&mut self) -> bool {
        let is_own = self.done_receives > 0;
        self.done_receives -= u32::from(is_own);
        is_own
    }

    /// The place whose Reply has this handle.
    fn owner(&self, handle: Handle) -> Option<usize> {
        self.places.iter().position(|place| place.handles.contains(&handle.0))
    }

    /// The peer may not read a Reply any more.
    fn revoked(&mut self, reply: ExposedId) {
        let place = &mut self.places[reply.index()];
        self.awaited -= u32::from(std::mem::take(&mut place.is_awaited));
    }

    /// Revokes the exposed Reply that has the xid of a new Call: the peer does not need that Reply any more.
    #[cold]
    pub(super) fn supersede<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        share: &mut TransitShare,
        xid: u32,
    ) {
        if self.awaited == 0 {
            return;
        }
        if let Some(reply) = self.replies.handle_call(xid) {
            self.revoked(reply);
            self.end_exposure(core, id, share, reply);
        }
    }

    /// Revokes Replies that the peer could read for longer than `limit`.
    #[cold]
    fn revoke_older<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        share: &mut TransitShare,
        limit: impl Fn(&Place) -> Duration,
    ) {
        for index in 0..self.places.len() {
            if self.awaited == 0 {
                return;
            }
            let place = &self.places[index];
            let is_over = core.now >= place.since.saturating_add(limit(place));
            if let Some(reply) = place.reply.filter(|_| place.is_awaited && is_over) {
                let _ = self.replies.revoke(reply);
                self.revoked(reply);
                core.statistics.exposures_expired += 1;
                self.end_exposure(core, id, share, reply);
            }
        }
    }

    /// A handle of the Reply in this place is fenced, and its memory is back.
    fn handle_dead<P>(&mut self, core: &mut Core<P>, share: &mut TransitShare, index: usize, handle: u32) {
        let place = &mut self.places[index];
        place.handles.retain(|own| *own != handle);
        let memory = place.reply.and_then(|reply| self.replies.handle_fenced(reply, handle));
        if memory == Some(ExposedMemory::Safe) {
            self.release_place(core, share, index);
        }
    }

    /// Nothing of the Reply in this place is exposed any more.
    fn release_place<P>(&mut self, core: &mut Core<P>, share: &mut TransitShare, index: usize) {
        let pages = std::mem::take(&mut self.places[index].pages);
        core.transit.give_reply(share, pages as usize);
    }

    /// Fences the rest of a Reply that the peer has read, or that was revoked.
    fn end_exposure<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        share: &mut TransitShare,
        reply: ExposedId,
    ) {
        while let Some(handle) = self.replies.poll_fence(reply) {
            core.statistics.local_fences += 1;
            match core.provider.fence(id, Handle(handle), 0) {
                Some(Fence::Done(_)) => self.handle_dead(core, share, reply.index(), handle),
                // None: the connection is ending, and its completion carries the memory.
                Some(Fence::Pending) | None => {}
            }
        }
        if self.places[reply.index()].handles.is_empty() {
            self.release_place(core, share, reply.index());
        }
    }

    /// The connection is gone, and all exposed memory came back.
    pub(super) fn close<P>(mut self, core: &mut Core<P>) {
        self.replies.handle_disconnect(|_| {});
        for waiting in self.waiting.drain(..) {
            core.put_draft(waiting.draft);
        }
    }
}

const FOREIGN_HANDLE: &str = "its Send invalidated a handle that it must not (RR-4.1.4-c)";

/// Lets Replies be exposed from now on: the peer said that it pulls them. Returns how many at once, which is as many as there were
/// Receives to post for; the caller tells the peer of them.
#[cold]
pub(crate) fn expose_replies<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
) -> u16 {
    let mut posted = 0;
    while posted < core.config.exposed_replies
        && !core.is_short()
        && let Some(buf) = core.pools.messages.take()
        && core.provider.post_receive(id, 0, buf).is_ok()
    {
        posted += 1;
    }
    // The configuration has no more than that.
    let count = u16::try_from(posted).unwrap_or(u16::MAX);
    if count > 0 {
        let remote_invalidation = serving.responder.parameters().remote_invalidation;
        serving.share.exposed_len_max = core.config.exposed_len_max;
        serving.exposing = Some(Box::new(Exposing {
            replies: ExposedReplies::new(count, EXPOSED_SEGMENTS_MAX as u32, remote_invalidation),
            places: (0..count).map(|_| Place::default()).collect(),
            waiting: VecDeque::new(),
            done_receives: posted,
            awaited: 0,
        }));
    }
    count
}

/// Takes a message in if it is an RDMA_DONE and Replies are exposed; else hands it back. `Err`: the connection has to end.
#[inline(never)]
pub(crate) fn take_done<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    message: Buf,
    invalidated: Option<Handle>,
) -> Result<Option<Buf>, CloseReason> {
    let Some(exposing) = serving.exposing.as_deref_mut() else { return Ok(Some(message)) };
    let Some(done) = Done::parse(&message) else {
        let is_misused = invalidated.is_some_and(|handle| exposing.owner(handle).is_some());
        return match is_misused {
            true => Err(CloseReason::Violation(FOREIGN_HANDLE)),
            false => Ok(Some(message)),
        };
    };
    if core.provider.post_receive(id, 0, message).is_err() {
        // The connection is ending.
        exposing.done_receives = exposing.done_receives.saturating_sub(1);
    }
    match exposing.replies.handle_done(done.xid, invalidated.map(|handle| handle.0)) {
        DoneOutcome::Told { reply, .. } => {
            core.statistics.replies_taken += 1;
            let handles = &mut exposing.places[reply.index()].handles;
            handles.retain(|own| invalidated.is_none_or(|handle| handle.0 != *own));
            exposing.revoked(reply);
            serving.progress.step();
            exposing.end_exposure(core, id, &mut serving.share, reply);
            expose_waiting(serving, core, id)?;
        }
        DoneOutcome::Unknown => core.statistics.messages_discarded += 1,
        DoneOutcome::ForeignHandle(_) => return Err(CloseReason::Violation(FOREIGN_HANDLE)),
    }
    Ok(None)
}

/// Ends the access to Replies that the peer has left unread for too long (RR-4.1.3-f).
pub(crate) fn revoke_overdue<P: Provider>(serving: &mut Serving, core: &mut Core<P>, id: ConnectionId) {
    let limit = core.config.peer_timeout;
    if let Some(exposing) = &mut serving.exposing {
        exposing.revoke_older(core, id, &mut serving.share, |_| limit);
    }
}

/// The same, where others wait for the memory: for as long as a silent peer's pulls keep theirs.
pub(crate) fn revoke_silent<P: Provider>(serving: &mut Serving, core: &mut Core<P>, id: ConnectionId) {
    let Some(exposing) = &mut serving.exposing else { return };
    exposing.revoke_older(core, id, &mut serving.share, |place| {
        SILENCE_MAX + Duration::from_micros((u64::from(place.pages) * PAGE_LEN as u64 * 1_000_000) >> 20)
    });
}

/// Memory of an exposed Reply is fenced. `Some`, with the memory: it is none.
pub(crate) fn exposure_fenced<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    handle: Handle,
    exposed: Exposed,
) -> Result<Option<Exposed>, CloseReason> {
    let Some(exposing) = serving.exposing.as_deref_mut() else { return Ok(Some(exposed)) };
    let Some(index) = exposing.owner(handle) else { return Ok(Some(exposed)) };
    drop(exposed);
    exposing.handle_dead(core, &mut serving.share, index, handle.0);
    expose_waiting(serving, core, id)?;
    Ok(None)
}

/// Exposes a Reply that is longer than all that its Call provides (RR-4.1.1-a), at once or when there is a place.
#[cold]
pub(super) fn expose<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    call: &responder::ReceivedCall<'_>,
    message: &[u8],
    items: &[u32],
    mut draft: Box<Draft>,
) -> Result<(), CloseReason> {
    let (payload_len, pieces) = (draft.payload_len as u32, draft.long.len());
    let form = match serving.responder.plan_exposed(call.id, message, items, payload_len, pieces as u32) {
        Ok(form) if pieces <= EXPOSED_SEGMENTS_MAX => form,
        refused => {
            core.put_draft(draft);
            let error = refused.err().unwrap_or(ReplyError::Header);
            return serving.refuse(core, id, call.id, RefusedCall::Reply(error)).map(|_| ());
        }
    };
    serving.replenish(core, id);
    // Their handles are put in when they are exposed.
    let unexposed = |piece: &Shared| ReadSegment {
        position: 0,
        segment: Segment { handle: 0, length: piece.len() as u32, offset: 0 },
    };
    let segments: ArrayVec<ReadSegment, EXPOSED_SEGMENTS_MAX> = draft.long.iter().map(unexposed).collect();
    let Some(send) = draft.send.as_mut() else {
        core.put_draft(draft);
        return Err(fault("a Reply without a message buffer"));
    };
    let Ok(emitted) = serving.responder.emit_exposed(call.id, message, items, &form, &segments, send) else {
        core.put_draft(draft);
        return Err(fault("a Call that ended while it was answered"));
    };
    send.set_len(emitted.header_len);
    draft.invalidate = emitted.invalidate.map(Handle);
    draft.id = reply_id(call.xid());
    let pages = draft.long.iter().map(transit_pages).sum::<usize>();
    // The Payload stream stays: only the results go to chunks.
    let long = std::mem::take(&mut draft.long);
    plan_writes(core, call, &mut draft);
    draft.long = long;
    core.transit.take_reply(&mut serving.share, draft.pages as usize + pages);
    core.statistics.replies_sent += 1;
    let limit = core.config.credits_max as usize;
    let Some(exposing) = serving.exposing.as_deref_mut() else {
        return Err(fault("a Reply is exposed on a connection that exposes none"));
    };
    if exposing.waiting.len() > limit {
        core.put_draft(draft);
        return Err(CloseReason::Violation("it does not take its Replies"));
    }
    exposing.waiting.push_back(Waiting { xid: call.xid(), draft, pages: pages as u32 });
    expose_waiting(serving, core, id)
}

/// Exposes the Replies that there are places for, and sends their messages.
fn expose_waiting<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
) -> Result<(), CloseReason> {
    while let Some(exposing) = serving.exposing.as_deref_mut()
        && exposing.replies.available() > 0
        && let Some(Waiting { xid, mut draft, pages }) = exposing.waiting.pop_front()
    {
        let mut segments: ArrayVec<ReadSegment, EXPOSED_SEGMENTS_MAX> = ArrayVec::new();
        for piece in draft.long.drain(..) {
            let len = piece.len() as u32;
            let Ok(source) = core.provider.expose(id, Exposed::Read(piece)) else { break };
            segments.push(ReadSegment { position: 0, segment: segment(source, len) });
        }
        let exposed: u32 = segments.iter().map(|entry| entry.segment.length).sum();
        let is_whole = exposed as usize == draft.payload_len;
        let message = draft.send.as_deref_mut().unwrap_or_default();
        let reply = match replace_read_segments(message, &segments) {
            Ok(()) if is_whole => exposing.replies.expose(xid, &segments),
            _ => None,
        };
        // The table and the queue pair have room for it, unless the connection is ending.
        let Some(reply) = reply else {
            core.put_draft(draft);
            return Err(CloseReason::CannotReply);
        };
        exposing.places[reply.index()] = Place {
            reply: Some(reply),
            handles: segments.iter().map(|entry| entry.segment.handle).collect(),
            pages,
            since: core.now,
            is_awaited: true,
        };
        exposing.awaited += 1;
        core.statistics.replies_exposed += 1;
        if serving.blocked.is_empty() {
            serving.post(core, id, draft)?;
        } else {
            serving.block(core, draft);
        }
    }
    Ok(())
}
