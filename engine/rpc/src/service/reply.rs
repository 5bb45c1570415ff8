//! A Reply as its handler fills it in.

use stag_memory::{Pool, SendBuf, Shared};
use stag_proto::responder;
use stag_wire::rpc::{Accepted, ReplyHeader, emit_success};
use stag_wire::xdr::{Overflow, Writer};

use crate::carried::{CarriedReply, CarriedRoom, Ending};
use crate::server::draft::{Draft, EncodedPayload, Item, PIECES_USUAL, Verdict};
use crate::server::kept::KeptReply;
use crate::server::transit::{self, MemoryHolder, TransitAccounts};
use crate::service::call::{Call, PlacedPieces};
use crate::service::deferred::{Deferrals, Deferred};
use crate::service::{Procedure, Token};
use crate::state::EngineState;
use crate::version2::answering::GroupRoom;

/// Where an eligible result has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Into the Write chunk meant for it: give its memory to [`Reply::piece`], and encode only its
    /// length (`eligible_opaque_reduced`).
    Reduced,
    /// Into the payload: encode its octets (`eligible_opaque_inline`).
    Inline,
}

/// Where a payload is built that leaves from there.
pub(crate) struct Space<'a> {
    pub(crate) octets: &'a mut [u8],
    /// Octets of the header that will stand before it.
    pub(crate) header_len: usize,
}

/// What there is for a Reply.
pub(crate) struct Frame<'a> {
    /// The Call's.
    pub(crate) xid: u32,
    pub(crate) room: Room<'a>,
    /// Octets that the Send may have, header included.
    pub(crate) inline_len_max: usize,
    /// Where the payload goes if it leaves from where it is built; `None`: into the draft's Send buffer.
    pub(crate) space: Option<Space<'a>>,
    /// Who holds the pages of a long Reply; `None` if none are for it.
    pub(crate) holder: Option<MemoryHolder<'a>>,
}

/// What there is for results beside the Send.
pub(crate) enum Room<'a> {
    /// The chunks of this Call.
    Chunks(&'a responder::ReceivedCall<'a>),
    /// The same for a base message of version 2. Its Reply goes inline with a payload of at most this many octets, even if
    /// the Send buffer is shorter.
    Base(&'a responder::ReceivedCall<'a>, usize),
    /// The Write chunk of a Call with one chunk of one segment, of this number of octets; `None`: it has
    /// none.
    Single(Option<u32>),
    /// A byte stream: it has no chunks, and takes results of any length.
    Stream,
    /// Either, where the Call came in.
    Carried(&'a CarriedRoom),
    /// Messages of version 2.
    Group(GroupRoom),
}

/// The Reply to one Call: the handler fills it in, the engine sends it.
pub struct Reply<'a> {
    draft: &'a mut Draft,
    frame: Frame<'a>,
    /// Where another Send buffer comes from when there is not enough space.
    messages: &'a Pool,
    /// Where a long Reply's pages come from.
    payload: &'a Pool,
    /// What others hold of them.
    accounts: &'a TransitAccounts,
    /// Where a long Reply is written, before it is known how many pages it takes.
    scratch: &'a mut Vec<u8>,
    /// Eligible results that the binding allows.
    eligible: u8,
    copied_bytes: &'a mut u64,
    pub(super) deferrals: &'a Deferrals,
}

impl<'a> Reply<'a> {
    /// An empty one, for a Call of this procedure.
    #[inline(always)]
    pub(crate) fn new(
        state: &'a mut EngineState,
        draft: &'a mut Draft,
        procedure: &Procedure,
        frame: Frame<'a>,
    ) -> Reply<'a> {
        Reply {
            draft,
            frame,
            messages: &state.pools.messages,
            payload: &state.pools.payload,
            accounts: &state.transit,
            scratch: &mut state.scratch,
            eligible: procedure.eligible_results,
            copied_bytes: &mut state.statistics.copied_bytes,
            deferrals: &state.deferrals,
        }
    }
}

