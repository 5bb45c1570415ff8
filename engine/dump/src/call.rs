//! A Call in the capture: its chunks, and the state of each.

use std::sync::Arc;
use std::time::Duration;

use stag_wire::rpcrdma::{self, HeaderLists, Segment};
use stag_wire::xdr::Reduced;

use crate::event::{ChunkKind, ChunkUse, Context};
use crate::procedure::Rpc;
use crate::reading::SentCompound;
use crate::violations::Violations;

/// Octets of one chunk that are kept at most.
const GATHERED_LEN_MAX: u64 = 2 << 20;

/// A chunk of a Call.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) usage: ChunkUse,
    pub(crate) segments: Vec<Segment>,
    /// Octets moved to or from each segment.
    pub(crate) moved: Vec<u64>,
    gathers: bool,
}

impl Chunk {
    pub(crate) fn new(kind: ChunkKind, segments: Vec<Segment>, keep_data: bool) -> Chunk {
        let offered = segments.iter().map(|segment| u64::from(segment.length)).sum();
        let gathers = keep_data || matches!(kind, ChunkKind::Read { position: 0 } | ChunkKind::Reply);
        let usage = ChunkUse { kind, offered, operations: 0, moved: 0, data: Vec::new() };
        Chunk { usage, moved: vec![0; segments.len()], segments, gathers }
    }

    /// Takes octets that were moved to or from segment `index`, `at` octets behind its start. Returns the octets
    /// that are held more than before.
    pub(crate) fn take(&mut self, index: usize, at: u64, octets: &[u8]) -> usize {
        let len = octets.len() as u64;
        if let Some(moved) = self.moved.get_mut(index) {
            *moved += len;
        }
        self.usage.moved += len;
        let before: u64 = self.segments.iter().take(index).map(|segment| u64::from(segment.length)).sum();
        let start = before + at;
        if !self.gathers || start + len > GATHERED_LEN_MAX {
            return 0;
        }
        let (start, end) = (start as usize, (start + len) as usize);
        let held = self.usage.data.len();
        if held < end {
            self.usage.data.resize(end, 0);
        }
        self.usage.data[start..end].copy_from_slice(octets);
        self.usage.data.len() - held
    }
}

/// A Call that was not answered yet.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) frame: u64,
    pub(crate) time: Duration,
    /// In the order of the wire: Read, Write, Reply.
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) rpc: Option<Rpc>,
    /// Its operations, if it is a COMPOUND.
    pub(crate) sent: Option<Arc<SentCompound>>,
    /// The message: while it is not reported yet, or if it was asked for.
    pub(crate) octets: Vec<u8>,
    /// It is reported when its Payload stream has been read.
    pub(crate) waits: Option<Waiting>,
    /// The capture lacks something that its Responder sent since.
    pub(crate) is_perhaps_answered: bool,
    /// Counts up on a connection: the oldest one is given up when there are too many.
    pub(crate) age: u64,
    /// Its version of RPC-over-RDMA.
    pub(crate) version: u32,
    /// Credits that it takes: its transmissions.
    pub(crate) credits: u32,
    /// What the Requester wants of its results, if it said so: version 2's transmissions.
    pub(crate) wanted: Option<Wanted>,
}

/// What the first transmission of a Call says about its Reply.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Receives for continuations of the Reply.
    pub(crate) receives: u32,
    pub(crate) directions: Vec<WantedItem>,
}

/// What a Requester wants of one eligible result.
#[derive(Debug)]
pub(crate) struct WantedItem {
    /// A shorter one stays in the Payload stream.
    pub(crate) min_len: u32,
    /// It may be placed in the Requester's Receives.
    pub(crate) takes_buffers: bool,
    /// The Call's chunk whose segments it may be written to.
    pub(crate) chunk: Option<usize>,
}

/// What is needed to report a Call later.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) invalidated: Option<u32>,
    pub(crate) violations: Violations,
}

