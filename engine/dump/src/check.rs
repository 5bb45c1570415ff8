//! Checks of the chunks that a Reply returns.

use stag_wire::rpcrdma::{HeaderLists, Segment};

use crate::call::{Call, Chunk};
use crate::event::ChunkKind;
use crate::violations::Violations;

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
