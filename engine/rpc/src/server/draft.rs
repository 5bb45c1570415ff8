//! A Reply in the making: its parts, and those that are posted already.

use stag_memory::{Buf, Pool, Shared};

use crate::config::SEGMENTS_MAX;
use crate::server::spares::Reused;

/// One DDP-eligible result in a Draft.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// Octets, without roundup.
    pub(crate) len: u32,
    /// Whether it goes to its Write chunk.
    pub(crate) reduced: bool,
    /// Where its pieces end in [`Draft::pieces`]; they begin where the item before ends.
    pub(crate) pieces_end: u32,
}

/// What the handler decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing yet.
    Empty,
    /// The payload is in place.
    Encoded,
    /// The results fit neither the Reply's inline threshold nor the chunks: ERR_CHUNK.
    TooLong,
    /// The results fit, but their client may not take the memory now. The pages needed; 0: another reactor lacks them.
    NoMemory(u32),
    /// The arguments used chunks as the binding does not allow: ERR_CHUNK.
    BadChunks,
    /// The encoder gave other octets than it announced: announced, and given. SYSTEM_ERR.
    BadSum(u32, u64),
    /// The handler panicked. SYSTEM_ERR.
    Panicked,
}

/// What is wrong with a Reply that a handler says is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// It was not filled in.
    Empty,
    /// The handler panicked.
    Panicked,
    /// An eligible result has other octets than were announced: the client would take what its memory held before
    /// for data.
    Sum { announced: u64, given: u64 },
    /// The encoder left out other items than those that go to Write chunks: their octets, with padding.
    LeftOut { announced: u64, encoded: u64 },
}

/// What an encoder has written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedPayload {
    /// Octets of (reduced) RPC message.
    pub(crate) len: usize,
    /// Where in it the first reduced result belongs.
    pub(crate) splice: u32,
    /// Reduced results that were encoded, and their octets with padding.
    pub(crate) left_out: (u32, u64),
}

/// A Reply in the making. Reused: its lists keep their capacity, so the steady state allocates nothing.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The Send: room for the transport header, then the payload unless `long`.
    pub(crate) send: Option<Buf>,
    /// Octets of the transport header.
    pub(crate) header_len: usize,
    /// Octets of (reduced) RPC message.
    pub(crate) payload_len: usize,
    /// Where in the payload the first reduced result belongs.
    pub(crate) splice: u32,
    /// Reduced results that were encoded, and their octets with padding.
    pub(crate) left_out: (u32, u64),
    /// The payload, when it did not fit behind the header: in as many pieces as free memory is in.
    pub(crate) long: Vec<Shared>,
    /// Eligible results in order.
    pub(crate) items: Vec<Item>,
    /// The memory of the reduced ones.
    pub(crate) pieces: Vec<Shared>,
    /// A service has done something for its caller: anything but NULL, an error of RPC, or a refusal of the caller.
    pub(crate) is_service: bool,
    /// The error that the results tell of, for counters; 0: none.
    pub(crate) status: u32,
    /// The handler's decision.
    pub(crate) verdict: Verdict,
    /// The RDMA Writes that are still to be posted, and the next of them to post.
    pub(crate) writes: Vec<PlannedWrite>,
    /// Index into `writes`.
    pub(crate) next_write: usize,
    /// Of its Writes and its Send: [`crate::server::doomed::reply_id`], or 0.
    pub(crate) id: u64,
    /// Pages for transit that the results take, until the peer has taken them; those of a store are not counted. Before that
    /// what a handler that answers later said that they will take.
    pub(crate) pages: u32,
    /// The peer's handle that dies with the Send.
    pub(crate) invalidate: Option<stag_fabric::Handle>,
}

/// One RDMA Write of a Draft.
#[derive(Debug)]
pub(crate) struct PlannedWrite {
    /// Taken when it is posted.
    pub(crate) source: Option<Shared>,
    pub(crate) target: stag_fabric::RemoteSegment,
}

/// Pieces, and Writes, that most Replies have at most: more make the lists grow.
pub(crate) const PIECES_USUAL: usize = 16;

/// Eligible results, and pieces of a long Reply, that most Replies have at most.
const ITEMS_USUAL: usize = 4;

impl Draft {
    /// Octets of heap of a new one.
    pub(crate) const FOOTPRINT: usize = size_of::<Draft>()
        + ITEMS_USUAL * (size_of::<Shared>() + size_of::<Item>())
        + PIECES_USUAL * (size_of::<Shared>() + size_of::<PlannedWrite>());

    /// Octets of heap of one with results in `pages` pages, each a piece of its own, which go to as many segments as there may be.
    pub(crate) const fn grown(pages: usize) -> usize {
        let pieces = pages.next_power_of_two();
        let writes = (pages + SEGMENTS_MAX as usize).next_power_of_two();
        Draft::FOOTPRINT + pieces * size_of::<Shared>() + writes * size_of::<PlannedWrite>()
    }

    /// Octets of heap that each piece takes at most.
    pub(crate) const PIECE_LEN: usize = 2 * (size_of::<Shared>() + size_of::<PlannedWrite>());

    pub(crate) fn new() -> Draft {
        Draft {
            send: None,
            header_len: 0,
            payload_len: 0,
            splice: 0,
            left_out: (0, 0),
            long: Vec::with_capacity(ITEMS_USUAL),
            items: Vec::with_capacity(ITEMS_USUAL),
            pieces: Vec::with_capacity(PIECES_USUAL),
            is_service: false,
            status: 0,
            verdict: Verdict::Empty,
            writes: Vec::with_capacity(PIECES_USUAL),
            next_write: 0,
            id: 0,
            pages: 0,
            invalidate: None,
        }
    }

