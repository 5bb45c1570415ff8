//! Sends a Reply: its RDMA Writes, then its Send.

use stag_fabric::{Handle, PostError, Provider, RemoteSegment, SendRequest, WriteRequest};
use stag_memory::Shared;
use stag_proto::responder;
use stag_proto::span::Cursor;
use stag_wire::rpcrdma::Segment;

use crate::ConnectionId;
use crate::server::draft::{Draft, PlannedWrite, transit_pages};
use crate::state::Core;

/// How posting went.
pub(crate) enum Posted {
    All,
    /// The send queue is full: try again later.
    Full,
    /// The queue pair takes no more work: the connection is ending.
    Refused,
    /// Something that it should post is missing: a defect of this engine.
    Faulty(&'static str),
}

/// Plans the Write of a Reply's only result, in one piece, to the only segment of the Call's chunks. `false`: it is not so,
/// and nothing is planned.
#[inline(always)]
pub(crate) fn plan_write<P>(core: &mut Core<P>, segment: Segment, draft: &mut Draft) -> bool {
    let ([item], [piece]) = (&draft.items[..], &draft.pieces[..]) else { return false };
    let len = piece.len();
    if !item.reduced || len == 0 || len != item.len as usize || item.len > segment.length {
        return false;
    }
    draft.pages = transit_pages(piece) as u32;
    let target = RemoteSegment { handle: Handle(segment.handle), offset: segment.offset };
    draft.writes.push(PlannedWrite { source: draft.pieces.pop(), target });
    core.statistics.write_chunks += 1;
    core.statistics.write_bytes += len as u64;
    true
}

/// Cuts a Reply's reduced results, and its Payload if it is long, into RDMA Writes.
pub(crate) fn plan_writes<P>(core: &mut Core<P>, call: &responder::ReceivedCall<'_>, draft: &mut Draft) {
    draft.pages = draft.transit_pages() as u32;
    let Draft { items, pieces, long, writes, .. } = draft;
    let mut pieces = pieces.drain(..);
    let mut begin = 0;
    for (index, item) in items.iter().enumerate() {
        let own = pieces.by_ref().take((item.pieces_end - begin) as usize);
        begin = item.pieces_end;
        let Some(chunk) = call.write_chunk(index).filter(|_| item.reduced) else {
            own.for_each(drop);
            continue;
        };
        if item.len > 0 {
            core.statistics.write_chunks += 1;
        } else {
            core.statistics.write_chunks_unused += 1;
        }
        let mut cursor = Cursor::new(chunk.segments());
        let mut left = item.len as usize;
        for piece in own {
            left -= write_piece(&mut cursor, piece, left, writes);
        }
    }
    drop(pieces);
    if !long.is_empty()
        && let Some(chunk) = call.reply_chunk()
    {
        core.statistics.reply_chunks += 1;
        let mut cursor = Cursor::new(chunk.segments());
        for piece in long.drain(..) {
            let len = piece.len();
            write_piece(&mut cursor, piece, len, writes);
        }
    }
    core.statistics.write_bytes +=
        writes.iter().map(|write| write.source.as_ref().map_or(0, |s| s.len() as u64)).sum::<u64>();
}

/// Plans the Writes of one piece, at most `left` octets of it; returns how many octets they are.
pub(crate) fn write_piece(
    cursor: &mut Cursor<impl Iterator<Item = Segment>>,
    piece: Shared,
    left: usize,
    writes: &mut Vec<PlannedWrite>,
) -> usize {
    let len = piece.len().min(left);
    let mut at = 0;
    while at < len
        && let Some(span) = cursor.take((len - at) as u32)
    {
        let target = RemoteSegment { handle: Handle(span.handle), offset: span.offset };
        let end = at + span.len as usize;
        if at == 0 && end == piece.len() {
            // The usual case: the whole piece goes to one segment, and its count moves along.
            writes.push(PlannedWrite { source: Some(piece), target });
            return len;
        }
        writes.push(PlannedWrite { source: Some(piece.slice(at..end)), target });
        at = end;
    }
    at
}

/// Posts the rest of a draft: its Writes, then its Send.
#[inline]
pub(crate) fn post_draft<P: Provider>(core: &mut Core<P>, id: ConnectionId, draft: &mut Draft) -> Posted {
    while let Some(write) = draft.writes.get_mut(draft.next_write) {
        let Some(source) = write.source.take() else { return Posted::Faulty("a Write was posted already") };
        let request = WriteRequest { id: draft.id, source, target: write.target, signaled: false };
        if let Err(refused) = core.provider.post_write(id, request) {
            write.source = Some(refused.request.source);
            return posted(refused.error);
        }
        draft.next_write += 1;
    }
    let Some(buf) = draft.send.take() else { return Posted::Faulty("a Reply was posted already") };
    // Before a connection is ended in order, its last Reply has to be there; and memory is counted until it is taken.
    let signaled = draft.is_signaled(core.stopping);
    let request = SendRequest { id: draft.id, buf, invalidate: draft.invalidate, signaled };
    match core.post_send(id, request) {
        Ok(()) => Posted::All,
        Err(refused) => {
            draft.send = Some(refused.request.buf);
            posted(refused.error)
        }
    }
}

fn posted(error: PostError) -> Posted {
    match error {
        PostError::Full => Posted::Full,
        _ => Posted::Refused,
    }
}

/// A Reply was refused: tells the author of its handler, if that gave memory which the fabric does not know.
#[cold]
pub(crate) fn report_refused<P: Provider>(core: &mut Core<P>, draft: &Draft) {
    let write = draft.writes.get(draft.next_write);
    let Some(source) = write.and_then(|write| write.source.as_ref()) else { return };
    let arena = source.location().arena;
    if core.provider.is_registered(arena) {
        return;
    }
    core.statistics.replies_defective += 1;
    let Some(withheld) = core.state.defects.admit(core.state.now) else { return };
    let (arena, fabric) = (arena.0, core.provider.name());
    tracing::error!(
        arena,
        fabric,
        withheld,
        "handler: its result lies in an arena that is not registered; register it with the provider of each reactor"
    );
}
