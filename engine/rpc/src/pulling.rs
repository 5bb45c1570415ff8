//! What a Call's chunks bring in: memory for it, and the RDMA Reads that fill it.

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{Handle, Provider, READ_PARTS_MAX, ReadPart, ReadRequest, RemoteSegment};
use stag_memory::Buf;
use stag_proto::responder;
use stag_proto::span::Cursor;
use stag_wire::rpc::CallHeader;
use stag_wire::rpcrdma::Segment;
use stag_wire::xdr::{Reader, Reduced};

use crate::ConnectionId;
use crate::call::{PIECES_MAX, Placed};
use crate::pushing::Posted;
use crate::service::{Lookup, Services};
use crate::state::Core;

/// Data Read chunks of one Call at most. NFS has one; custom programs may have more.
pub(crate) const READ_CHUNKS_MAX: usize = 8;

/// Pieces of memory that one Call's Read chunks are placed in at most.
const INCOMING_MAX: usize = 32;

/// How long a Call waits for memory. To be told to come again costs its sender more: Linux's NFS client then waits for 5 s.
const PATIENCE: Duration = Duration::from_secs(1);

/// A piece of memory that RDMA Reads fill.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Number of the data Read chunk; none for the Position Zero Read chunk.
    chunk: Option<u8>,
    /// Where in the chunk the piece starts.
    start: u32,
    pub(crate) len: u32,
    /// Here before it is posted, and after it is filled.
    pub(crate) buf: Option<Buf>,
    posted: bool,
}

/// What one Call pulls by RDMA Read. Reused.
#[derive(Debug, Default)]
pub(crate) struct Pull {
    /// The Payload stream of a Long Call.
    pub(crate) long: Option<Buf>,
    pub(crate) items: Vec<Placed>,
    pub(crate) reduced: ArrayVec<Reduced, READ_CHUNKS_MAX>,
    /// Chunks that have no memory yet, and their lengths; none: the Position Zero Read chunk.
    wanted: ArrayVec<(Option<u8>, u32), READ_CHUNKS_MAX>,
    /// When it is given up to wait for it.
    patience: Option<Duration>,
    pub(crate) incoming: ArrayVec<Incoming, INCOMING_MAX>,
    /// Pieces not filled yet.
    pub(crate) pending: u32,
}

impl Pull {
    /// Forgets everything; buffers go back to their pools.
    pub(crate) fn clear(&mut self) {
        self.long = None;
        self.items.clear();
        self.reduced.clear();
        self.wanted.clear();
        self.patience = None;
        self.incoming.clear();
        self.pending = 0;
    }

    /// Puts the filled pieces where the handler finds them.
    pub(crate) fn collect(&mut self) {
        for incoming in self.incoming.drain(..) {
            if let (Some(chunk), Some(buf)) = (incoming.chunk, incoming.buf)
                && let Some(item) = self.items.get_mut(usize::from(chunk))
            {
                item.pieces.push(buf);
            }
        }
    }
}

/// Whether a Call's data chunks are worth pulling: its procedure is served, and may have so many.
pub(crate) fn may_pull<S: Services>(services: &S, stream: &[u8], chunks: usize) -> bool {
    let Ok(header) = CallHeader::parse(&mut Reader::new(stream)) else { return false };
    match services.lookup(header.program, header.version, header.procedure) {
        Lookup::Found { procedure, .. } => chunks <= usize::from(procedure.eligible_arguments),
        _ => false,
    }
}

/// Plans to pull the Payload stream of a Long Call.
pub(crate) fn plan_long<P>(core: &mut Core<P>, pull: &mut Pull, len: u32) {
    core.statistics.position_zero_chunks += 1;
    pull.wanted.push((None, len));
}

/// Plans to pull all data chunks.
pub(crate) fn plan_chunks<P>(core: &mut Core<P>, pull: &mut Pull, call: &responder::Call<'_>) {
    for (index, chunk) in (0u8..).zip(call.read_chunks().take(READ_CHUNKS_MAX)) {
        core.statistics.read_chunks += 1;
        pull.reduced.push(Reduced::read_chunk(u32::from(index), chunk.position, chunk.len));
        pull.items.push(Placed { pieces: ArrayVec::new(), len: chunk.len });
        pull.wanted.push((Some(index), chunk.len));
    }
}

