//! Calls that are answered in one step, without a slot: those with one chunk of one segment, or none.

use stag_wire::rpcrdma::{HEADER_LEN_MIN, SINGLE_LEN, Single, SingleChunk, emit_plain};

use super::{Emitted, Lists, Responder, ResponderCallId, emit_written};

impl Responder {
    /// Whether a Call may be answered at once, with [`Responder::answer_plain`] or [`Responder::answer_single`]: it is none that is in
    /// process (5531-e), and the peer has a credit for it (8166-3.3.1-b).
    #[inline(always)]
    #[must_use]
    pub fn may_answer(&self, xid: u32) -> bool {
        // No Call in process: the usual case, without a search.
        let is_new = self.calls == 0 || !self.is_in_process(xid);
        is_new && self.connected && self.grant.in_process() < self.grant.ceiling()
    }

    /// Looks at a message that [`Responder::handle_receive`] may take in as a Call with one chunk of one segment: its header, and
    /// its Payload stream. Nothing happens. `None`: it is something else.
    // `inline(always)`: as `handle_receive`.
    #[inline(always)]
    #[must_use]
    pub fn peek_single<'m>(&self, message: &'m [u8]) -> Option<(Single, &'m [u8])> {
        self.parse_single(message)
    }

    /// The slot that the next Call will have.
    ///
    /// # Panics
    ///
    /// When the peer has more Calls in process than it may have.
    #[inline(always)]
    #[must_use]
    pub fn next_slot(&self) -> u32 {
        *self.order.get(self.calls as usize).expect("the grant never exceeds the slots")
    }

    /// Gives the next Call this slot, which [`Responder::next_slot`] said before, whichever Calls have ended since.
    ///
    /// # Panics
    ///
    /// When a Call in process has the slot.
    #[cold]
    pub fn use_next(&mut self, slot: u32) {
        let free = &mut self.order[self.calls as usize..];
        let at = free.iter().position(|&free| free == slot).expect("the slot is free");
        free.swap(0, at);
    }

    /// Takes in a Call of [`Responder::peek_single`] and answers it, in one step: its Receive is posted still, or again. `limit` is
    /// as of [`Responder::answer_plain`]. Writes the Reply's header to the start of `out`, before a Payload stream that is inline, for a
    /// result of `item` octets in the Write chunk. The RDMA Write is posted before the Send.
    ///
    /// # Panics
    ///
    /// As [`Responder::answer_plain`]; and when `out` is shorter than the header, or the item longer than the chunk.
    #[inline(always)]
    pub fn answer_single(&mut self, call: &Single, limit: u32, item: u32, out: &mut [u8]) -> Emitted {
        let &Single { xid, credits: requested, chunk } = call;
        let credits = self.answer_plain(requested, limit);
        let emitted = match chunk {
            SingleChunk::Read(_) => emit_plain(out, xid, credits).map(|_| HEADER_LEN_MIN),
            SingleChunk::Write(segment) => emit_written(out, xid, credits, segment, item),
        };
        let invalidate = self.parameters.remote_invalidation.then_some(chunk.segment().handle);
        Emitted { header_len: emitted.expect("`out` has room for the header"), invalidate }
    }

    /// Takes in a Call without chunks that is answered later, with [`Responder::answer_begun`] or as any other: its Receive is
    /// posted still, or again. `requested` are the credits of its header.
    ///
    /// # Panics
    ///
    /// When the peer has no credit for the Call: ask [`Responder::may_answer`] before.
    #[inline(always)]
    pub fn begin_plain(&mut self, xid: u32, requested: u32) -> ResponderCallId {
        debug_assert!(self.may_answer(xid));
        let Ok(id) = self.occupy(xid, requested) else { panic!("the peer has no credit for it") };
        self.slots[id.index()].lists = Lists::Absent;
        id
    }

    /// Ends a Call of [`Responder::begin_plain`] with a Reply without chunks, and returns the credits of its header. `limit` is
    /// as in [`Responder::set_credit_limit`]. `None`: it is over already.
    #[inline(always)]
    pub fn answer_begun(&mut self, id: ResponderCallId, limit: u32) -> Option<u32> {
        self.slot(id)?;
        self.grant.set_limit(limit);
        let credits = self.grant.renew(false);
        let _ = self.release(id);
        Some(credits)
    }

    /// As [`Responder::begin_plain`], for a Call of [`Responder::peek_single`]. [`Responder::answer_begun_single`] answers it, or whatever
    /// answers any other.
    ///
    /// # Panics
    ///
    /// As [`Responder::begin_plain`].
    #[inline(always)]
    pub fn begin_single(&mut self, call: &Single) -> ResponderCallId {
        let &Single { xid, credits: requested, chunk } = call;
        debug_assert!(self.may_answer(xid));
        let Ok(id) = self.occupy(xid, requested) else { panic!("the peer has no credit for it") };
        let slot = &mut self.slots[id.index()];
        slot.lists = Lists::Single(chunk);
        if self.parameters.remote_invalidation {
            slot.invalidate = Some(chunk.segment().handle);
        }
        id
    }

    /// The chunk of a Call that is in process and has one of one segment, and no other.
    #[inline]
    #[must_use]
    pub fn single(&self, id: ResponderCallId) -> Option<SingleChunk> {
        match self.slot(id)?.lists {
            Lists::Single(chunk) => Some(chunk),
            Lists::Absent | Lists::Message(_) | Lists::Version2 { .. } => None,
        }
    }

    /// Ends a Call of [`Responder::begin_single`]: as [`Responder::answer_single`], for a result of `item` octets. `limit` is as in
    /// [`Responder::set_credit_limit`]. `None`: it is over already, or has other chunks.
    ///
    /// # Panics
    ///
    /// When `out` is shorter than the header, or the item longer than the chunk.
    #[inline(always)]
    pub fn answer_begun_single(
        &mut self,
        id: ResponderCallId,
        limit: u32,
        item: u32,
        out: &mut [u8],
    ) -> Option<Emitted> {
        let chunk = self.single(id)?;
        let xid = self.slot(id)?.xid;
        self.grant.set_limit(limit);
        let credits = self.grant.renew(false);
        let emitted = match chunk {
            SingleChunk::Read(_) => emit_plain(out, xid, credits).map(|_| HEADER_LEN_MIN),
            SingleChunk::Write(segment) => emit_written(out, xid, credits, segment, item),
        };
        let header_len = emitted.expect("`out` has room for the header");
        Some(Emitted { header_len, invalidate: self.release(id) })
    }

    /// Makes a header that says as much of the chunks of a Call of [`Responder::begin_plain`] or [`Responder::begin_single`] as its
    /// own, for [`Responder::call`] and whatever takes the Call's message.
    #[must_use]
    pub fn header_of(&self, id: ResponderCallId) -> [u8; SINGLE_LEN] {
        let mut header = [0; SINGLE_LEN];
        if let Some(slot) = self.slot(id)
            && let Lists::Single(chunk) = slot.lists
        {
            let single = Single { xid: slot.xid, credits: self.requested, chunk };
            single.emit(&mut header).expect("it is as long as such a header");
        }
        header
    }

    /// Takes in a Call without chunks and answers it, in one step: its Receive is posted still, or again. Returns the
    /// credits of the Reply's header. `requested` are those of the Call's header; `limit` is as in
    /// [`Responder::set_credit_limit`].
    ///
    /// # Panics
    ///
    /// When the peer has no credit for the Call: ask [`Responder::may_answer`] before.
    #[inline(always)]
    pub fn answer_plain(&mut self, requested: u32, limit: u32) -> u32 {
        self.requested = requested.max(1);
        self.grant.answer_at_once(limit).expect("the peer has a credit for it")
    }
}
