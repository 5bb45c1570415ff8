//! A serving connection's answers: a Call's Reply, from the handler to its Send; and RDMA_ERRORs.

use arrayvec::ArrayVec;
use stag_fabric::{Handle, Peer, Provider};
use stag_proto::responder::{self, ErrorReply, RefusedCall, ReplyError, ResponderCallId};
use stag_wire::rpc::CallHeader;
use stag_wire::rpcrdma::{Header, SingleChunk};
use stag_wire::rpcrdma2::Header2;
use stag_wire::xdr::Reader;

use super::Serving;
use crate::ConnectionId;
use crate::client::CloseReason;
use crate::fault::fault;
use crate::server::client_log::ClientName;
use crate::server::doomed::reply_id;
use crate::server::draft::Draft;
use crate::server::pending::Served;
use crate::server::pushing::{Posted, plan_write, plan_writes, post_draft, report_refused};
use crate::server::serving::exposing::expose;
use crate::server::spares::Reused;
use crate::service::{Lookup, Services};
use crate::state::{Core, Pass};

/// Eligible results of one Reply at most.
const ITEMS_MAX: usize = 16;

/// Logs that a Call was refused because it has `len` octets of data where this server reads `limit`. Only the configuration of one
/// of the two ends can help. `message` is of either version.
#[cold]
pub(crate) fn warn_of_length<P, S: Services>(
    pass: &mut Pass<'_, Core<P>, S>,
    peer: Option<&Peer>,
    message: &[u8],
    (len, limit): (u64, u32),
) {
    let Pass { core, services } = pass;
    let Some(withheld) = core.state.oversized.admit(core.state.now) else { return };
    let stream = match Header::parse(message) {
        Ok((_, stream)) => stream,
        Err(_) => Header2::parse(message).map_or(&[][..], |(_, stream)| stream),
    };
    let call = CallHeader::parse(&mut Reader::new(stream)).ok();
    let procedure = call.as_ref().map_or("a Long Call", |call| {
        match services.lookup(call.program, call.version, call.procedure) {
            Lookup::Found { procedure, .. } => procedure.name,
            _ => "a Call of no service",
        }
    });
    let client = ClientName { peer, host: None };
    tracing::warn!(
        withheld,
        "{client}: {procedure}: Read chunks of {len} octets were refused (limit {limit}, chunk_len_max \
         {}); send less in one Call, or raise chunk_len_max",
        core.state.config.chunk_len_max
    );
}

/// Octets of each eligible result of a Reply that leaves its Payload stream, in order; 0 of the others.
#[inline(always)]
pub(crate) fn item_lens(draft: &Draft) -> ArrayVec<u32, ITEMS_MAX> {
    let mut items = ArrayVec::new();
    for item in &draft.items {
        if items.try_push(if item.reduced { item.len } else { 0 }).is_err() {
            break;
        }
    }
    items
}

