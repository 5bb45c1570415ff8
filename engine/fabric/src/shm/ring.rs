//! The byte ring of one direction: the producer's half and the consumer's half.
//!
//! ```text
//!   line 0              line 1              line 2              line 3
//!   [H|message........................][H|message|pad           [0|                 [0|
//!    ^ published last: the doorbell      ^ LAST in this header    ^ where the next batch starts
//! ```
//!
//! Records are a header of 8 bytes and a payload padded to 8. A *batch*, all the records between two
//! doorbells, starts on a cache line. Its first header is stored last, with release, and is the doorbell: a
//! message of up to 56 bytes costs the consumer one line transfer, and behind a doorbell several messages
//! share each line. No counter is shared per message: the consumer publishes its position once a quarter of
//! the ring, and the producer reads it when space seems short.
//!
//! A consumer waits for the first word of a line to become other than 0. So the producer clears the first words of
//! the lines that it will use next: some lines ahead, right after a doorbell. The next doorbell waits for no cleared
//! line, and finds its own line in this core's cache already.
//!
//! The first message of a pass leaves at once, so that the consumer can begin while we make the second. The
//! batches behind it grow: 64 bytes, 128, up to 1 KiB. Then many messages share lines, and few doorbells are rung.
//!
//! Most messages begin with the 28 bytes of an RPC-over-RDMA header without chunks (RFC 8166, section 4.2), of which only
//! xid and credits vary. The record's header carries the credits ([`Kind::Plain`]), so that a NULL Call fits in one line.
//!
//! The ring is mapped twice, back to back, so a record never wraps. The producer owns the pages; the consumer
//! maps them read-only. The consumer reads each value once and checks it before use.

use std::sync::atomic::AtomicU64;

use super::copy::{copy_in, copy_out, prefetch_read, prefetch_write, round_up};
use super::order::{self, Word};
use crate::plain::{PLAIN_LEN, PLAIN_LOOK_LEN, PLAIN_VERSION, plain_wire_credits};

/// Bytes of a cache line, where batches start.
pub(super) const LINE: u64 = 64;
/// Bytes of a record's header.
pub(super) const HEADER_LEN: u64 = 8;
/// A batch that grows to this length leaves before the end of the pass: at most so much waits for its doorbell.
const BATCH_LEN_MAX: u64 = 1024;
/// As above, for the second batch of a pass. Each later one may have twice the length of the one before.
const BATCH_LEN_MIN: u64 = LINE;
/// Lines behind the last doorbell whose first words are cleared ahead of time.
const CLEAR_AHEAD: u64 = 4 * LINE;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message.
    Send,
    /// A message that invalidates the handle in `aux`.
    SendInvalidate,
    /// A message without its first [`PLAIN_LEN`] bytes: an RPC-over-RDMA header of version 1 without chunks, with
    /// the credits in `aux` and the xid that the payload starts with.
    Plain,
    /// The handle in `aux` may be read from now on.
    BindRead,
    /// The handle in `aux` may be written from now on.
    BindWrite,
    /// A message, behind the BIND of the handle in `aux`, which may be read from now on.
    SendBindRead,
    /// The same of a handle that may be written.
    SendBindWrite,
}

/// A record's header: 24 bits of length, 4 bits of kind, the flag LAST, 3 bits of how many lines the batch
/// takes (in its first header; a hint, in pairs); then 32 bits of `aux`. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header(u64);

impl Header {
    const LAST: u64 = 1 << 28;
    const PAIRS_SHIFT: u32 = 29;
    const PAIRS_MAX: u64 = 7;

    /// Largest length it can carry.
    pub(super) const LEN_MAX: u32 = (1 << 24) - 1;

    #[inline(always)]
    fn new(kind: Kind, len: usize, aux: u32) -> Header {
        let kind: u64 = match kind {
            Kind::Send => 1,
            Kind::SendInvalidate => 2,
            Kind::BindRead => 3,
            Kind::BindWrite => 4,
            Kind::Plain => 5,
            Kind::SendBindRead => 6,
            Kind::SendBindWrite => 7,
        };
        Header(len as u64 | kind << 24 | u64::from(aux) << 32)
    }

    /// What follows, `None` when it is nothing that we know.
    #[inline(always)]
    pub(super) fn kind(self) -> Option<Kind> {
        match self.0 >> 24 & 15 {
            1 => Some(Kind::Send),
            2 => Some(Kind::SendInvalidate),
            3 => Some(Kind::BindRead),
            4 => Some(Kind::BindWrite),
            5 => Some(Kind::Plain),
            6 => Some(Kind::SendBindRead),
            7 => Some(Kind::SendBindWrite),
            _ => None,
        }
    }

