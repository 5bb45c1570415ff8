//! The rules of RPC-over-RDMA and of its bindings that a message breaks, by their numbers.

use std::fmt;

use stag_wire::rpc;
use stag_wire::rpcrdma::{Header, HeaderError, HeaderLists, MessageProcedure, Segment};
use stag_wire::xdr::XdrError;

use crate::call::{Call, Chunk};
use crate::event::{ChunkKind, RuleViolation};
use crate::program::{Problem, Reading};

/// Rules that are named of one message at most: one that is all wrong need not tell more.
const VIOLATIONS_MAX: usize = 16;

/// The rules that one message breaks.
#[derive(Debug, Default)]
pub(crate) struct Violations(Vec<RuleViolation>);

impl Violations {
    pub(crate) fn add(&mut self, rule: &'static str, text: impl fmt::Display) {
        if self.0.len() < VIOLATIONS_MAX {
            self.0.push(RuleViolation { rule, text: text.to_string() });
        }
    }

    pub(crate) fn into_inner(self) -> Vec<RuleViolation> {
        self.0
    }

    /// Names what the header's parser or its checks refused.
    pub(crate) fn header(&mut self, error: &HeaderError) {
        let rule = match error {
            HeaderError::Short => "8166-4.5-a",
            HeaderError::Version(_) => "8166-4.2.2-a",
            HeaderError::Done => "8166-4.6.2-a",
            HeaderError::Padded => "8166-4.6.1-a",
            HeaderError::ErrorBody => "8166-4.5-e",
            HeaderError::ListWord(_) => "8166-X-2",
            HeaderError::TooManySegments { .. } => "8166-X-13",
            HeaderError::Position(_) => "8166-3.4.5-a",
            HeaderError::SegmentRange => "8166-2.3.2-a",
            HeaderError::PositionZero => "8166-X-3",
            HeaderError::NoPayload => "8166-4.2.4-b",
            HeaderError::Xid { .. } => "8166-4.2.1-a",
            HeaderError::ReadListInReply => "8166-4.3.1-a",
            HeaderError::ReplyChunkWithMessage => "8166-4.3.3-c",
            HeaderError::UnexpectedError => "8166-4.2.4-c",
            // Procedure, Truncated, PayloadShort.
            _ => "8166-4.5.2-a",
        };
        self.add(rule, error);
    }

    /// Names why a message is neither Call nor Reply.
    pub(crate) fn no_direction(&mut self, header: &Header<'_>, payload: &[u8]) {
        match (header.procedure(), payload.get(4..8)) {
            (MessageProcedure::Msg, Some([a, b, c, d])) => {
                let found = u32::from_be_bytes([*a, *b, *c, *d]);
                self.add("5531-d", format_args!("msg_type {found} is neither CALL nor REPLY"));
            }
            (MessageProcedure::Msg, None) => self.header(&HeaderError::PayloadShort),
            _ => self.header(&HeaderError::NoPayload),
        }
    }

    /// Names what is wrong with a Call's Payload stream, and what it breaks.
    pub(crate) fn call_payload(&mut self, reading: &mut Reading) {
        for RuleViolation { rule, text } in reading.breaches.drain(..) {
            self.add(rule, text);
        }
        match reading.problem {
            Some(Problem::Header(error)) => self.rpc(&error),
            Some(Problem::Body(error)) => {
                let rule = match error {
                    XdrError::IneligibleChunk => "8166-6.1-c",
                    XdrError::ChunkLength { .. } => "8166-3.4.5.2-a",
                    XdrError::UnusedChunk => "8166-4.5.2-b",
                    _ => xdr_rule(error),
                };
                self.add(rule, format_args!("arguments: {error}"));
            }
            None => {}
        }
    }