/// Collects the chunks that a header offers.
pub(crate) fn chunks(lists: &HeaderLists<'_>, keep_data: bool) -> Vec<Chunk> {
    let mut reads: Vec<(u32, Vec<Segment>)> = Vec::new();
    for entry in lists.read_list() {
        match reads.iter_mut().find(|(position, _)| *position == entry.position) {
            Some((_, segments)) => segments.push(entry.segment),
            None => reads.push((entry.position, vec![entry.segment])),
        }
    }
    let reads = reads.into_iter().map(|(position, segments)| (ChunkKind::Read { position }, segments));
    let writes = lists
        .write_list()
        .enumerate()
        .map(|(index, chunk)| (ChunkKind::Write { index }, chunk.segments().collect()));
    let reply = lists.reply_chunk().map(|chunk| (ChunkKind::Reply, chunk.segments().collect()));
    let all = reads.chain(writes).chain(reply);
    all.map(|(kind, segments)| Chunk::new(kind, segments, keep_data)).collect()
}

/// Cuts a 64-bit length to what a codec can compare with a length word.
fn short(len: u64) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

impl Call {
    /// A Call of version 1 that takes one credit.
    pub(crate) fn new(cx: &Context<'_>, chunks: Vec<Chunk>, octets: Vec<u8>, age: u64) -> Call {
        Call {
            frame: cx.frame,
            time: cx.time,
            chunks,
            rpc: None,
            sent: None,
            octets,
            waits: None,
            is_perhaps_answered: false,
            age,
            version: rpcrdma::VERSION,
            credits: 1,
            wanted: None,
        }
    }

    /// Octets that are held for it, roughly.
    pub(crate) fn held(&self) -> usize {
        let chunks = self.chunks.iter().map(|chunk| 256 + 96 * chunk.segments.len() + chunk.usage.data.len());
        let sent = self.sent.as_ref().map_or(0, |sent| sent.held());
        512 + self.octets.len() + sent + chunks.sum::<usize>()
    }

    /// Returns the Position Zero Read chunk.
    pub(crate) fn position_zero(&self) -> Option<&Chunk> {
        self.chunks.iter().find(|chunk| chunk.usage.kind == ChunkKind::Read { position: 0 })
    }

    /// Tells whether all of the Position Zero Read chunk has been read.
    pub(crate) fn is_read(&self) -> bool {
        self.position_zero().is_none_or(|chunk| chunk.usage.moved >= chunk.usage.offered)
    }

    /// Returns the Read chunks at other Positions, ascending, as the codec of the arguments takes them.
    pub(crate) fn reduced_arguments(&self) -> Vec<Reduced> {
        let mut reduced: Vec<Reduced> = self
            .chunks
            .iter()
            .enumerate()
            .filter_map(|(index, chunk)| match chunk.usage.kind {
                ChunkKind::Read { position: 0 } => None,
                ChunkKind::Read { position } => {
                    Some(Reduced::read_chunk(short(index as u64), position, short(chunk.usage.offered)))
                }
                _ => None,
            })
            .collect();
        reduced.sort_by_key(|chunk| chunk.position);
        reduced
    }

    /// Returns the Write chunks, with what the Reply says was written to each, as the codec of results takes them.
    pub(crate) fn reduced_results(&self, reply: &HeaderLists<'_>) -> Vec<Reduced> {
        let mut returned = reply.write_list();
        self.chunks
            .iter()
            .enumerate()
            .filter(|(_, chunk)| matches!(chunk.usage.kind, ChunkKind::Write { .. }))
            .map(|(index, chunk)| {
                let written = returned.next().map_or(0, |chunk| chunk.total_len());
                let index = short(index as u64);
                match chunk.segments.is_empty() {
                    true => Reduced::empty_write_chunk(index),
                    false => Reduced::write_chunk(index, short(written)),
                }
            })
            .collect()
    }
}
