//! Replies that their Requester pulls and confirms with RDMA_DONE, where both sides agreed on that (reliable reply).

use stag_wire::rpcrdma::{Done, Segment};

use crate::call::{Call, Chunk};
use crate::check;
use crate::conversation::{Conversation, Parts};
use crate::event::{Answered, ChunkKind, Context, Message};
use crate::party::ExposedReply;
use crate::program;
use crate::reading::Reading;
use crate::report::{called_by, report, report_answer};
use crate::violations::Violations;

/// Replies of one side that are followed at once; beyond, those to come are only reported.
const EXPOSED_MAX: usize = 4096;

impl Conversation {
    /// Takes a Reply whose Payload stream the Requester is to pull.
    pub(crate) fn expose(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        parts: &Parts<'_>,
        mut violations: Violations,
    ) {
        let (from, xid) = (seen.from, parts.xid);
        if parts.lists.read_list().any(|entry| entry.position != 0) {
            violations.add("RR-4.1-c", "a Reply with a Read chunk that is not its Payload stream");
        }
        if parts.lists.reply_chunk().is_some_and(|chunk| chunk.total_len() > 0) {
            violations.add("RR-4.1-d", "a Reply with octets in its Reply chunk, and a Read chunk");
        }
        let call = self.answered_call(cx, seen, parts, &mut violations);
        if let Some(call) = &call {
            check::returned_chunks(call, &parts.lists, false, self.complete, &mut violations);
        }
        let expose_max = usize::from(self.reliable_replies(from).expose_max);
        self.end_reply(from, xid);
        let party = &mut self.parties[from.index()];
        if self.complete && party.exposed.len() >= expose_max {
            let text = format_args!("more than {expose_max} Replies are exposed");
            violations.add("RR-P-8", text);
        }
        if party.exposed.len() < EXPOSED_MAX {
            let entries = parts.lists.read_list().filter(|entry| entry.position == 0);
            let segments: Vec<Segment> = entries.map(|entry| entry.segment).collect();
            let held = 512 + 96 * segments.len();
            party.expose_reply(segments.iter().map(|segment| segment.handle), xid);
            let chunk = Chunk::new(ChunkKind::Exposed, segments, true);
            let (frame, time, called) = (cx.frame, cx.time, called_by(call.as_ref()));
            let reduced = call.as_ref().map(|call| call.reduced_results(&parts.lists)).unwrap_or_default();
            party.exposed.insert(xid, ExposedReply { chunk, frame, time, called, reduced, held });
            self.held += held;
        }
        report_answer(cx, seen, call.as_ref(), violations);
    }

    /// Takes an RDMA_DONE: the Reply is read, as far as it was pulled.
    pub(crate) fn done(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        done: Done,
        mut violations: Violations,
    ) {
        cx.totals.others += 1;
        if seen.octets.len() != stag_wire::rpcrdma::DONE_LEN {
            violations.add("RR-P-10", format_args!("an RDMA_DONE of {} octets", seen.octets.len()));
        }
        let responder = seen.from.other();
        if let Some(handle) = seen.invalidated {
            let exposed = self.parties[responder.index()].exposed.get(&done.xid);
            let is_ours = exposed
                .is_some_and(|reply| reply.chunk.segments.iter().any(|segment| segment.handle == handle));
            if self.complete && !is_ours {
                violations.add(
                    "RR-4.1.4-c",
                    format_args!("handle {handle:#010x} is none of the Reply's Read chunk"),
                );
            }
        }
        let Some(mut reply) = self.end_reply(responder, done.xid) else {
            if self.complete {
                let xid = done.xid;
                violations.add(
                    "RR-P-8",
                    format_args!("an RDMA_DONE for xid {xid:#010x}, which no exposed Reply has"),
                );
            }
            return report(cx, seen, violations);
        };
        let stream = std::mem::take(&mut reply.chunk.usage.data);
        // A Requester that gave the Call up need not have read it (RR-4.1.3-c).
        let is_whole = reply.chunk.usage.moved >= reply.chunk.usage.offered;
        let long_payload = (is_whole && !stream.is_empty()).then_some(&stream[..]);
        let mut reading = Reading::default();
        if let Some(stream) = long_payload {
            reading = program::read_reply(stream, reply.called.as_ref(), &reply.reduced);
            violations.reply_payload(&mut reading);
            violations.long_xid(done.xid, stream);
        }
        let chunks = [reply.chunk.usage];
        let answered = Some(Answered { frame: reply.frame, time: reply.time, chunks: &chunks, octets: &[] });
        report(cx, &Message { long_payload, answered, ..reading.message(*seen) }, violations);
    }

    /// Takes an exposed Reply away, and its memory.
    pub(crate) fn end_reply(
        &mut self,
        responder: crate::event::ConnectionEnd,
        xid: u32,
    ) -> Option<ExposedReply> {
        let party = &mut self.parties[responder.index()];
        let reply = party.exposed.remove(&xid)?;
        party.conceal(reply.chunk.segments.iter().map(|segment| segment.handle), xid, true);
        self.held = self.held.saturating_sub(reply.held + reply.chunk.usage.data.len());
        Some(reply)
    }
}

impl Call {
    /// Tells whether the Call was sent as a transmission of version 2.
    pub(crate) fn is_transmission(&self) -> bool {
        self.wanted.is_some()
    }
}