    /// Whether it is [`Kind::Plain`], as most are.
    #[inline(always)]
    pub(super) fn is_plain(self) -> bool {
        self.0 >> 24 & 15 == 5
    }

    /// Bytes of payload.
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        (self.0 & u64::from(Header::LEN_MAX)) as usize
    }

    /// A handle, credits, or 0, as [`Header::kind`] says.
    #[inline(always)]
    pub(super) fn aux(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Bytes of the batch behind its first line, about.
    #[inline(always)]
    fn more(self) -> u64 {
        (self.0 >> Header::PAIRS_SHIFT & Header::PAIRS_MAX) * 2 * LINE
    }

    #[inline(always)]
    fn is_last(self) -> bool {
        self.0 & Header::LAST != 0
    }
}

/// Bytes that a record takes.
#[inline(always)]
pub(super) const fn record_len(payload_len: usize) -> u64 {
    HEADER_LEN + round_up(payload_len as u64, 8)
}

/// Length of a ring for messages of up to `message_len_max` bytes: a power of two, whole pages.
///
/// Twice the largest message, so that one can be copied in while one is copied out; and what the
/// consumer holds back of its position, a quarter, never keeps the largest message waiting for ever.
pub(super) const fn ring_len(message_len_max: u32, floor: u32) -> u32 {
    let need = (2 * (record_len(message_len_max as usize) + 2 * LINE)) as u32;
    let need = if need > floor { need } else { floor };
    if need > 4096 { need.next_power_of_two() } else { 4096 }
}

/// Producer's half. Positions count bytes since the start, and never wrap in practice (64 bits).
///
/// Invariants: `base` is the start of `2 * len` mapped, writable bytes, the second half a mirror of the first,
/// for as long as the producer lives, and only the producer writes there in this process. `len` is a power of
/// two. `head <= batch <= tail`, and `tail` rounded up to a line, plus a line, is at most `head + len`. `batch`
/// is a multiple of 64, and equals `tail` when no batch is open. `clear` is a multiple of 64 and at most `head +
/// len`; each line that starts behind `tail` and before `clear` starts with a word of 0.
pub(super) struct Producer {
    base: *mut u8,
    len: u64,
    /// Where the next record goes.
    tail: u64,
    /// Where the open batch starts.
    batch: u64,
    /// Up to where lines are known to start with 0.
    clear: u64,
    /// The length at which the open batch leaves.
    leave_len: u64,
    /// The header of the open batch's first record, not yet stored.
    first: Header,
    /// Where the open batch's last record is, and its header.
    last: u64,
    last_header: Header,
    /// How far the consumer was when we last looked.
    head: u64,
}

/// The consumer says that it is where it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadHead;

impl Producer {
    /// A producer at the start of an empty, zeroed ring.
    ///
    /// # Safety
    ///
    /// `base` and `len` satisfy the invariants of the type.
    pub(super) unsafe fn new(base: *mut u8, len: u32) -> Producer {
        debug_assert!(len.is_power_of_two());
        Producer {
            base,
            len: u64::from(len),
            tail: 0,
            batch: 0,
            // The pages are new.
            clear: u64::from(len),
            leave_len: 0,
            first: Header(0),
            last: 0,
            last_header: Header(0),
            head: 0,
        }
    }

