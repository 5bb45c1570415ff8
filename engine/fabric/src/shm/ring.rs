//! The byte ring of one direction: the producer's half and the consumer's half.
//!
//! ```text
//!   line 0              line 1              line 2              line 3
//!   [H|message........................][H|message|pad           [0|
//!    ^ published last: the doorbell      ^ LAST in this header    ^ cleared before: the next batch
//! ```
//!
//! Records are a header of 8 bytes and a payload padded to 8. A *batch*, all the records between two
//! doorbells, starts on a cache line. Its first header is stored last, with release, and is the doorbell:
//! a message of up to 56 bytes costs the consumer one line transfer, and behind a doorbell several
//! messages share each line. No counter is shared per message: the consumer says how far it is once a
//! quarter of the ring, and the producer looks when space seems short.
//!
//! The ring is mapped twice, back to back, so a record never wraps. The producer owns the pages; the
//! consumer maps them read-only. All that the consumer reads is read once and checked before use.

use std::sync::atomic::AtomicU64;

use super::order::{self, Word};

/// Bytes of a cache line, where batches start.
pub(super) const LINE: u64 = 64;
/// Bytes of a record's header.
pub(super) const HEADER_LEN: u64 = 8;
/// A batch that grows to this length leaves early, so that the consumer need not wait for the end of it.
const BATCH_LEN_MAX: u64 = 1024;
/// Copies up to this length are done in line: a call to memcpy costs more than they do.
const COPY_SMALL_MAX: usize = 256;
/// From this length on the processor's own string copy is as fast as any.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const COPY_STRING_MIN: usize = 2048;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message.
    Send,
    /// A message that invalidates the handle in `aux`.
    SendInvalidate,
    /// The handle in `aux` may be read from now on.
    BindRead,
    /// The handle in `aux` may be written from now on.
    BindWrite,
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
            _ => None,
        }
    }

    /// Bytes of payload.
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        (self.0 & u64::from(Header::LEN_MAX)) as usize
    }

    /// A handle, or 0.
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

/// Rounds up to a multiple of a power of two, without the branch of `next_multiple_of`.
#[inline(always)]
const fn round_up(value: u64, to: u64) -> u64 {
    (value + (to - 1)) & !(to - 1)
}

