//! Receives of version 2: a head and targets, how they are posted, and the received octets.

use stag_fabric::{Provider, ReceiveTargets, ScatteredReceive};
use stag_memory::{Buf, Pool};
use stag_proto::layout::ReceiveLayout;
use stag_proto::placement::ItemSpan;
use stag_wire::rpcrdma2::{Body2, Header2, OptionalOperation};

use crate::ConnectionId;
use crate::pools::PAGE_LEN;
use crate::server::transit;
use crate::service::call::PlacedPieces;
use crate::state::Core;
use crate::version2::HEAD_LEN;

/// Octets of a Payload stream that its receiver looks at: xid and msg_type.
const PAYLOAD_START: usize = 8;

/// How one connection posts its Receives.
#[derive(Debug)]
pub(crate) struct DividedReceives {
    layout: ReceiveLayout,
    /// Boxes of targets that will be posted again, with the pages that were not taken out of them.
    #[allow(clippy::vec_box, reason = "the box moves from here to a Receive, and back")]
    spares: Vec<Box<ReceiveTargets>>,
}

/// A message of version 2 as it arrived.
#[derive(Debug)]
pub(crate) struct ArrivedMessage {
    /// Header and Payload stream, and what else is in the head.
    pub(crate) octets: Buf,
    /// What is behind the head, with the octets that came as the buffers' lengths.
    pub(crate) targets: Option<Box<ReceiveTargets>>,
    /// Octets in the targets that are not in `octets`.
    pub(crate) behind: u32,
    /// First pages of the targets that were taken out, and have no other in their places.
    removed: usize,
}

/// A transmission that is kept until its message is whole.
#[derive(Debug)]
pub(crate) struct KeptPart {
    pub(crate) message: ArrivedMessage,
    /// Octets of its header.
    pub(crate) header_len: u32,
    /// Octets of Payload stream behind that.
    pub(crate) payload_len: u32,
}

impl KeptPart {
    /// Returns the Payload stream, if it is in one piece.
    pub(crate) fn payload(&self) -> Option<&[u8]> {
        let start = self.header_len as usize;
        self.message.octets.get(start..start + self.payload_len as usize)
    }

    /// Copies the Payload stream, which is as long as `out`.
    pub(crate) fn copy_payload(&self, out: &mut [u8]) {
        self.message.copy_out(self.header_len as usize, out);
    }
}

impl DividedReceives {
    /// For at most `count` Receives of `layout`.
    pub(crate) fn new(layout: ReceiveLayout, count: u32) -> DividedReceives {
        let count = if layout.targets() > 0 { count as usize } else { 0 };
        DividedReceives { layout, spares: Vec::with_capacity(count) }
    }

    /// Octets of heap of one for `count` Receives with `targets` targets.
    pub(crate) fn footprint(count: u32, targets: u32) -> usize {
        let each = size_of::<ReceiveTargets>() + targets as usize * size_of::<Buf>() + size_of::<Box<Buf>>();
        if targets == 0 { 0 } else { count as usize * each }
    }

    /// Whether its Receives have targets.
    pub(crate) fn is_divided(&self) -> bool {
        self.layout.targets() > 0
    }

    /// Posts a Receive. `false`: there is no memory, or no room for it. `is_needed`: others have to do without the memory.
    pub(crate) fn post<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        is_needed: bool,
    ) -> bool {
        if !self.is_divided() {
            let Some(head) = core.pools.messages.take() else { return false };
            return core.provider.post_receive(id, 0, head).is_ok();
        }
        let count = self.layout.targets() as usize;
        let pool = &core.state.pools.payload;
        let mut targets =
            self.spares.pop().unwrap_or_else(|| Box::new(ReceiveTargets::new(Vec::with_capacity(count))));
        let missing = count - targets.bufs().len();
        let is_there = missing == 0 || is_needed || missing <= transit::free(pool);
        while is_there
            && targets.bufs().len() < count
            && let Some(page) = pool.take()
        {
            targets.bufs_mut().push(page);
        }
        if targets.bufs().len() == count
            && let Some(mut head) = core.state.pools.messages.take()
        {
            head.set_len(HEAD_LEN.min(head.capacity() as u32) as usize);
            match core.provider.post_scattered(id, ScatteredReceive { id: 0, head, targets }) {
                Ok(()) => return true,
                Err(refused) => targets = refused.request.targets,
            }
        }
        self.spares.push(targets);
        false
    }

    /// Keeps what is left of a message's targets for the next Receives.
    pub(crate) fn reuse(&mut self, targets: Option<Box<ReceiveTargets>>) {
        // More boxes than Receives there are never.
        self.spares.extend(targets);
    }
}

impl ArrivedMessage {
    /// A message whose head is here, with its targets. Each message of a connection with divided Receives passes here: the connection
    /// does not end before its targets are taken.
    pub(crate) fn arrive<P: Provider>(core: &mut Core<P>, id: ConnectionId, head: Buf) -> ArrivedMessage {
        let targets = core.provider.take_targets(id);
        let behind = targets.iter().flat_map(|targets| targets.bufs()).map(|buf| buf.len() as u32).sum();
        if let Some(recorder) = &mut core.state.recorder {
            recorder.lengthen_last(behind);
        }
        ArrivedMessage::of(head, targets, behind)
    }

    /// One whose targets were taken before.
    pub(crate) fn of(octets: Buf, targets: Option<Box<ReceiveTargets>>, behind: u32) -> ArrivedMessage {
        ArrivedMessage { octets, targets, behind, removed: 0 }
    }

