//! What a Payload stream was found to say, and what is kept of a Call to read its Reply.

use std::sync::Arc;

use stag_wire::nfs4::session::SequenceArguments;
use stag_wire::rpc;
use stag_wire::xdr::XdrError;

use crate::event::{CapturedCompound, Context, Message, RuleViolation};
use crate::procedure::{CalledProcedure, Rpc};

/// Operations of one COMPOUND that are listed at most, and whose results are compared with their arguments; further ones are
/// only decoded. Linux sends 9 at most.
pub(crate) const OPERATIONS_MAX: usize = 64;

/// What is wrong with a Payload stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// It is no Call, or no Reply.
    Header(rpc::RpcError),
    /// The arguments or results do not fit their procedure, or the chunks.
    Body(XdrError),
}

/// What a Payload stream says.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) rpc: Option<Rpc>,
    pub(crate) problem: Option<Problem>,
    /// Of NFS version 4.
    pub(crate) compound: Option<CapturedCompound>,
    /// Rules that it breaks.
    pub(crate) breaches: Vec<RuleViolation>,
    /// Of a Call: what is needed to judge its Reply.
    pub(crate) sent: Option<Arc<SentCompound>>,
}

impl Reading {
    /// Takes what is needed to judge the Reply to a Call, if all of the Call was captured.
    pub(crate) fn take_sent(&mut self, cx: &Context<'_>) -> Option<Arc<SentCompound>> {
        self.sent.take().filter(|_| cx.missing == 0)
    }

    /// Completes what was seen of a message.
    pub(crate) fn message<'a>(&'a self, seen: Message<'a>) -> Message<'a> {
        Message { rpc: self.rpc.as_ref(), compound: self.compound.as_ref(), ..seen }
    }
}

/// What a Reply answers, to read it.
#[derive(Clone, Debug)]
pub(crate) struct Called {
    pub(crate) target: CalledProcedure,
    pub(crate) sent: Option<Arc<SentCompound>>,
}

/// What is kept of a Call's operations until its Reply.
#[derive(Debug)]
pub(crate) struct SentCompound {
    pub(crate) minor_version: u32,
    /// How many there are.
    pub(crate) count: u32,
    /// The first of them.
    pub(crate) operations: Vec<SentOperation>,
}

#[derive(Debug, Default)]
pub(crate) struct SentOperation {
    pub(crate) number: u32,
    /// Of SEQUENCE and CB_SEQUENCE.
    pub(crate) sequence: Option<SequenceArguments>,
    /// The attributes that GETATTR and READDIR ask for.
    pub(crate) request: Option<[u32; 3]>,
}

impl SentCompound {
    pub(crate) fn new(minor_version: u32, count: u32) -> SentCompound {
        SentCompound { minor_version, count, operations: Vec::new() }
    }

    /// Octets that are held for it, roughly.
    pub(crate) fn held(&self) -> usize {
        64 + self.operations.len() * size_of::<SentOperation>()
    }

    pub(crate) fn add(&mut self, operation: SentOperation) {
        if self.operations.len() < OPERATIONS_MAX {
            self.operations.push(operation);
        }
    }
}