/// Bytes that a record takes.
#[inline(always)]
const fn record_len(payload_len: usize) -> u64 {
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
/// Invariants: `base` is the start of `2 * len` mapped, writable bytes, the second half a mirror of the
/// first, for as long as the producer lives; nobody else in this process writes there. `len` is a power
/// of two. `head <= batch <= tail`, and `tail` rounded up to a line, plus a line, is at most `head + len`.
/// `batch` is a multiple of 64, and equals `tail` when no batch is open.
pub(super) struct Producer {
    base: *mut u8,
    len: u64,
    /// Where the next record goes.
    tail: u64,
    /// Where the open batch starts.
    batch: u64,
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
        if self.tail == self.batch {
            self.first = header;
        } else {
            self.word(self.tail).set(header.0);
        }
        self.last = self.tail;
        self.last_header = header;
        self.tail += record_len(len);
        prefetch_write(self.at(self.tail + 3 * LINE));
        if self.tail - self.batch >= BATCH_LEN_MAX {
            self.publish();
        }
    }

    /// Rings the doorbell for the open batch, if there is one.
    #[inline(always)]
    pub(super) fn publish(&mut self) {
        if self.tail == self.batch {
            return;
        }
        let mut first = self.first.0;
        if self.last == self.batch {
            first |= Header::LAST;
        } else {
            self.word(self.last).set(self.last_header.0 | Header::LAST);
        }
        let next = round_up(self.tail, LINE);
        first |= ((next - self.batch) / (2 * LINE)).min(Header::PAIRS_MAX) << Header::PAIRS_SHIFT;
        order::publish(self.word(self.batch), self.word(next), first);
        self.tail = next;
        self.batch = next;
        // The lines that the next batch will take are still in the consumer's cache from the last lap. Not the
        // first of them: the consumer looks at it all the time.
        prefetch_write(self.at(next + LINE));
        prefetch_write(self.at(next + 2 * LINE));
    }
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

/// Copies into the ring, and clears the padding: no stale byte of a former lap travels on.
///
/// # Safety
///
/// `source` is readable for `len` bytes, `target` is 8-aligned and writable for `len` rounded up to 8.
#[inline(always)]
unsafe fn copy_in(source: *const u8, target: *mut u8, len: usize) {
    if len > COPY_SMALL_MAX {
        // SAFETY: by contract; the ring and the buffers of arenas are different mappings.
        unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
        return;
    }
    let whole = len & !7;
    let mut at = 0;
    while at + 32 <= whole {
        // SAFETY: `at + 32 <= len`; the target is 8-aligned. Volatile, so that this loop stays a loop, and of
        // four words, so that it is two wide moves.
        unsafe {
            target
                .add(at)
                .cast::<[u64; 4]>()
                .write_volatile(source.add(at).cast::<[u64; 4]>().read_unaligned());
        }
        at += 32;
    }
    while at < whole {
        // SAFETY: `at + 8 <= len`; the target is 8-aligned. Volatile, so that this loop stays a loop.
        unsafe { target.add(at).cast::<u64>().write_volatile(source.add(at).cast::<u64>().read_unaligned()) };
        at += 8;
    }
    let rest = len - whole;
    if rest > 0 {
        let mut last = [0u8; 8];
        // XDR has four bytes here or none. Not a loop over bytes, which would become a call to memcpy.
        if rest & 4 != 0 {
            // SAFETY: `whole + 4 <= len`.
            last[..4].copy_from_slice(&unsafe { source.add(whole).cast::<[u8; 4]>().read() });
        }
        if rest & 2 != 0 {
            let at = rest & 4;
            // SAFETY: `whole + at + 2 <= len`.
            last[at..at + 2].copy_from_slice(&unsafe { source.add(whole + at).cast::<[u8; 2]>().read() });
        }
        if rest & 1 != 0 {
            // SAFETY: `len - 1 < len`.
            last[rest - 1] = unsafe { source.add(len - 1).read() };
        }
        // SAFETY: `whole + 8` is `len` rounded up to 8.
        unsafe { target.add(whole).cast::<u64>().write_volatile(u64::from_ne_bytes(last)) };
    }
}

/// Copies out of the ring. A peer that breaks the rules may write there meanwhile: then the bytes are wrong, and nothing
/// else is. So the source is read once, and by nothing that the compiler believes to stand still: volatile accesses, or
/// instructions that it does not look into.
///
/// # Safety
///
/// `source` is 8-aligned and readable for `len` rounded up to 8; `target` is writable for `room >= len`.
#[inline(always)]
unsafe fn copy_out(source: *const u8, target: *mut u8, len: usize, room: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let (source, target, len, room) = if len > COPY_SMALL_MAX {
        // SAFETY: by contract; what is done is at most `len`, and a multiple of 8 if anything is left.
        unsafe {
            let done = copy_blocks(source, target, len);
            (source.add(done), target.add(done), len - done, room - done)
        }
    } else {
        (source, target, len, room)
    };
    // Whole words when the buffer has room for the padding, as it nearly always has.
    let padded = round_up(len as u64, 8) as usize;
    let words = if room >= padded { padded } else { len & !7 };
    let mut at = 0;
    while at + 32 <= words {
        // SAFETY: `at + 32 <= words`, which is within both; the source is 8-aligned. Volatile: read once,
        // whatever the peer does.
        unsafe {
            target
                .add(at)
                .cast::<[u64; 4]>()
                .write_unaligned(source.add(at).cast::<[u64; 4]>().read_volatile());
        }
        at += 32;
    }
    while at < words {
        // SAFETY: `at + 8 <= words`, which is within both. Volatile: read once, whatever the peer does.
        unsafe { target.add(at).cast::<u64>().write_unaligned(source.add(at).cast::<u64>().read_volatile()) };
        at += 8;
    }
    while at < len {
        // SAFETY: `at < len`.
        unsafe { target.add(at).write(source.add(at).read_volatile()) };
        at += 1;
    }
}

/// Copies whole blocks, by instructions, and returns how many bytes: all, or a multiple of 64. As fast as `memcpy`, which
/// is for memory that stands still.
///
/// # Safety
///
/// `source` is readable and `target` writable for `len >= 64`; they do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_blocks(source: *const u8, target: *mut u8, len: usize) -> usize {
    if len >= COPY_STRING_MIN {
        // SAFETY: by contract; the direction flag is clear, as everywhere in Rust.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") len => _, inout("rsi") source => _, inout("rdi") target => _,
                options(nostack, preserves_flags),
            );
        }
        return len;
    }
    let blocks = len & !63;
    // SAFETY: by contract: `at` goes from 0 to `blocks` in steps of 64, at least once, and stays below `len`.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{source} + {at}]",
            "movups {b}, [{source} + {at} + 16]",
            "movups {c}, [{source} + {at} + 32]",
            "movups {d}, [{source} + {at} + 48]",
            "movups [{target} + {at}], {a}",
            "movups [{target} + {at} + 16], {b}",
            "movups [{target} + {at} + 32], {c}",
            "movups [{target} + {at} + 48], {d}",
            "add {at}, 64",
            "cmp {at}, {blocks}",
            "jb 2b",
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            at = inout(reg) 0usize => _,
            source = in(reg) source, target = in(reg) target, blocks = in(reg) blocks,
            options(nostack),
        );
    }
    blocks
}