    #[inline(always)]
    fn at(&self, position: u64) -> *mut u8 {
        // SAFETY: masked, so within the first half of the mapping (invariant of `base`).
        unsafe { self.base.add((position & (self.len - 1)) as usize) }
    }

    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        debug_assert!(position.is_multiple_of(8));
        // SAFETY: `at` is within the mapping and, as positions of headers are multiples of 8 and the base
        // is page-aligned, aligned; 8 bytes fit before the end of the first half. Every access of either
        // process to a header is atomic, or is ordered by the doorbell and the consumer's head.
        unsafe { AtomicU64::from_ptr(self.at(position).cast()) }
    }

    /// Whether a record of `payload_len` bytes fits now. Looks at the consumer's `head` only when space
    /// seems short. The caller retries later after a `false`.
    #[inline(always)]
    pub(super) fn fits(&mut self, payload_len: usize, head: &AtomicU64) -> Result<bool, BadHead> {
        if self.fits_surely(payload_len) {
            return Ok(true);
        }
        self.refresh(head)?;
        Ok(self.fits_surely(payload_len))
    }

    /// Whether a record fits, by what is known of the consumer: the record, up to the next line, and the line
    /// whose first word `publish` clears.
    #[inline(always)]
    pub(super) fn fits_surely(&self, payload_len: usize) -> bool {
        round_up(self.tail + record_len(payload_len), LINE) + LINE - self.head <= self.len
    }

    #[cold]
    fn refresh(&mut self, head: &AtomicU64) -> Result<(), BadHead> {
        // Acquire: the consumer has finished to read what we are about to overwrite. Pairs with the
        // release in `Consumer::tell`.
        let head = head.get_acquire();
        if head < self.head || head > self.batch {
            return Err(BadHead);
        }
        self.head = head;
        Ok(())
    }

    /// Adds a record to the open batch.
    ///
    /// # Safety
    ///
    /// `source` is readable for `len` bytes, and [`Producer::fits`] was true for `len` since the last push.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, kind: Kind, aux: u32, source: *const u8, len: usize) {
        let header = Header::new(kind, len, aux);
        let at = self.at(self.tail);
        // SAFETY: `fits` proved that the record lies in free space; it starts in the first half and is
        // shorter than the ring, so it ends in the mapping. The consumer does not read there before the
        // doorbell. `at + 8` is a multiple of 8, and room is a multiple of 8.
        unsafe { copy_in(source, at.add(HEADER_LEN as usize), len) };
        self.add(header);
    }

    /// Adds a message to the open batch, in its shortest form.
    ///
    /// # Safety
    ///
    /// As of [`Producer::push`].
    #[inline(always)]
    pub(super) unsafe fn push_message(&mut self, message: *const u8, len: usize) {
        if len >= PLAIN_LOOK_LEN
            // SAFETY: the message is readable for as many bytes.
            && let Some(credits) = plain_wire_credits(unsafe { &*message.cast::<[u8; PLAIN_LOOK_LEN]>() })
        {
            // SAFETY: `PLAIN_LEN` bytes of the message are left out, so what is left is readable, and fits.
            unsafe { self.push(Kind::Plain, credits, message.add(PLAIN_LEN), len - PLAIN_LEN) };
        } else {
            // SAFETY: by contract.
            unsafe { self.push(Kind::Send, 0, message, len) };
        }
    }

    /// The place of the next record's payload, for [`Producer::push_built`].
    ///
    /// # Safety
    ///
    /// [`Producer::fits_surely`] was true for `len` since the last push. The space is used before the next push.
    #[inline(always)]
    pub(super) unsafe fn space<'a>(&mut self, len: usize) -> &'a mut [u8] {
        // The lines in it may be written, also behind the end of what is pushed, or if nothing is pushed at all.
        self.clear = self.clear.min(round_up(self.tail + HEADER_LEN, LINE));
        // SAFETY: free space within the mapping, as `fits_surely` proved, in which only this producer writes, and which the
        // consumer does not read before the doorbell. Nothing refers to it, as the space given before is out of use.
        unsafe { std::slice::from_raw_parts_mut(self.at(self.tail).add(HEADER_LEN as usize), len) }
    }

    /// Adds a record whose payload is the first `len` octets of the [`Producer::space`] given last.
    #[inline(always)]
    pub(super) fn push_built(&mut self, kind: Kind, aux: u32, len: usize) {
        debug_assert!(self.fits_surely(len));
        let header = Header::new(kind, len, aux);
        // No stale byte of a former lap travels on.
        for at in len..round_up(len as u64, 4) as usize {
            // SAFETY: within the record, which ends at a multiple of 8, in free space.
            unsafe { self.at(self.tail).add(HEADER_LEN as usize + at).write_volatile(0) };
        }
        let padded = round_up(len as u64, 4) as usize;
        if !padded.is_multiple_of(8) {
            // SAFETY: as above; 4-aligned.
            unsafe { self.at(self.tail).add(HEADER_LEN as usize + padded).cast::<u32>().write_volatile(0) };
        }
        self.add(header);
    }

    /// Adds the header of a record whose payload is in its place.
    #[inline(always)]
    fn add(&mut self, header: Header) {
        if self.tail == self.batch {
            self.first = header;
        } else {
            self.word(self.tail).set(header.0);
        }
        self.last = self.tail;
        self.last_header = header;
        self.tail += record_len(header.len());
        prefetch_write(self.at(self.tail + 3 * LINE));
    }

    /// Whether the open batch, to which a message was added, should leave before the end of the pass.
    #[inline(always)]
    pub(super) fn is_due(&self) -> bool {
        self.tail - self.batch >= self.leave_len
    }

    /// Whether the open batch should leave, after a record was added that is useless to the consumer by itself.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.tail - self.batch >= BATCH_LEN_MAX
    }

    /// Rings the doorbell within a pass. Later batches of it are longer.
    #[inline(always)]
    pub(super) fn publish_early(&mut self) {
        self.leave_len = (2 * self.leave_len).clamp(BATCH_LEN_MIN, BATCH_LEN_MAX);
        self.leave();
    }

    /// Rings the doorbell at the end of a pass, for the open batch, if there is one.
    #[inline(always)]
    pub(super) fn publish(&mut self) {
        self.leave_len = 0;
        if self.tail != self.batch {
            self.leave_last();
        }
    }

    // Not inline: with one message at a time no batch is open at the end of a pass.
    #[inline(never)]
    fn leave_last(&mut self) {
        self.leave();
    }

    #[inline(always)]
    fn leave(&mut self) {
        let mut first = self.first.0;
        if self.last == self.batch {
            first |= Header::LAST;
        } else {
            self.word(self.last).set(self.last_header.0 | Header::LAST);
        }
        let next = round_up(self.tail, LINE);
        first |= ((next - self.batch) / (2 * LINE)).min(Header::PAIRS_MAX) << Header::PAIRS_SHIFT;
        if self.clear <= next {
            // A batch that is longer than what was cleared ahead.
            order::clear(self.word(next));
            self.clear = next + LINE;
        }
        order::publish(self.word(self.batch), first);
        self.tail = next;
        self.batch = next;
        // Behind the doorbell: these lines are still in the consumer's cache from the last lap, and to get them takes time.
        if self.clear < next + CLEAR_AHEAD {
            self.clear_ahead(next);
        }
    }

    /// Clears the first words of the lines behind `next`, whose own is clear.
    #[inline(always)]
    fn clear_ahead(&mut self, next: u64) {
        let ahead = next + CLEAR_AHEAD;
        let place = next & (self.len - 1);
        if ahead > self.head + self.len || place + CLEAR_AHEAD > self.len {
            return self.clear_to(ahead.min(self.head + self.len));
        }
        let line = self.at(next);
        for at in [LINE, 2 * LINE, 3 * LINE] {
            // SAFETY: within the first half of the mapping, as `place + CLEAR_AHEAD` is at most its length; aligned, as lines
            // are. In free space, as `ahead` is not beyond it, so whether the line was clear already makes no difference.
            order::clear(unsafe { AtomicU64::from_ptr(line.add(at as usize).cast()) });
        }
        self.clear = ahead;
    }

    /// Clears the first words of the lines before `end` that are not known to be clear: where the ring or its free space ends.
    #[cold]
    fn clear_to(&mut self, end: u64) {
        while self.clear < end {
            order::clear(self.word(self.clear));
            self.clear += LINE;
        }
    }
}

