//! What a handler fills in.

use stag_memory::{Buf, Pool, Shared};
use stag_proto::responder;
use stag_wire::rpc::{Accepted, ReplyHeader, emit_success};
use stag_wire::xdr::{Overflow, Writer};

use crate::call::Call;
use crate::deferred::{Deferrals, Deferred};
use crate::draft::{Draft, Item, Verdict};
use crate::kept::KeptReply;

/// Where an eligible result has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Into the Write chunk meant for it: give its memory to [`Reply::piece`], and encode only its
    /// length (`eligible_opaque_reduced`).
    Reduced,
    /// Into the payload: encode its octets (`eligible_opaque_inline`).
    Inline,
}

/// The Reply to one Call: the handler fills it in, the engine sends it.
pub struct Reply<'a> {
    pub(crate) draft: &'a mut Draft,
    /// The Call's.
    pub(crate) xid: u32,
    /// Which chunks there are for results; `None` on a byte stream, which has none.
    pub(crate) chunks: Option<&'a responder::Call<'a>>,
    /// Octets that the Send buffer may hold, header included.
    pub(crate) inline_len_max: usize,
    /// Where a long Reply's buffer comes from.
    pub(crate) payload: &'a Pool,
    /// Eligible results that the binding allows.
    pub(crate) eligible: u8,
    pub(crate) copied_bytes: &'a mut u64,
    pub(crate) deferrals: &'a Deferrals,
}