/// Asks for a line that will be written.
#[inline(always)]
fn prefetch_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing, writes nothing and never faults, whatever the address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Asks for a line that will be read.
#[inline(always)]
pub(super) fn prefetch_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A ring on the heap. It has no mirror: what crosses the end of the first half stays in the second, where
    /// the consumer of this process finds it.
    struct Ring {
        // Kept for the pointers into it.
        _pages: Vec<u64>,
        head: AtomicU64,
    }

    impl Ring {
        fn new(len: u32) -> (Ring, Producer, Consumer) {
            let mut pages = vec![0; len as usize / 4];
            let base: *mut u8 = pages.as_mut_ptr().cast();
            let ring = Ring { _pages: pages, head: AtomicU64::new(0) };
            // SAFETY: `2 * len` bytes, alive as long as `ring`; both halves in one thread.
            let (producer, consumer) = unsafe { (Producer::new(base, len), Consumer::new(base, len)) };
            (ring, producer, consumer)
        }

        fn send(&self, producer: &mut Producer, message: &[u8]) -> bool {
            if !producer.fits(message.len(), &self.head).unwrap() {
                return false;
            }
            // SAFETY: `fits` was true; `message` is readable.
            unsafe { producer.push(Kind::Send, 0, message.as_ptr(), message.len()) };
            true
        }

        fn receive(&self, consumer: &mut Consumer) -> Option<Vec<u8>> {
            let header = consumer.peek().unwrap()?;
            let mut message = vec![0; header.len()];
            // SAFETY: `header` is what `peek` returned, and `message` has its length.
            unsafe { consumer.payload(header, message.as_mut_ptr(), message.len()) };
            consumer.advance(header);
            consumer.tell(&self.head);
            Some(message)
        }
    }

    #[test]
    fn nothing_is_seen_before_the_doorbell() {
        let (ring, mut producer, mut consumer) = Ring::new(4096);
        assert!(ring.send(&mut producer, b"one"));
        assert!(ring.send(&mut producer, b"two"));
        assert_eq!(ring.receive(&mut consumer), None);
        producer.publish();
        assert_eq!(ring.receive(&mut consumer).as_deref(), Some(&b"one"[..]));
        assert_eq!(ring.receive(&mut consumer).as_deref(), Some(&b"two"[..]));
        assert_eq!(ring.receive(&mut consumer), None);
    }

    #[test]
    fn a_full_ring_takes_no_more_until_the_consumer_moved_on() {
        let (ring, mut producer, mut consumer) = Ring::new(4096);
        let mut sent = 0u64;
        while ring.send(&mut producer, &sent.to_ne_bytes()) {
            producer.publish();
            sent += 1;
        }
        // One line for each batch of one, and one line that stays clear.
        assert_eq!(sent, 4096 / 64 - 1);
        for expected in 0..sent {
            assert_eq!(ring.receive(&mut consumer).unwrap(), expected.to_ne_bytes());
        }
        assert!(ring.send(&mut producer, b"again"));
    }

    #[test]
    fn laps_leave_no_stale_headers() {
        let (ring, mut producer, mut consumer) = Ring::new(4096);
        // Payloads that look like headers of messages of one byte.
        let stale = [1u8, 0, 0, 1, 0, 0, 0, 0].repeat(6);
        for lap in 0..1000usize {
            for message in 0..1 + lap % 5 {
                assert!(ring.send(&mut producer, &stale[..8 * (1 + (lap + message) % 6)]));
            }
            producer.publish();
            for message in 0..1 + lap % 5 {
                assert_eq!(ring.receive(&mut consumer).unwrap().len(), 8 * (1 + (lap + message) % 6));
            }
            assert_eq!(ring.receive(&mut consumer), None, "lap {lap}");
        }
    }

    #[test]
    fn every_length_is_copied_whole_and_nothing_behind_it() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let large =
            (300..700).step_by(if cfg!(miri) { 97 } else { 1 }).chain([1023, 2047, 2048, 2049, 4095, 5000]);
        for len in (0..300).chain(large) {
            for room in len..len + 9 {
                let mut words = [0xeeu8; 5040];
                let mut target = vec![0xddu8; room];
                let source = &bytes[..len];
                let aligned = words.as_mut_ptr().align_offset(8);
                // SAFETY: 8-aligned by `align_offset`, and long enough.
                unsafe {
                    copy_in(source.as_ptr(), words.as_mut_ptr().add(aligned), len);
                    copy_out(words.as_ptr().add(aligned), target.as_mut_ptr(), len, room);
                }
                assert_eq!(&target[..len], source);
                assert!(target[len..].iter().skip(7).all(|&octet| octet == 0xdd), "{len} into {room}");
            }
        }
    }

    #[test]
    fn a_corrupt_header_is_refused() {
        let (ring, _, consumer) = Ring::new(4096);
        let word = |value: u64| {
            // SAFETY: the start of the ring.
            unsafe { AtomicU64::from_ptr(consumer.doorbell().cast_mut().cast()) }.set(value);
        };
        word(Header::new(Kind::Send, 4096, 0).0);
        assert_eq!(consumer.peek(), Err(Corrupt));
        word(0xf << 24);
        assert_eq!(consumer.peek().unwrap().unwrap().kind(), None);
        let _ = ring;
    }

    #[test]
    fn a_consumer_that_claims_to_be_ahead_is_refused() {
        let (ring, mut producer, _) = Ring::new(4096);
        Word::set(&ring.head, 1 << 20);
        while producer.fits(100, &ring.head) == Ok(true) {
            assert!(ring.send(&mut producer, &[0; 100]));
        }
        assert_eq!(producer.fits(100, &ring.head), Err(BadHead));
    }

    #[test]
    fn a_ring_holds_two_messages_of_the_largest_length() {
        assert_eq!(ring_len(1024, 16384), 16384);
        for len in [1, 4096, 262_144, 1 << 20] {
            assert!(u64::from(ring_len(len, 0)) >= 2 * u64::from(len) + 4 * LINE);
        }
    }
}
