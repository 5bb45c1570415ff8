//! The rules of RPC-over-RDMA and of its bindings that a message breaks, by their numbers.

use std::fmt;

use stag_wire::rpc;
use stag_wire::rpcrdma::{Header, HeaderError, MessageProcedure};
use stag_wire::xdr::XdrError;

use crate::event::RuleViolation;
use crate::reading::{Problem, Reading};

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
