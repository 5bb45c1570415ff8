//! What is known of one side of a connection: its Calls, the memory that it exposed, its RDMA Reads, what it said of itself.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use stag_wire::cm_private_data::PrivateData;
use stag_wire::reliable_reply::ReliableReply;
use stag_wire::xdr::Reduced;

use crate::answerable::Answerable;
use crate::call::{Call, Chunk};
use crate::reading::Called;
use crate::speaker::Speaker;

/// Where an exposed segment belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exposure {
    pub(crate) xid: u32,
    pub(crate) chunk: usize,
    pub(crate) segment: usize,
    /// It belongs to a Reply that the Requester is to pull.
    pub(crate) is_reply: bool,
}

/// An RDMA Read that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// Where its data goes, on iWARP.
    pub(crate) sink: (u32, u64),
    pub(crate) len: u64,
    pub(crate) received: u64,
    /// Which segment it reads, and from where on.
    pub(crate) source: Option<(Exposure, u64)>,
}

/// A Reply that its Responder exposed.
#[derive(Debug)]
pub(crate) struct ExposedReply {
    /// The Read chunk that holds its Payload stream.
    pub(crate) chunk: Chunk,
    pub(crate) frame: u64,
    pub(crate) time: Duration,
    pub(crate) called: Option<Called>,
    /// What its Write chunks hold.
    pub(crate) reduced: Vec<Reduced>,
    pub(crate) held: usize,
}

/// One side, as a Requester of Calls and as an initiator of RDMA Reads.
#[derive(Debug, Default)]
pub(crate) struct Party {
    pub(crate) calls: HashMap<u32, Call>,
    /// Its Replies that the other side has not said to have pulled, as a Responder.
    pub(crate) exposed: HashMap<u32, ExposedReply>,
    pub(crate) exposures: HashMap<u32, Vec<Exposure>>,
    pub(crate) reads: VecDeque<Read>,
    /// The largest grant so far: a Requester may not know yet that it was lowered.
    pub(crate) granted: Option<u32>,
    /// Its set-up message was seen, with or without RFC 8797's block.
    pub(crate) told: Option<Option<PrivateData>>,
    pub(crate) reliable_reply: Option<ReliableReply>,
    /// What it said of itself, and has begun to say, in version 2.
    pub(crate) speaker: Speaker,
    /// What it sent beside Calls that may be answered.
    pub(crate) answerable: Answerable,
}

impl Party {
    /// The chunk that an exposed segment belongs to.
    pub(crate) fn chunk(&self, exposure: &Exposure) -> Option<&Chunk> {
        match exposure.is_reply {
            true => self.exposed.get(&exposure.xid).map(|reply| &reply.chunk),
            false => self.calls.get(&exposure.xid)?.chunks.get(exposure.chunk),
        }
    }

    /// Notes the segments of a Reply that its Requester will pull.
    pub(crate) fn expose_reply(&mut self, handles: impl Iterator<Item = u32>, xid: u32) {
        for (segment, handle) in handles.enumerate() {
            let exposure = Exposure { xid, chunk: 0, segment, is_reply: true };
            self.exposures.entry(handle).or_default().push(exposure);
        }
    }

    /// Forgets the segments of a Call or of a Reply.
    pub(crate) fn conceal(&mut self, handles: impl Iterator<Item = u32>, xid: u32, is_reply: bool) {
        for handle in handles {
            if let Some(exposures) = self.exposures.get_mut(&handle) {
                exposures.retain(|exposure| (exposure.xid, exposure.is_reply) != (xid, is_reply));
                if exposures.is_empty() {
                    self.exposures.remove(&handle);
                }
            }
        }
    }
}