/// The header that [`plain_wire_credits`] found, of the message whose Payload stream, of at least 4 octets, is `stream`. `credits`
/// are in the order of the wire.
#[inline(always)]
pub(super) fn plain_header(stream: &[u8], credits: u32) -> [u8; PLAIN_LEN] {
    let mut header = [0; PLAIN_LEN];
    let (words, _) = header.as_chunks_mut();
    words[0] = *stream.first_chunk().expect("it begins with its xid");
    words[1] = PLAIN_VERSION.to_ne_bytes();
    words[2] = credits.to_ne_bytes();
    header
}

/// Consumer's half.
///
/// Invariants: `base` is the start of `2 * len` mapped, readable bytes, the second half a mirror of the
/// first, for as long as the consumer lives. `len` is a power of two. `told <= position`.
pub(super) struct Consumer {
    base: *const u8,
    len: u64,
    /// Where the next record is.
    position: u64,
    /// Whether that record belongs to a batch whose doorbell we saw.
    within: bool,
    /// The position that the producer knows.
    told: u64,
}

/// A message is longer than the Receive for it, or as short as no producer of ours makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadLength;

/// A header that no producer of ours writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Corrupt;

impl Consumer {
    /// A consumer at the start of a ring.
    ///
    /// # Safety
    ///
    /// `base` and `len` satisfy the invariants of the type.
    pub(super) unsafe fn new(base: *const u8, len: u32) -> Consumer {
        debug_assert!(len.is_power_of_two());
        Consumer { base, len: u64::from(len), position: 0, within: false, told: 0 }
    }

    #[inline(always)]
    fn at(&self, position: u64) -> *const u8 {
        // SAFETY: masked, so within the first half of the mapping (invariant of `base`).
        unsafe { self.base.add((position & (self.len - 1)) as usize) }
    }