    /// Names what is wrong with a Reply's Payload stream, and what it breaks.
    pub(crate) fn reply_payload(&mut self, reading: &mut Reading) {
        for RuleViolation { rule, text } in reading.breaches.drain(..) {
            self.add(rule, text);
        }
        match reading.problem {
            Some(Problem::Header(error)) => self.rpc(&error),
            Some(Problem::Body(error)) => {
                let rule = match error {
                    XdrError::IneligibleChunk | XdrError::UnusedChunk => "8166-6.1-d",
                    XdrError::ChunkLength { chunk: 0, .. } => "8166-4.3.2-a",
                    XdrError::ChunkLength { .. } => "8166-3.4.6.2-a",
                    _ => xdr_rule(error),
                };
                self.add(rule, format_args!("results: {error}"));
            }
            None => {}
        }
    }

    fn rpc(&mut self, error: &rpc::RpcError) {
        let rule = match error {
            rpc::RpcError::Drop => "5531-d",
            rpc::RpcError::Denied { .. } => "5531-a",
            rpc::RpcError::Garbage { cause, .. } => xdr_rule(*cause),
        };
        self.add(rule, format_args!("RPC header: {error}"));
    }

    /// Checks the xid of a Payload stream that went by chunk.
    pub(crate) fn long_xid(&mut self, xid: u32, stream: &[u8]) {
        if let Some(found) = stream.first_chunk().map(|word| u32::from_be_bytes(*word))
            && found != xid
        {
            self.header(&HeaderError::Xid { payload: found });
        }
    }
}

fn xdr_rule(error: XdrError) -> &'static str {
    match error {
        XdrError::BadBool(_) => "XDR-a",
        XdrError::BadDiscriminant(_) => "XDR-d",
        _ => "XDR-f",
    }
}

/// Compares the chunks that a Reply returns with those that its Call offered, and with what was written to them.
pub(crate) fn returned_chunks(
    call: &Call,
    reply: &HeaderLists<'_>,
    is_long: bool,
    complete: bool,
    to: &mut Violations,
) {
    let is_write = |chunk: &&Chunk| matches!(chunk.usage.kind, ChunkKind::Write { .. });
    let offered = call.chunks.iter().filter(is_write);
    let returned = reply.write_chunk_count();
    if offered.clone().count() != returned {
        let count = offered.clone().count();
        to.add("8166-3.4.6-c", format_args!("{count} Write chunks were offered, {returned} come back"));
    }
    for (chunk, found) in offered.zip(reply.write_list()) {
        returned_chunk("Write chunk", chunk, found.segments(), complete, to);
    }
    let offered = call.chunks.iter().find(|chunk| chunk.usage.kind == ChunkKind::Reply);
    match (offered, reply.reply_chunk()) {
        (Some(chunk), Some(found)) => returned_chunk("Reply chunk", chunk, found.segments(), complete, to),
        (Some(_), None) if is_long => {
            to.add("8166-4.3.3-c", "the Reply chunk does not come back");
        }
        (None, Some(_)) => to.add("8166-4.3.3-c", "a Reply chunk comes back that was not offered"),
        _ => {}
    }
}

pub(crate) fn returned_chunk(
    name: &str,
    chunk: &Chunk,
    found: impl ExactSizeIterator<Item = Segment>,
    complete: bool,
    to: &mut Violations,
) {
    let count = chunk.segments.len();
    if found.len() != count {
        // 8267-6.4.1-f: for a result that does not appear, an empty chunk may come back.
        if found.len() != 0 {
            let found = found.len();
            to.add("8166-3.4.6-c", format_args!("{name}: {count} segments were offered, {found} come back"));
        }
        return;
    }
    for (index, (offered, found)) in chunk.segments.iter().zip(found).enumerate() {
        if (found.handle, found.offset) != (offered.handle, offered.offset) {
            to.add("8166-3.4.6-c", format_args!("{name}, segment {index}: handle or offset is changed"));
        }
        let (length, room) = (found.length, offered.length);
        if length > room {
            to.add("8166-X-11", format_args!("{name}, segment {index}: {length} octets in {room}"));
        }
        let moved = chunk.moved.get(index).copied().unwrap_or(0);
        if complete && moved < u64::from(length) {
            let text = format_args!("{name}, segment {index}: {length} octets claimed, {moved} were written");
            to.add("8166-3.4.6-c", text);
        }
    }
}