    /// Whether the header and the start of the Payload stream are in the head, and what lies behind can be read there.
    fn is_placed(&self) -> bool {
        let Ok((header, rest)) = Header2::parse(&self.octets) else { return false };
        let Body2::Optional(found) = header.body else { return false };
        let operation = OptionalOperation::parse(&found);
        // The start of the Payload stream says what it is.
        operation.is_ok_and(|operation| {
            operation.payload_len().is_some_and(|len| rest.len() >= PAYLOAD_START.min(len as usize))
        })
    }

    /// Puts the message in one piece, if it is no transmission of a group. `false`: there is no memory for that.
    pub(crate) fn put_together<P>(&mut self, core: &mut Core<P>) -> bool {
        if self.behind == 0 || self.is_placed() {
            return true;
        }
        let len = self.octets.len() + self.behind as usize;
        let Some(mut whole) = take_message(core, len) else { return false };
        let (head, mut rest) = whole.split_at_mut(self.octets.len());
        head.copy_from_slice(&self.octets);
        for target in self.targets.iter().flat_map(|targets| targets.bufs()) {
            let (here, behind) = rest.split_at_mut(target.len());
            here.copy_from_slice(target);
            rest = behind;
        }
        core.statistics.copied_bytes += len as u64;
        self.octets = whole;
        self.behind = 0;
        true
    }

    /// Takes the piece of an item out: the page that it lies in, where it begins one, or a copy. `None`: there is no memory.
    fn take_piece<P>(&mut self, core: &mut Core<P>, span: &ItemSpan) -> Option<Buf> {
        let pool = &core.state.pools.payload;
        let len = span.len as usize;
        if let Some(mut page) = self.take_page(pool, span) {
            page.set_len(len);
            return Some(page);
        }
        let mut copy = pool.take_len(len)?;
        self.copy_out(span.at as usize, &mut copy);
        core.state.statistics.copied_bytes += len as u64;
        Some(copy)
    }

    /// Takes the page out that a piece begins. Another one of the pool takes its place, or the box is short of its first pages.
    fn take_page(&mut self, pool: &Pool, span: &ItemSpan) -> Option<Buf> {
        let at = span.at.checked_sub(HEAD_LEN).filter(|at| at.is_multiple_of(PAGE_LEN as u32))?;
        let index = (at as usize / PAGE_LEN).checked_sub(self.removed)?;
        let bufs = self.targets.as_mut()?.bufs_mut();
        let place = bufs.get_mut(index).filter(|page| page.len() >= span.len as usize)?;
        if let Some(mut fresh) = pool.take() {
            fresh.set_len(0);
            return Some(std::mem::replace(place, fresh));
        }
        if index > 0 {
            return None;
        }
        self.removed += 1;
        Some(bufs.remove(0))
    }

    /// Changes the page that a piece begins for `buf`, if both are alike. `false`: nothing happened.
    pub(crate) fn swap_page(&mut self, span: &ItemSpan, buf: &mut Buf) -> bool {
        let Some(at) = span.at.checked_sub(HEAD_LEN).filter(|at| at.is_multiple_of(PAGE_LEN as u32)) else {
            return false;
        };
        let index = at as usize / PAGE_LEN - self.removed;
        let Some(page) = self.targets.as_mut().and_then(|targets| targets.bufs_mut().get_mut(index)) else {
            return false;
        };
        let is_alike = page.capacity() == buf.capacity() && page.location().arena == buf.location().arena;
        if !is_alike || page.len() < span.len as usize {
            return false;
        }
        page.set_len(span.len as usize);
        std::mem::swap(page, buf);
        true
    }

    /// Copies octets of the Send from `at` on, as they came.
    pub(crate) fn copy_out(&self, at: usize, out: &mut [u8]) {
        let in_head = self.octets.len().saturating_sub(at).min(out.len());
        if in_head > 0 {
            out[..in_head].copy_from_slice(&self.octets[at..at + in_head]);
        }
        let targets = self.targets.iter().flat_map(|targets| targets.bufs());
        let mut done = in_head;
        for (start, target) in
            (0..).map(|nth| HEAD_LEN as usize + (nth + self.removed) * PAGE_LEN).zip(targets)
        {
            let from = (at + done).saturating_sub(start);
            if at + done < start || from >= target.len() || done == out.len() {
                continue;
            }
            let here = (target.len() - from).min(out.len() - done);
            out[done..done + here].copy_from_slice(&target[from..from + here]);
            done += here;
        }
    }
}

/// Takes the octets of an item out of the messages of its group, as buffers that are filled from their starts. `false`: there is no
/// memory for all of it, and `pieces` has none.
pub(crate) fn take_item<P>(
    core: &mut Core<P>,
    parts: &mut [KeptPart],
    spans: &[ItemSpan],
    pieces: &mut PlacedPieces,
) -> bool {
    for span in spans {
        let Some(part) = parts.get_mut(span.transmission as usize) else { continue };
        let Some(piece) = part.message.take_piece(core, span) else {
            pieces.clear();
            return false;
        };
        pieces.push(piece);
    }
    true
}

/// Puts the Payload stream of a message together that is in several parts.
pub(crate) fn gather(parts: &[KeptPart], out: &mut Vec<u8>) {
    out.clear();
    for part in parts {
        let start = out.len();
        out.resize(start + part.payload_len as usize, 0);
        part.copy_payload(&mut out[start..]);
    }
}

/// Takes a buffer for a message of `len` octets, for a Send or to put one together; its length is that.
pub(crate) fn take_message<P>(core: &Core<P>, len: usize) -> Option<Buf> {
    let pools = &core.state.pools;
    let mut buf = match len <= pools.messages.unit_len() {
        true => pools.messages.take(),
        false => pools.payload.take_len(len),
    }?;
    buf.set_len(len);
    Some(buf)
}