impl Reply<'_> {
    /// Announces the next DDP-eligible result, of `len` octets, and says where it has to go. Call it once
    /// for each eligible result, in the order in which they are encoded, before [`Reply::success`].
    ///
    /// Keeps 8166-4.3.2-a, 8166-4.3.2.1-a, 8166-4.3.2.3-b and 8166-X-12: Write chunks are used in list order; an empty
    /// one, or none, means inline; an item of no octets uses its chunk up.
    ///
    /// On a byte stream the first eligible result is sent from the memory that it lies in, unless
    /// it is so short that a copy costs less.
    #[inline]
    pub fn item(&mut self, len: u32) -> Placement {
        let write_chunk = self.write_room(len);
        let reduced = write_chunk.is_some();
        if write_chunk.is_some_and(|room| room < u64::from(len)) {
            self.draft.verdict = Verdict::TooLong;
        }
        let pieces_end = self.draft.pieces.len() as u32;
        self.draft.items.push(Item { len, reduced, pieces_end });
        if reduced { Placement::Reduced } else { Placement::Inline }
    }

    /// Octets that there is room for beside the payload, for the next eligible result, of `len` octets; `None`: it has to be in
    /// the payload.
    #[inline(always)]
    fn write_room(&self, len: u32) -> Option<u64> {
        self.write_room_at(self.draft.items.len(), len)
    }

    /// Octets that there is room for beside the payload, for the eligible result of this number, counted from 0: its Write chunk.
    /// `None`: it has to be in the payload, as all behind it. An item that is longer than its room fails the Call.
    #[must_use]
    pub fn item_place(&self, index: usize) -> Option<u64> {
        self.write_room_at(index, u32::MAX)
    }

    #[inline(always)]
    fn write_room_at(&self, index: usize, len: u32) -> Option<u64> {
        match self.frame.room {
            _ if index >= usize::from(self.eligible) => None,
            Room::Chunks(call) | Room::Base(call, _) => call.write_room(index),
            Room::Single(room) => room.filter(|_| index == 0).map(u64::from),
            Room::Carried(room) if !room.is_stream => room.write_chunks.get(index).copied(),
            Room::Group(room) => room.item_room.filter(|_| index == 0),
            Room::Stream | Room::Carried(_) => (index == 0 && len >= SPLICE_LEN_MIN).then_some(u64::MAX),
        }
    }

    /// Gives the next piece of the memory of the item announced last: it is written to the peer as it
    /// is, without a copy. The pieces' lengths add up to the item's; otherwise the Call is answered with
    /// SYSTEM_ERR, and the log says which procedure did it.
    #[inline]
    pub fn piece(&mut self, piece: Shared) {
        if let Some(item) = self.draft.items.last_mut()
            && item.reduced
        {
            self.draft.pieces.push(piece);
            item.pieces_end = self.draft.pieces.len() as u32;
        }
    }

    /// Takes back what was announced and given of results, to answer that there are none after all.
    pub fn forget_results(&mut self) {
        self.draft.forget_results();
    }

    /// Answers with results. `encode` writes them; it is called again when they turn out too long for the room that
    /// there was, and must then write the same, or more of a list.
    pub fn success(&mut self, encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>) {
        let xid = self.frame.xid;
        self.draft.is_service = true;
        self.encode(|writer| {
            emit_success(writer, xid)?;
            encode(writer)
        });
    }

    /// Answers with what `head` writes, and behind it an eligible opaque item, the octets of `pieces`: by chunk from where they lie
    /// if the client offered memory for them, otherwise in the Reply. It does what [`Reply::item`], [`Reply::piece`] and
    /// [`Reply::success`] do, for results whose only eligible item is their end.
    pub fn success_with_item(
        &mut self,
        pieces: &[Shared],
        head: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) {
        let Ok(len) = u32::try_from(pieces.iter().map(Shared::len).sum::<usize>()) else {
            return self.system_error();
        };
        match self.item(len) {
            Placement::Reduced => {
                pieces.iter().for_each(|piece| self.piece(piece.clone()));
                self.success(|writer| {
                    head(writer)?;
                    writer.eligible_opaque_reduced(len).map(drop)
                });
            }
            Placement::Inline => self.success(|writer| {
                head(writer)?;
                writer.opaque_pieces(len, pieces.iter().map(|piece| &piece[..]))
            }),
        }
    }

    /// Says, after [`Reply::success`], that its results are a refusal of the caller: it may not use what the service has. A
    /// connection that gets nothing else makes room for others when there are as many as may be.
    #[inline]
    pub fn refuses_caller(&mut self) {
        self.draft.is_service = false;
    }

    /// Says, after [`Reply::success`], that its results tell of an error, for counters ([`Observed`](crate::Observed)): a number of
    /// the program, other than 0.
    #[inline]
    pub fn failed_with(&mut self, status: u32) {
        self.draft.status = status;
    }

    /// The error that the results tell of; 0: none.
    #[inline(always)]
    pub(super) fn status(&self) -> u32 {
        self.draft.status
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

    /// Leaves the answer to another thread, or to a later time. Give the [`Deferred`] to the thread that does the work,
    /// and return [`Outcome::Later`](crate::Outcome::Later) with its token; keep nothing else, and
    /// [`Service::poll_later`](crate::Service::poll_later) is not needed. One allocation for each answer.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left (the first time), or as many Calls are deferred already as all connections
    /// together may have in process: answer at once then.
    pub fn defer(&self, call: &Call<'_>) -> std::io::Result<Deferred> {
        self.deferrals.defer(call.token())
    }

    /// Whether this is the Call of `token`, and it was just deferred.
    #[inline]
    pub(crate) fn is_deferred(&self, token: Token) -> bool {
        self.deferrals.has_just_deferred(token)
    }

    /// Memory for `len` octets of an eligible result that another thread provides: it fills it, and moves it into what it gives to
    /// [`Deferred::finish`](crate::Deferred::finish). There [`SendBuf::into_buf`] makes it a buffer of [`Reply::piece`], and no
    /// octet is copied. Shorter results are [`SendBuf::set_len`]. One item for each Call.
    ///
    /// `None`: the client's part of [`Pools::payload`](crate::Pools::payload) has no room now, or there is no free run so long.
    pub fn data_room(&mut self, len: u32) -> Option<SendBuf> {
        self.deferrals.collect();
        if !self.has_results_room(len) {
            return None;
        }
        let mut buf = self.payload.take_len(len as usize)?;
        buf.set_len(len as usize);
        self.expect_results(len);
        Some(self.deferrals.send(buf))
    }

    /// The handler panicked while it filled this in: the Call is answered with SYSTEM_ERR, and the log says why.
    pub(crate) fn panicked(&mut self) {
        self.draft.forget_results();
        self.draft.verdict = Verdict::Panicked;
    }

    /// Answers with an error of RPC.
    pub(crate) fn error(&mut self, outcome: Accepted) {
        self.header(&ReplyHeader::accepted(self.frame.xid, outcome));
    }

    /// Answers as the Call was answered before.
    pub(crate) fn repeat(&mut self, kept: &KeptReply) {
        self.encode(|writer| writer.opaque_fixed(kept.as_bytes()));
    }

    /// Answers as another reactor did, with this payload if it is inline, and with this memory.
    pub(crate) fn carried(&mut self, reply: &CarriedReply, payload: &[u8], pieces: &mut Vec<Shared>) {
        self.draft.forget_results();
        match reply.ending {
            Ending::BadChunks => self.draft.verdict = Verdict::BadChunks,
            Ending::TooLong => self.draft.verdict = Verdict::TooLong,
            Ending::NoMemory => self.draft.verdict = Verdict::NoMemory(0),
            Ending::Encoded | Ending::Dropped => {
                let long = pieces.split_off(usize::from(reply.pieces));
                if long.is_empty() {
                    self.encode(|writer| writer.opaque_fixed(payload));
                } else {
                    self.draft.long.extend(long);
                    self.draft.payload_len = reply.long.1 as usize;
                    self.draft.verdict = Verdict::Encoded;
                }
                self.draft.items.extend(reply.items.iter().map(|item| Item {
                    len: item.len,
                    reduced: item.is_reduced,
                    pieces_end: item.pieces_end.into(),
                }));
                if reply.are_stored {
                    // At their home they are; here they are nothing that waits to be taken.
                    pieces.iter().for_each(Shared::mark_stored);
                }
                self.draft.pieces.append(pieces);
                self.draft.splice = reply.splice;
                self.draft.left_out = reply.left_out;
            }
        }
        self.draft.is_service = reply.is_service;
    }

    /// Answers with a sealed header and sealed results, beside the items that are in the draft already.
    pub(crate) fn sealed(&mut self, header: &ReplyHeader<'_>, results: &[u8]) {
        self.encode(|writer| {
            header.emit(writer)?;
            writer.opaque_fixed(results)
        });
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
        self.draft.long.clear();
        match write_payload(&encode, self.inline_space()) {
            Ok(payload) => self.draft.set_payload(&payload),
            Err(sum) => self.encode_elsewhere(&|space| write_payload(&encode, space), sum),
        }
    }

    /// Where a payload goes that stays inline.
    #[inline(always)]
    fn inline_space(&mut self) -> &mut [u8] {
        let Frame { space, inline_len_max, .. } = &mut self.frame;
        match space {
            Some(space) => {
                let room = space.octets.len().min(*inline_len_max - space.header_len);
                &mut space.octets[..room]
            }
            None => self.draft.inline_space(*inline_len_max),
        }
    }

    /// Encodes a payload that did not fit where most do.
    // Never inline: what most Replies take would be dearer.
    #[inline(never)]
    fn encode_elsewhere(&mut self, write: &WritePayload<'_>, mut bad_sum: Option<(u32, u64)>) {
        self.draft.verdict = Verdict::TooLong;
        if let Some(Space { header_len, octets }) = &self.frame.space
            && header_len + octets.len() < self.frame.inline_len_max
        {
            // A Send buffer is longer.
            self.draft.header_len = *header_len;
            self.frame.space = None;
            if !self.draft.take_send(self.messages) {
                return;
            }
            match write(self.draft.inline_space(self.frame.inline_len_max)) {
                Ok(payload) => return self.draft.set_payload(&payload),
                Err(sum) => bad_sum = sum.or(bad_sum),
            }
        }
        self.encode_long(write, bad_sum);
    }

    /// Encodes a payload that does not stay inline.
    fn encode_long(&mut self, write: &WritePayload<'_>, mut bad_sum: Option<(u32, u64)>) {
        let limit = self.long_len_max();
        if limit > 0 {
            if self.scratch.len() < LONG_REPLY_LEN_MAX {
                self.scratch.resize(LONG_REPLY_LEN_MAX, 0);
            }
            // What has a shorter form is as short as the memory wants it. What has none is written to know how long it is.
            let most = limit.min(LONG_REPLY_LEN_MAX);
            let affordable = self.long_room().min(most);
            let mut written = Err(None);
            for room in [affordable, most] {
                if written.is_err() && room > 0 {
                    written = write(&mut self.scratch[..room]);
                }
            }
            match written {
                // A list that wants more room than there is inline, and has no more entries with it.
                Ok(payload) if payload.len <= self.inline_space().len() => {
                    let scratch = std::mem::take(self.scratch);
                    self.inline_space()[..payload.len].copy_from_slice(&scratch[..payload.len]);
                    *self.scratch = scratch;
                    self.draft.set_payload(&payload);
                }
                Ok(payload) if self.place_long(payload.len) => self.draft.set_payload(&payload),
                Ok(payload) => self.lack(transit::pages(self.payload, payload.len)),
                Err(sum) => {
                    bad_sum = sum.or(bad_sum);
                    let due = self.due();
                    match write_huge(self.payload, limit, due, write) {
                        Ok((payload, piece)) => {
                            *self.copied_bytes += payload.len as u64;
                            self.draft.long.push(piece);
                            self.draft.set_payload(&payload);
                        }
                        // Its length is unknown: it is tried again when there is more memory.
                        Err(Huge::NoMemory) => self.lack(due + due / 4 + 1),
                        Err(Huge::TooLong) => {}
                    }
                }
            }
        }
        if let Some((announced, given)) = bad_sum {
            self.draft.verdict = Verdict::BadSum(announced, given);
        }
    }

    /// Pages that a Long Reply may take now.
    fn due(&self) -> usize {
        let Some(holder) = self.frame.holder else { return 0 };
        match self.is_stream() {
            true => self.accounts.message_room(holder, self.payload),
            false => self.accounts.reply_room(holder, self.payload),
        }
    }

    /// The results need `pages`, which their client may not take now.
    fn lack(&mut self, pages: usize) {
        let pool = self.payload;
        // Else there is nothing to wait for: there are not as many, or others hold none.
        if pages <= pool.transit() - transit::reserve(pool) && pool.transit_free() < pool.transit() {
            self.draft.verdict = Verdict::NoMemory(u32::try_from(pages).unwrap_or(u32::MAX));
        }
    }

    fn is_stream(&self) -> bool {
        matches!(self.frame.room, Room::Stream | Room::Carried(CarriedRoom { is_stream: true, .. }))
    }

    /// Puts the first `len` octets of `scratch` in pages of their own, as many pieces as it takes. `false`: their client may not
    /// take them now.
    fn place_long(&mut self, len: usize) -> bool {
        let mut pieces = PlacedPieces::new();
        if transit::pages(self.payload, len) > self.due() || !self.payload.take_pieces(len, &mut pieces) {
            return false;
        }
        *self.copied_bytes += 2 * len as u64;
        let mut rest = &self.scratch[..len];
        for mut piece in pieces {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
            self.draft.long.push(piece.share());
        }
        true
    }

    /// Octets of a Long Reply at most: what the Reply chunk holds (8166-3.5.3-e), or what may be exposed; 0 without either. On a
    /// byte stream as many as any may have.
    fn long_len_max(&self) -> usize {
        match self.frame.room {
            _ if self.frame.holder.is_none() => 0,
            Room::Chunks(call) => reply_chunk_len(call).max(self.exposed_len_max()),
            Room::Base(call, inline) => reply_chunk_len(call).max(inline.min(LONG_REPLY_LEN_MAX)),
            Room::Single(_) => self.exposed_len_max(),
            Room::Carried(room) if !room.is_stream => room.reply_chunk_len as usize,
            Room::Group(room) => room.long_len_max,
            Room::Stream | Room::Carried(_) => LONG_REPLY_LEN_MAX,
        }
    }

    /// Octets of a Reply that is exposed at most; 0 where none is.
    fn exposed_len_max(&self) -> usize {
        match self.frame.holder {
            Some(MemoryHolder::Share(share)) => share.exposed_len_max as usize,
            Some(MemoryHolder::Guest { .. }) | None => 0,
        }
    }

    /// Octets that a Reply may have that does not stay inline: what the Reply chunk holds, and what there is memory for.
    /// 0 where it has to stay inline. Results that have a shorter form, such as lists, should have no more.
    #[must_use]
    pub fn long_room(&self) -> usize {
        self.long_len_max().min(self.affordable_len())
    }

    /// Octets that the payload of this Reply may have, RPC's header included and eligible results that go by chunk not:
    /// inline or beside the Send, whichever has more. There may be no memory for as many.
    #[must_use]
    pub fn payload_room(&self) -> usize {
        let inline = match &self.frame.space {
            Some(space) => self.frame.inline_len_max - space.header_len,
            None => self.frame.inline_len_max.saturating_sub(self.draft.header_len),
        };
        inline.max(self.long_len_max())
    }

    /// Octets that results should have at most that are copied to memory of the client's part.
    fn affordable_len(&self) -> usize {
        let Some(holder) = self.frame.holder else { return 0 };
        let half = self.accounts.results_room(holder, self.payload) / 2;
        half.min(self.due()).saturating_mul(self.payload.unit_len())
    }

    /// Of `len` octets of results that need memory of [`Pools::payload`](crate::Pools::payload), those that the client's part
    /// of it has room for: at least a page of them. So a client that does not take its results gets shorter ones. Results
    /// that lie in memory already ask [`Reply::item_room`] only.
    #[must_use]
    pub fn results_room(&self, len: u32) -> u32 {
        let Some(holder) = self.frame.holder else { return len };
        let due = self.accounts.results_room(holder, self.payload).max(1);
        len.min(u32::try_from(due.saturating_mul(self.payload.unit_len())).unwrap_or(u32::MAX))
    }

    /// Whether the client's part of [`Pools::payload`](crate::Pools::payload) has room for `len` octets of results that cannot be
    /// shorter. Otherwise they should be refused for now: what is left is for data that comes.
    #[must_use]
    pub fn has_results_room(&self, len: u32) -> bool {
        self.frame.holder.is_none_or(|holder| {
            self.accounts.results_room(holder, self.payload) >= transit::pages(self.payload, len as usize)
        })
    }

    /// Of the `len` octets of the next eligible result, those that it should have where it goes: all of them where they are sent
    /// from the memory that they lie in, or stay inline; as many as the client's part of the memory has room for, a page at
    /// least, where a Long Reply copies them.
    #[inline]
    #[must_use]
    pub fn item_room(&self, len: u32) -> u32 {
        if self.write_room(len).is_some() { len } else { self.copied_room(len) }
    }

    fn copied_room(&self, len: u32) -> u32 {
        // What stands around them takes less than a page.
        let unit = self.payload.unit_len();
        let is_inline = len as usize + ITEM_HEAD_MAX <= self.frame.inline_len_max;
        if is_inline || self.long_len_max() == 0 {
            return len;
        }
        let room = self.affordable_len().saturating_sub(unit).max(unit);
        len.min(u32::try_from(room).unwrap_or(u32::MAX))
    }

    /// Whether the results found no memory, and the Call does not wait for it any longer: it is answered with ERR_CHUNK, over a byte
    /// stream with SYSTEM_ERR, unless other results are given. Ask after [`Reply::success`].
    #[inline]
    #[must_use]
    pub fn lacks_memory(&self) -> bool {
        matches!(self.draft.verdict, Verdict::NoMemory(_))
            && (self.is_stream() || self.frame.holder.is_none_or(|holder| holder.is_last_try()))
    }

    /// Pieces that results may be in which lie in memory already: as many as they like as long as few Replies in many pieces wait
    /// for their clients. Beyond that a few, and results in more places should be shorter: the list of a Reply's pieces is
    /// heap, which [`EngineConfig::lists_len`](crate::EngineConfig::lists_len) bounds.
    #[must_use]
    pub fn pieces_room(&self) -> usize {
        let may_list = match (&self.frame.room, self.frame.holder) {
            (
                Room::Chunks(_) | Room::Base(..) | Room::Single(_) | Room::Group(_),
                Some(MemoryHolder::Share(share)),
            ) => self.accounts.may_list(share),
            (Room::Carried(room), _) => !room.wants_few_pieces,
            // The connection of a byte stream counts the parts that wait.
            _ => true,
        };
        if may_list { usize::MAX } else { PIECES_USUAL }
    }

    /// Says, before [`Outcome::Later`](crate::Outcome::Later) is returned, that `len` octets of
    /// [`Pools::payload`](crate::Pools::payload) will be taken for the results. They count against the client's part of it
    /// until then; what the results really take does so from then on, without a word of the service.
    pub fn expect_results(&mut self, len: u32) {
        self.draft.pages = transit::pages(self.payload, len as usize) as u32;
    }
}