    /// Where the next header will be: one load of it tells whether there is work. Valid while the mapping is.
    #[inline(always)]
    pub(super) fn doorbell(&self) -> *const AtomicU64 {
        self.at(self.position).cast()
    }

    /// The next record's header.
    #[inline(always)]
    pub(super) fn peek(&self) -> Result<Option<Header>, Corrupt> {
        // SAFETY: mapped (invariant of `base`); aligned, as positions are multiples of 8: records are, and
        // lines are.
        let word = unsafe { AtomicU64::from_ptr(self.doorbell().cast_mut().cast()) };
        match order::observe(word) {
            0 if self.within => Err(Corrupt),
            0 => Ok(None),
            // No record of ours is longer than half a ring; a longer one would leave the mapping.
            header if record_len(Header(header).len()) > self.len / 2 => Err(Corrupt),
            header => {
                // All of the batch at once: one transfer's time rather than one for each line. Not beyond its
                // end, which would take lines from the producer that it is about to write.
                let mut more = Header(header).more();
                while more > 0 {
                    prefetch_read(self.at(self.position + more));
                    prefetch_read(self.at(self.position + more - LINE));
                    more -= 2 * LINE;
                }
                Ok(Some(Header(header)))
            }
        }
    }

    /// Copies the payload of the record that [`Consumer::peek`] returned.
    ///
    /// # Safety
    ///
    /// `header` is what `peek` just returned; `target` is writable for `room >= header.len()` bytes.
    #[inline(always)]
    pub(super) unsafe fn payload(&self, header: Header, target: *mut u8, room: usize) {
        let at = self.at(self.position);
        // SAFETY: `peek` checked that the whole record is at most half a ring, and it starts in the first
        // half, so its padded payload lies in the mapping; it is 8-aligned. The target by contract.
        unsafe { copy_out(at.add(HEADER_LEN as usize), target, header.len(), room) };
    }

    /// Copies `len` octets of the payload of the record that [`Consumer::peek`] returned, from its octet `at` on.
    ///
    /// # Safety
    ///
    /// `header` is what `peek` just returned; `at` is a multiple of 8, and `at + len <= header.len()`; `target` is writable for
    /// `len` bytes.
    pub(super) unsafe fn part(&self, header: Header, at: usize, target: *mut u8, len: usize) {
        debug_assert!(at.is_multiple_of(8) && at + len <= header.len());
        let from = self.at(self.position);
        // SAFETY: as in `payload`: the record lies in the mapping with its padding, and is 8-aligned, as `at` is.
        unsafe { copy_out(from.add(HEADER_LEN as usize + at), target, len, len) };
    }

    /// Copies the message of the record that [`Consumer::peek`] returned, and returns its length.
    ///
    /// # Safety
    ///
    /// `header` is what `peek` just returned, and is of a message; `target` is writable for `room` bytes.
    #[inline(always)]
    pub(super) unsafe fn message(
        &self,
        header: Header,
        target: *mut u8,
        room: usize,
    ) -> Result<usize, BadLength> {
        if header.kind() != Some(Kind::Plain) {
            if header.len() > room {
                return Err(BadLength);
            }
            // SAFETY: by contract; it has the room.
            unsafe { self.payload(header, target, room) };
            return Ok(header.len());
        }
        let len = header.len() + PLAIN_LEN;
        if len > room {
            return Err(BadLength);
        }
        if header.len() < 4 {
            // No producer of ours leaves out the header of such a message: there is no xid.
            return Err(BadLength);
        }
        // SAFETY: by contract; it has the room. What was copied is ours: the peer cannot change it any more.
        unsafe {
            self.payload(header, target.add(PLAIN_LEN), room - PLAIN_LEN);
            let stream = std::slice::from_raw_parts(target.add(PLAIN_LEN), 4);
            let plain = plain_header(stream, header.aux());
            std::ptr::copy_nonoverlapping(plain.as_ptr(), target, PLAIN_LEN);
        }
        Ok(len)
    }

    /// Goes on to the record behind `header`.
    #[inline(always)]
    pub(super) fn advance(&mut self, header: Header) {
        self.position += record_len(header.len());
        self.within = !header.is_last();
        if header.is_last() {
            self.position = round_up(self.position, LINE);
        }
    }

    /// Tells the producer how far we are, through our own `head` word, when a quarter of the ring has
    /// passed since. Returns whether it did.
    #[inline(always)]
    pub(super) fn tell(&mut self, head: &AtomicU64) -> bool {
        if self.position - self.told < self.len / 4 {
            return false;
        }
        // Release: we have read all before it. Pairs with the acquire in `Producer::refresh`.
        head.set_release(self.position);
        self.told = self.position;
        true
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests;