impl Reply<'_> {
    /// Announces the next DDP-eligible result, of `len` octets, and says where it has to go. Call it once
    /// for each eligible result, in the order in which they are encoded, before [`Reply::success`].
    ///
    /// Keeps 8166-4.3.2-a, 4.3.2.1-a, 4.3.2.3 and X-12: Write chunks are used in list order; an empty one,
    /// or none, means inline; an item of no octets uses its chunk up.
    ///
    /// On a byte stream the only eligible result of a procedure is sent from the memory that it lies in, unless
    /// it is so short that a copy costs less.
    pub fn item(&mut self, len: u32) -> Placement {
        let index = self.draft.items.len();
        let mut reduced = false;
        match self.chunks {
            Some(call) => {
                if index < usize::from(self.eligible)
                    && let Some(chunk) = call.write_chunk(index)
                {
                    reduced = true;
                    if chunk.total_len() < u64::from(len) {
                        self.draft.verdict = Verdict::TooLong;
                    }
                }
            }
            None => reduced = self.eligible == 1 && index == 0 && len >= SPLICE_LEN_MIN,
        }
        let pieces_end = self.draft.pieces.len() as u32;
        self.draft.items.push(Item { len, reduced, pieces_end });
        if reduced { Placement::Reduced } else { Placement::Inline }
    }

    /// Gives the next piece of the memory of the item announced last: it is written to the peer as it
    /// is, without a copy. The pieces' lengths add up to the item's; otherwise the Call is answered with
    /// SYSTEM_ERR, and the log says which procedure did it.
    pub fn piece(&mut self, piece: Shared) {
        if let Some(item) = self.draft.items.last_mut()
            && item.reduced
        {
            self.draft.pieces.push(piece);
            item.pieces_end = self.draft.pieces.len() as u32;
        }
    }

    /// Answers with results. `encode` writes them; it may be called twice, when they turn out too long
    /// to stay inline, and must write the same both times.
    pub fn success(&mut self, encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>) {
        let xid = self.xid;
        self.encode(|writer| {
            emit_success(writer, xid)?;
            encode(writer)
        });
    }

    /// Answers that the arguments could not be decoded (RFC 5531 `GARBAGE_ARGS`, 8166-4.5.2-b).
    pub fn garbage_arguments(&mut self) {
        self.error(Accepted::GarbageArgs);
    }

    /// Answers that something failed that the program has no error for (RFC 5531 `SYSTEM_ERR`).
    pub fn system_error(&mut self) {
        self.error(Accepted::SystemErr);
    }

    /// Answers that the Call's chunks are not those that the binding allows (8166-6.1-c): ERR_CHUNK.
    pub fn bad_chunks(&mut self) {
        self.draft.forget_results();
        self.draft.verdict = Verdict::BadChunks;
    }

    /// Leaves the answer to another thread, or to a later time. Give the [`Deferred`] to whoever does the work, and return
    /// [`Outcome::Later`](crate::Outcome::Later) with its token; nothing else is to be kept, and
    /// [`Service::poll_later`](crate::Service::poll_later) is not needed. One allocation for each answer.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left (the first time), or so many Calls are deferred already as all connections
    /// together may have in process: answer at once then.
    pub fn defer(&self, call: &Call<'_>) -> std::io::Result<Deferred> {
        self.deferrals.defer(call.token())
    }

    fn error(&mut self, outcome: Accepted) {
        self.header(&ReplyHeader::accepted(self.xid, outcome));
    }

    /// Answers as the Call was answered before.
    pub(crate) fn repeat(&mut self, kept: &KeptReply) {
        self.encode(|writer| writer.opaque_fixed(kept.as_bytes()));
    }

    /// Answers with a header and no results.
    pub(crate) fn header(&mut self, header: &ReplyHeader<'_>) {
        self.draft.forget_results();
        self.encode(|writer| header.emit(writer));
    }

    #[inline]
    fn encode(&mut self, encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>) {
        if self.draft.verdict == Verdict::TooLong {
            return;
        }
        self.draft.long = None;
        let (mut splice, mut left_out, mut bad_sum) = (0, (0, 0), None);
        let mut write = |space: &mut [u8]| -> Result<usize, Overflow> {
            let mut writer = Writer::new(space);
            if let Err(overflow) = encode(&mut writer) {
                bad_sum = writer.bad_sum();
                return Err(overflow);
            }
            let reduced = writer.reduced_positions();
            splice = reduced.first().copied().unwrap_or(0);
            left_out = (reduced.len() as u32, writer.unreduced_position() - writer.position() as u64);
            Ok(writer.position())
        };
        let header_len = self.draft.header_len;
        let Some(send) = self.draft.send.as_mut() else {
            unreachable!("a draft has its Send buffer before the handler runs")
        };
        if header_len <= self.inline_len_max
            && let Ok(len) = write(&mut send[header_len..self.inline_len_max])
        {
            self.draft.payload_len = len;
            (self.draft.splice, self.draft.left_out) = (splice, left_out);
            self.draft.verdict = Verdict::Encoded;
            return;
        }
        self.draft.verdict = Verdict::TooLong;
        if let Some(mut long) = self.long_buffer()
            && let Ok(len) = write(&mut long)
        {
            *self.copied_bytes += len as u64;
            long.set_len(len);
            self.draft.payload_len = len;
            (self.draft.splice, self.draft.left_out) = (splice, left_out);
            self.draft.long = Some(long);
            self.draft.verdict = Verdict::Encoded;
        }
        if let Some((announced, given)) = bad_sum {
            self.draft.verdict = Verdict::BadSum(announced, given);
        }
    }

    /// A buffer for a Long Reply, as large as the Reply chunk (8166-3.5.3-e), if there is one. On a byte stream as
    /// large as any may be: what is not used goes back at once.
    fn long_buffer(&self) -> Option<Buf> {
        let len = match self.chunks {
            Some(call) => usize::try_from(call.reply_chunk()?.total_len()).ok()?.min(LONG_REPLY_LEN_MAX),
            None => LONG_REPLY_LEN_MAX,
        };
        if len == 0 {
            return None;
        }
        let mut buf = self.payload.take_len(len)?;
        buf.set_len(len);
        Some(buf)
    }
}

/// Largest Long Reply, in octets, whatever the Reply chunk would hold. READDIRPLUS and the like ask for
/// at most 1 MiB; a little more for what stands around the entries.
pub const LONG_REPLY_LEN_MAX: usize = (1 << 20) + 4096;

/// A result of fewer octets is copied into the Reply on a byte stream: a piece of its own costs more.
const SPLICE_LEN_MIN: u32 = 1024;