/// Writes a payload into some space. `Err`: it does not fit; with an announced and a given sum if these differ.
type WritePayload<'a> = dyn Fn(&mut [u8]) -> Result<EncodedPayload, Option<(u32, u64)>> + 'a;

#[inline]
fn write_payload(
    encode: &impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    space: &mut [u8],
) -> Result<EncodedPayload, Option<(u32, u64)>> {
    let mut writer = Writer::new(space);
    if encode(&mut writer).is_err() {
        return Err(writer.bad_sum());
    }
    let reduced = writer.reduced_positions();
    Ok(EncodedPayload {
        len: writer.position(),
        splice: reduced.first().copied().unwrap_or(0),
        left_out: (reduced.len() as u32, writer.unreduced_position() - writer.position() as u64),
    })
}

/// Why a payload that is longer than [`LONG_REPLY_LEN_MAX`] is not written.
enum Huge {
    /// It is longer than it may be.
    TooLong,
    /// There is not as much memory for it as it may take.
    NoMemory,
}

/// Writes a payload of at most `limit` octets, which is longer than [`LONG_REPLY_LEN_MAX`], to memory in one piece, `due` pages at
/// most: nothing else has room for it. Each attempt has four times the room of the one before.
#[cold]
fn write_huge(
    payload: &Pool,
    limit: usize,
    due: usize,
    write: &WritePayload<'_>,
) -> Result<(EncodedPayload, Shared), Huge> {
    let most = due.saturating_mul(payload.unit_len());
    let mut room = LONG_REPLY_LEN_MAX;
    while room < limit {
        room = (4 * room).min(limit).min(most);
        if room <= LONG_REPLY_LEN_MAX {
            return Err(Huge::NoMemory);
        }
        let mut buf = payload.take_up_to(room).ok_or(Huge::NoMemory)?;
        // As much as there is, or as it may have: there is no use in trying for more.
        let (len, is_last) = (buf.len(), buf.len() < room || room == most);
        if let Ok(written) = write(&mut buf) {
            buf.shrink_to(written.len);
            return Ok((written, buf.share()));
        }
        if is_last && len < limit {
            return Err(Huge::NoMemory);
        }
    }
    Err(Huge::TooLong)
}

/// Octets of a Long Reply to `call` at most; 0 without a Reply chunk.
pub(crate) fn reply_chunk_len(call: &responder::ReceivedCall<'_>) -> usize {
    call.reply_chunk()
        .map_or(0, |chunk| usize::try_from(chunk.total_len()).unwrap_or(usize::MAX).min(LONG_REPLY_LEN_MAX))
}

/// Largest Long Reply, in octets, whatever the Reply chunk would hold. READDIRPLUS and the like ask for
/// at most 1 MiB; a little more for what stands around the entries.
pub const LONG_REPLY_LEN_MAX: usize = (1 << 20) + 4096;

/// Octets of payload and header that stand around an eligible result which stays inline, at most.
const ITEM_HEAD_MAX: usize = 256;

/// A result of fewer octets is copied into the Reply on a byte stream: a piece of its own costs more.
const SPLICE_LEN_MIN: u32 = 1024;