    /// Its payload is in place.
    #[inline(always)]
    pub(crate) fn set_payload(&mut self, payload: &EncodedPayload) {
        self.payload_len = payload.len;
        (self.splice, self.left_out) = (payload.splice, payload.left_out);
        self.verdict = Verdict::Encoded;
    }

    /// Where the payload goes that stays inline: the Send buffer behind room for the header. The Send has at most `len_max` octets.
    #[inline(always)]
    pub(crate) fn inline_space(&mut self, len_max: usize) -> &mut [u8] {
        let Some(send) = self.send.as_mut() else {
            // What has no room is refused.
            debug_assert!(false, "a draft has its Send buffer before the handler runs");
            return &mut [];
        };
        // A header that is longer than that leaves no room.
        &mut send[self.header_len.min(len_max)..len_max]
    }

    /// The payload in the Send buffer, unless it is long.
    #[inline(always)]
    pub(crate) fn sent_payload(&self) -> Option<&[u8]> {
        self.send.as_ref()?.get(self.header_len..self.header_len + self.payload_len)
    }

    /// Whether the payload is all of the Reply.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.verdict == Verdict::Encoded && self.long.is_empty() && self.items.is_empty()
    }

    /// Takes a Send buffer. `false`: there is none.
    #[inline]
    pub(crate) fn take_send(&mut self, messages: &Pool) -> bool {
        let Some(mut send) = messages.take() else { return false };
        send.set_len(send.capacity());
        self.send = Some(send);
        true
    }

    /// Puts a payload that was built in `space` into a Send buffer, behind room for the header: it does not leave from there after
    /// all. Without a buffer it fits nowhere.
    #[cold]
    pub(crate) fn rescue(&mut self, messages: &Pool, header_len: usize, space: &[u8]) {
        self.header_len = header_len;
        if !self.take_send(messages) {
            self.verdict = Verdict::TooLong;
        }
        if let Some(send) = &mut self.send {
            send[header_len..][..self.payload_len].copy_from_slice(&space[..self.payload_len]);
        }
    }

    /// Whether its Send must be signaled: what it holds is counted until then, or we are stopping.
    #[inline]
    pub(crate) fn is_signaled(&self, is_stopping: bool) -> bool {
        is_stopping || self.pages > 0
    }

    /// Whether the handler's results are as it announced them.
    // `inline(always)`: most Replies have no items.
    #[inline(always)]
    pub(crate) fn defect(&self) -> Option<Defect> {
        match self.verdict {
            Verdict::Encoded if self.items.is_empty() && self.left_out.0 == 0 => None,
            Verdict::Encoded => match (&self.items[..], &self.pieces[..]) {
                ([item], [piece])
                    if item.reduced
                        && piece.len() == item.len as usize
                        && self.left_out == (1, stag_wire::xdr::padded(item.len)) =>
                {
                    None
                }
                _ => self.items_defect(),
            },
            Verdict::Empty => Some(Defect::Empty),
            Verdict::Panicked => Some(Defect::Panicked),
            Verdict::BadSum(announced, given) => Some(Defect::Sum { announced: announced.into(), given }),
            Verdict::TooLong | Verdict::NoMemory(_) | Verdict::BadChunks => None,
        }
    }

    fn items_defect(&self) -> Option<Defect> {
        let (mut begin, mut count, mut padded) = (0, 0, 0);
        for item in self.items.iter() {
            let own = &self.pieces[begin..item.pieces_end as usize];
            begin = item.pieces_end as usize;
            if !item.reduced {
                continue;
            }
            let (announced, given) = (u64::from(item.len), own.iter().map(|piece| piece.len() as u64).sum());
            if announced != given {
                return Some(Defect::Sum { announced, given });
            }
            count += 1;
            padded += stag_wire::xdr::padded(item.len);
        }
        let encoded = self.left_out;
        (encoded != (count, padded)).then_some(Defect::LeftOut { announced: padded, encoded: encoded.1 })
    }

    /// Pages for transit that the results take.
    pub(crate) fn transit_pages(&self) -> usize {
        self.long.iter().chain(&self.pieces).map(transit_pages).sum()
    }

    /// Forgets the handler's results, and keeps the Send buffer.
    #[inline(always)]
    pub(crate) fn forget_results(&mut self) {
        self.payload_len = 0;
        self.left_out = (0, 0);
        self.is_service = false;
        self.status = 0;
        self.verdict = Verdict::Empty;
        if !(self.items.is_empty() && self.pieces.is_empty() && self.long.is_empty()) {
            self.forget_lists();
        }
    }

    #[inline(never)]
    fn forget_lists(&mut self) {
        self.long.clear();
        self.items.clear();
        self.pieces.clear();
    }
}

impl Default for Draft {
    fn default() -> Draft {
        Draft::new()
    }
}

impl Reused for Draft {
    /// Forgets everything; buffers go back to their pools.
    // `inline(always)`: most Replies have little to forget, and are checked for that first.
    #[inline(always)]
    fn clear(&mut self) {
        self.send = None;
        self.header_len = 0;
        self.forget_results();
        self.writes.clear();
        self.next_write = 0;
        self.id = 0;
        self.pages = 0;
        self.invalidate = None;
    }

    #[inline(always)]
    fn has_grown(&self) -> bool {
        let Draft { long, pieces, writes, .. } = self;
        pieces.capacity() > PIECES_USUAL || writes.capacity() > PIECES_USUAL || long.capacity() > ITEMS_USUAL
    }
}

/// Pages that a piece takes of the memory for transit: none if it is a store's.
pub(crate) fn transit_pages(piece: &Shared) -> usize {
    if piece.is_stored() { 0 } else { piece.len().div_ceil(crate::pools::PAGE_LEN) }
}