impl Serving {
    /// Answers a Call with ERR_CHUNK.
    #[cold]
    pub(crate) fn refuse<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: ResponderCallId,
        why: RefusedCall,
    ) -> Result<Served, CloseReason> {
        let error = self.responder.refuse(call, why);
        self.replace_receive(core, id);
        let Some(error) = error else { return Err(fault("a Call is refused that is over")) };
        self.send_error(core, id, &error)?;
        Ok(Served::Over)
    }

    /// Sends a filled-in Reply: decides its form, posts its Writes, then its Send.
    // `inline(always)`, as `post`: called once for each Call, and most have only a Send.
    #[inline(always)]
    pub(crate) fn send<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: &responder::ReceivedCall<'_>,
        message: &[u8],
        mut draft: Box<Draft>,
    ) -> Result<(), CloseReason> {
        let items = item_lens(&draft);
        let form = match self.responder.plan_reply(call.id, message, &items, draft.payload_len as u32) {
            Ok(form) => form,
            Err(ReplyError::NoReplyChunk | ReplyError::ReplyChunk)
                if self.exposes_replies() && !draft.long.is_empty() =>
            {
                return expose(self, core, id, call, message, &items, draft);
            }
            Err(error) => {
                core.put_draft(draft);
                return self.refuse(core, id, call.id, RefusedCall::Reply(error)).map(|_| ());
            }
        };
        debug_assert_eq!(form.long, !draft.long.is_empty(), "the Reply was encoded where its form wants it");
        self.replenish(core, id);
        let Some(send) = draft.send.as_mut() else {
            core.put_draft(draft);
            return Err(fault("a Reply without a message buffer"));
        };
        let Ok(emitted) = self.responder.emit_reply(call.id, message, &items, &form, send) else {
            core.put_draft(draft);
            return Err(fault("a Call that ended while it was answered"));
        };
        send.set_len(if form.long { emitted.header_len } else { emitted.header_len + draft.payload_len });
        draft.invalidate = emitted.invalidate.map(Handle);
        draft.id = reply_id(call.xid());
        if !call.is_plain() {
            match call.single() {
                // There is no chunk that anything could go to.
                Some(SingleChunk::Read(_)) => debug_assert!(draft.pieces.is_empty() && draft.long.is_empty()),
                Some(SingleChunk::Write(segment)) if plan_write(core, segment, &mut draft) => {}
                _ => plan_writes(core, call, &mut draft),
            }
            core.transit.take_reply(&mut self.share, draft.pages as usize);
        }
        core.statistics.replies_sent += 1;
        if !self.blocked.is_empty() {
            if self.blocked.len() > self.slots.len() {
                // A peer that has Receives for its Replies (8166-3.3.1-e) never lets this number of them
                // wait.
                core.put_draft(draft);
                return Err(CloseReason::Violation("it does not take its Replies"));
            }
            self.block(core, draft);
            return Ok(());
        }
        self.post(core, id, draft)
    }

    /// A Reply waits behind the others for room.
    pub(crate) fn block<P>(&mut self, core: &mut Core<P>, draft: Box<Draft>) {
        if draft.has_grown() {
            core.transit.take_list(&mut self.share);
        }
        self.blocked.push_back(draft);
    }

    /// Posts the rest of a Reply. What finds no room waits in `blocked`.
    #[inline(always)]
    pub(crate) fn post<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        mut draft: Box<Draft>,
    ) -> Result<(), CloseReason> {
        match post_draft(core, id, &mut draft) {
            Posted::All => {
                if draft.is_signaled(core.stopping) {
                    self.sends.push_back(draft.pages);
                }
                core.put_draft(draft);
            }
            Posted::Full if self.blocked.len() > self.slots.len() => {
                core.put_draft(draft);
                return Err(CloseReason::Violation("it does not take its Replies"));
            }
            Posted::Full => {
                if draft.has_grown() {
                    core.transit.take_list(&mut self.share);
                }
                self.blocked.push_front(draft);
            }
            Posted::Refused => {
                report_refused(core, &draft);
                core.put_draft(draft);
                return Err(CloseReason::CannotReply);
            }
            Posted::Faulty(what) => {
                core.put_draft(draft);
                return Err(fault(what));
            }
        }
        Ok(())
    }

    /// Posts a message behind those that wait for room.
    pub(crate) fn post_in_order<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        draft: Box<Draft>,
    ) -> Result<(), CloseReason> {
        if self.blocked.is_empty() {
            return self.post(core, id, draft);
        }
        let max = core.config.credits_max as usize * core.config.continuation as usize;
        if self.blocked.len() > max {
            core.put_draft(draft);
            return Err(CloseReason::Violation("it does not take its Replies"));
        }
        self.block(core, draft);
        Ok(())
    }

    /// Sends an RDMA_ERROR. `Err` when it cannot be sent (8166-4.5.4-c).
    #[cold]
    pub(crate) fn send_error<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        error: &ErrorReply,
    ) -> Result<(), CloseReason> {
        tracing::debug!(refused = ?error.refused, "RDMA_ERROR");
        let octets = error.as_bytes();
        let mut draft = core.draft();
        let Some(mut send) = core.pools.messages.take() else {
            core.put_draft(draft);
            return Err(CloseReason::CannotReply);
        };
        send.set_len(octets.len());
        send.copy_from_slice(octets);
        draft.send = Some(send);
        core.statistics.errors_sent += 1;
        self.post(core, id, draft)
    }
}
