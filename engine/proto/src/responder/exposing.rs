//! Replies whose Payload stream the Requester pulls, because they fit neither inline nor in a Reply chunk (reliable reply).

use stag_wire::rpcrdma::{Emitter, MessageKind, ReadSegment};
use stag_wire::xdr::Overflow;

use super::{Emitted, Lists, ReplyError, Responder, ResponderCallId, SINGLE_LEN, SingleChunk, repeated_len};
use crate::plan::READ_SEGMENT_LEN;

/// The form of a Reply that is exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExposedForm {
    /// Octets of the header, which is the whole message.
    pub header_len: u32,
    /// Octets of the Payload stream, with its roundup: what the segments hold together.
    pub payload_len: u32,
    /// Segments that it is exposed as.
    pub segments: u32,
}

impl Responder {
    /// Decides the form of a Reply that [`Responder::plan_reply`] found too long for everything that the Call provides
    /// (RR-4.1.1-a). `segments`: in how many pieces of memory its Payload stream is. The other arguments are those of
    /// [`Responder::plan_reply`]: eligible results go into the Write chunks all the same (RR-4.1-b).
    ///
    /// # Errors
    ///
    /// [`ReplyError`]; the driver refuses the Call then.
    pub fn plan_exposed(
        &self,
        id: ResponderCallId,
        message: &[u8],
        items: &[u32],
        payload_len: u32,
        segments: u32,
    ) -> Result<ExposedForm, ReplyError> {
        let slot = self.slot(id).ok_or(ReplyError::Stale)?;
        let repeated = match slot.lists {
            Lists::Absent | Lists::Single(SingleChunk::Read(_)) => super::HEADER_LEN_MIN as u32,
            Lists::Single(SingleChunk::Write(segment)) => {
                if items.first().is_some_and(|&len| len > segment.length) {
                    return Err(ReplyError::WriteChunk { item: 0 });
                }
                SINGLE_LEN as u32
            }
            Lists::Message(layout) => {
                let header = super::Header::with_layout(message, layout).ok_or(ReplyError::Stale)?;
                repeated_len(&header.lists(), items)?
            }
            // Reliable reply is for version 1 (RR-P-6).
            Lists::Version2 { .. } => {
                return Err(ReplyError::NoReplyChunk);
            }
        };
        let header_len = repeated.saturating_add(READ_SEGMENT_LEN.saturating_mul(segments));
        if header_len > self.parameters.reply_threshold {
            return Err(ReplyError::Header);
        }
        Ok(ExposedForm { header_len, payload_len, segments })
    }

    /// Writes the message of a Reply that is exposed to the start of `out`, and ends the Call. The Writes are posted before
    /// the Send; the Payload stream stays where it is until the Requester says that it has it
    /// ([`ExposedReplies::expose`](crate::exposed::ExposedReplies::expose) comes first).
    ///
    /// `segments` are all of Position 0 (RR-4.1-c). A Reply chunk comes back unused (RR-4.1-d).
    ///
    /// # Errors
    ///
    /// [`ReplyError::Stale`]: nothing may be sent.
    ///
    /// # Panics
    ///
    /// When `out` is shorter than the header, or `items` and `segments` are not those of the plan.
    pub fn emit_exposed(
        &mut self,
        id: ResponderCallId,
        message: &[u8],
        items: &[u32],
        form: &ExposedForm,
        segments: &[ReadSegment],
        out: &mut [u8],
    ) -> Result<Emitted, ReplyError> {
        let planned =
            segments.len() == form.segments as usize && segments.iter().all(|entry| entry.position == 0);
        assert!(planned, "the segments are those of the plan, at Position 0");
        let call = self.call(id, message).ok_or(ReplyError::Stale)?;
        let xid = call.xid();
        let credits = self.grant.renew(false);
        let mut emit = || -> Result<usize, Overflow> {
            let mut emitter = Emitter::new(out, MessageKind::Nomsg, xid, credits)?;
            segments.iter().try_for_each(|entry| emitter.read_segment(*entry))?;
            let mut items = items.iter();
            for chunk in call.write_list() {
                let len = items.next().copied().unwrap_or(0);
                // An item whose chunk is empty is in the Payload stream (8166-4.3.2.3-b).
                emitter.echo_write_chunk(chunk, if chunk.is_empty() { 0 } else { u64::from(len) })?;
            }
            if let Some(chunk) = call.reply_chunk() {
                emitter.echo_reply_chunk(chunk, 0)?;
            }
            emitter.finish().map(|(len, _)| len)
        };
        let header_len = emit().expect("`out` holds the header, and the chunks hold the items, as planned");
        debug_assert_eq!(header_len, form.header_len as usize);
        let invalidate = self.release(id);
        Ok(Emitted { header_len, invalidate })
    }
}