/// There is no memory for what is to be pulled.
pub(crate) enum Lack {
    /// Some may come back.
    ForNow,
    /// It was waited for. Without a data chunk the handler sees that its data is not there; this is a Long Call.
    ForGood,
}

/// Takes memory for what is to be pulled.
pub(crate) fn place_wanted<P>(core: &mut Core<P>, pull: &mut Pull) -> Result<(), Lack> {
    while let Some(&(chunk, len)) = pull.wanted.first() {
        if !place(core, pull, chunk, len) {
            if core.now < *pull.patience.get_or_insert(core.now + PATIENCE) {
                return Err(Lack::ForNow);
            }
            if chunk.is_none() {
                return Err(Lack::ForGood);
            }
        }
        pull.wanted.remove(0);
    }
    Ok(())
}

/// Takes memory for `len` octets of a chunk. `false`: there is none.
fn place<P>(core: &mut Core<P>, pull: &mut Pull, chunk: Option<u8>, len: u32) -> bool {
    if len == 0 {
        return true;
    }
    let mut pieces: ArrayVec<Buf, PIECES_MAX> = ArrayVec::new();
    let room = (INCOMING_MAX - pull.incoming.len()).min(PIECES_MAX);
    // The Payload stream of a Long Call has to be in one piece: it is parsed.
    let taken = match core.pools.payload.take_len(len as usize) {
        Some(buf) => room > 0 && pieces.try_push(buf).is_ok(),
        None => chunk.is_some() && core.pools.payload.take_pieces(len as usize, &mut pieces, room),
    };
    if !taken {
        return false;
    }
    let mut start = 0;
    for mut buf in pieces {
        let part = (len - start).min(buf.capacity() as u32);
        buf.set_len(part as usize);
        pull.incoming.push(Incoming { chunk, start, len: part, buf: Some(buf), posted: false });
        pull.pending += 1;
        start += part;
    }
    true
}

/// Posts those of a Call's Reads that are not posted yet.
pub(crate) fn post_reads<P: Provider>(
    core: &mut Core<P>,
    id: ConnectionId,
    call: &responder::Call<'_>,
    pull: &mut Pull,
) -> Posted {
    for (place, incoming) in pull.incoming.iter_mut().enumerate() {
        if incoming.posted {
            continue;
        }
        let mut parts: ArrayVec<ReadPart, READ_PARTS_MAX> = ArrayVec::new();
        match incoming.chunk {
            None => cut(call.long_segments(), incoming, &mut parts),
            Some(chunk) => {
                if let Some(chunk) = call.read_chunks().nth(usize::from(chunk)) {
                    cut(chunk.segments(), incoming, &mut parts);
                }
            }
        }
        let Some(target) = incoming.buf.take() else { continue };
        let request = ReadRequest { id: ((call.id.index() as u64) << 32) | place as u64, target };
        match core.provider.post_read(id, request, &parts) {
            Ok(()) => {
                incoming.posted = true;
                core.read_posted = true;
            }
            Err(refused) => {
                incoming.buf = Some(refused.request.target);
                return match refused.error {
                    stag_fabric::PostError::Full => Posted::Full,
                    _ => Posted::Refused,
                };
            }
        }
    }
    Posted::All
}

/// The Reads that fill one piece of memory from a chunk's segments.
fn cut(
    segments: impl Iterator<Item = Segment>,
    incoming: &Incoming,
    parts: &mut ArrayVec<ReadPart, READ_PARTS_MAX>,
) {
    let mut cursor = Cursor::new(segments);
    let mut skip = incoming.start;
    while skip > 0
        && let Some(span) = cursor.take(skip)
    {
        skip -= span.len;
    }
    let mut at = 0;
    while at < incoming.len
        && let Some(span) = cursor.take(incoming.len - at)
    {
        let source = RemoteSegment { handle: Handle(span.handle), offset: span.offset };
        if parts.try_push(ReadPart { at, len: span.len, source }).is_err() {
            return;
        }
        at += span.len;
    }
}
