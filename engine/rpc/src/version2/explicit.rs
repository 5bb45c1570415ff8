//! Groups whose items are in the client's memory (EXRW, RTR-X-25). Each is served as a base message with the same Read chunks.

use stag_memory::Buf;
use stag_proto::responder::Responder2;
use stag_wire::rpcrdma::{MessageKind, ReadSegment};
use stag_wire::rpcrdma2::{Header2, ItemPlace, MessageType, PlacedItem, start};
use stag_wire::xdr::Overflow;

use crate::state::Core;
use crate::version2::receives::{KeptPart, take_message};

/// Octets of a base header without chunks, and of each entry of its Read list.
const HEADER_LEN: usize = stag_wire::rpcrdma2::HEADER_LEN_MIN;
const ENTRY_LEN: usize = 24;

/// Whether a group with this first transmission is served so: all its items are EXRW, and it has no directions. A base message
/// cannot say anything else.
pub(crate) fn is_explicit(lead: &[u8]) -> bool {
    let is_read =
        |item: PlacedItem<'_>| matches!(item.place, ItemPlace::Explicit(_)) && item.displacement > 0;
    let items = Responder2::items(lead);
    !items.is_empty() && items.iter().all(is_read) && Responder2::directions(lead).is_empty()
}

/// Puts the base message together that says the same as a group. `None`: there is no memory for it.
pub(crate) fn base_message<P>(core: &Core<P>, parts: &[KeptPart]) -> Option<Buf> {
    let lead = &parts.first()?.message.octets;
    let entries: usize = Responder2::items(lead)
        .iter()
        .map(|item| if let ItemPlace::Explicit(segments) = item.place { segments.len() } else { 0 })
        .sum();
    let payload_len: usize = parts.iter().map(|part| part.payload_len as usize).sum();
    let mut message = take_message(core, HEADER_LEN + ENTRY_LEN * entries + payload_len)?;
    // The header was read before, and has room.
    let mut at = emit_header(lead, &mut message).ok()?;
    for part in parts {
        let end = at + part.payload_len as usize;
        part.copy_payload(&mut message[at..end]);
        at = end;
    }
    message.set_len(at);
    Some(message)
}

fn emit_header(lead: &[u8], out: &mut [u8]) -> Result<usize, Overflow> {
    let (header, _) = Header2::parse(lead).map_err(|_| Overflow)?;
    let mut emitter = start(out, MessageKind::Msg, MessageType::Call, header.xid, header.credits)?;
    for item in Responder2::items(lead).iter() {
        let ItemPlace::Explicit(segments) = item.place else { continue };
        for segment in segments.iter() {
            emitter.read_segment(ReadSegment { position: item.displacement, segment })?;
        }
    }
    emitter.finish().map(|(len, _)| len)
}
