//! Results of a COMPOUND while it runs: they outlive a wait, and may have to be kept in a slot.
//!
//! ```text
//! octets   status │ tag │ count │ number, status, fields │ number, status, fields ··· │ ···
//! items                                              data of a READ, text of a READLINK ──┘ beside the octets
//! ```
//!
//! They are copied once into the Send. A recycled buffer allocates nothing.

use stag_memory::{Pool, Shared};
use stag_rpc::{Placement, Reply};
use stag_wire::nfs4::Status4;
use stag_wire::xdr::{Encode, Overflow, UNIT, Writer, padded};

/// Octets of results that most COMPOUNDs have at most.
const USUAL_LEN: usize = 1024;
/// A recycled buffer is not larger.
const RECYCLED_LEN_MAX: usize = 64 << 10;
/// Octets that an RPC reply has before the results of its program: they count as part of it (8881-18.36.3).
pub(super) const REPLY_HEADER_LEN: usize = 24;
/// Octets that an operation has before its fields: number and status.
pub(super) const OPERATION_LEN: usize = 8;

/// DDP-eligible items of one reply that may go by chunk: what a [`Writer`] can leave out. Further ones are inline. More than eight would
/// cost each message of every protocol the places for them, and no client is known that sends more READs in a COMPOUND than one.
pub(super) const ELIGIBLE_RESULTS: u8 = stag_wire::xdr::REDUCED_MAX as u8;

/// An item that is DDP-eligible: it has its place in the octets, where its length word is to stand.
#[derive(Clone, Copy, Debug)]
struct Item {
    at: usize,
    len: u32,
    data: ItemData,
}

#[derive(Clone, Copy, Debug)]
enum ItemData {
    /// Number of the first piece and behind the last.
    Pieces(usize, usize),
    /// Octet of the texts.
    Text(usize),
}

/// Results of a COMPOUND, as far as it came.
#[derive(Debug, Default)]
pub(in crate::server) struct Results {
    /// Initialized for writing; the first `len` are written.
    octets: Vec<u8>,
    len: usize,
    items: Vec<Item>,
    pieces: Vec<Shared>,
    texts: Vec<u8>,
    /// Octets of items with their length words and padding, which are not in `octets`.
    items_len: usize,
    /// Octets of items that go by Write chunk, with their padding.
    reduced_len: usize,
    /// Octets at most, items included: those of the session.
    limit: usize,
    /// Octets at most, without items that go by Write chunk: those of the transport.
    payload_limit: usize,
    /// Octets that each Write chunk has room for, of the first items; and how many there are.
    chunk_rooms: ([u64; ELIGIBLE_RESULTS as usize], usize),
    count_place: usize,
    count: u32,
    status: Status4Word,
    /// They are those of the same request before, and finished.
    is_restored: bool,
    /// Where the operation behind the first one began, and its number.
    second: Option<(OperationMark, u32)>,
    /// Whether an operation ran that must not run twice.
    has_effects: bool,
}

/// The status of the last operation.
#[derive(Clone, Copy, Debug)]
struct Status4Word(Status4);

impl Default for Status4Word {
    fn default() -> Status4Word {
        Status4Word(Status4::Ok)
    }
}

/// Where an operation's results began.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct OperationMark {
    len: usize,
    items: usize,
    pieces: usize,
    texts: usize,
    items_len: usize,
    reduced_len: usize,
}

impl Results {
    /// Begins the results of a COMPOUND with this tag, which go with `reply`. They are empty.
    pub(super) fn begin(&mut self, tag: &[u8], reply: &Reply<'_>) {
        debug_assert!(self.len == 0 && self.count == 0, "it was cleared");
        // What is before the first operation always fits.
        let len = 3 * UNIT + tag.len().next_multiple_of(UNIT);
        if self.octets.len() < len {
            self.grow(len);
        }
        self.octets[..len].fill(0);
        if !tag.is_empty() {
            self.octets[UNIT..2 * UNIT].copy_from_slice(&(tag.len() as u32).to_be_bytes());
            self.octets[2 * UNIT..2 * UNIT + tag.len()].copy_from_slice(tag);
        }
        (self.len, self.count_place) = (len, len - UNIT);
        self.limit = usize::MAX;
        self.payload_limit = reply.payload_room().saturating_sub(REPLY_HEADER_LEN);
        let (rooms, count) = &mut self.chunk_rooms;
        *count = 0;
        while *count < rooms.len()
            && let Some(room) = reply.item_place(*count)
        {
            rooms[*count] = room;
            *count += 1;
        }
    }

    /// Empties it, for the next COMPOUND.
    pub(super) fn clear(&mut self) {
        if self.octets.len() > RECYCLED_LEN_MAX {
            self.octets = Vec::new();
        }
        self.items.clear();
        self.pieces.clear();
        self.texts.clear();
        (self.len, self.count, self.status) = (0, 0, Status4Word::default());
        (self.items_len, self.reduced_len) = (0, 0);
        (self.is_restored, self.has_effects, self.second) = (false, false, None);
    }

    /// Lowers the limit to `limit` octets, what an RPC reply has before them not counted.
    pub(super) fn limit_to(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
    }

    /// Octets of all, items included.
    pub(in crate::server) fn total_len(&self) -> usize {
        self.len + self.items_len
    }

    /// Octets of the heap that they take.
    pub(in crate::server) fn heap_len(&self) -> usize {
        self.octets.capacity() + self.texts.capacity()
    }

    /// Octets that may follow.
    #[inline]
    pub(in crate::server) fn room(&self) -> usize {
        let total = self.total_len();
        self.limit.saturating_sub(total).min(self.payload_limit.saturating_sub(total - self.reduced_len))
    }

    /// Octets that the next DDP-eligible item may have, if `head` octets, its length word included, stand before it. `None`: not
    /// even those fit.
    #[inline]
    pub(in crate::server) fn item_room(&self, head: usize) -> Option<u32> {
        let room = self.room().checked_sub(head)?;
        let (rooms, count) = &self.chunk_rooms;
        let room = match rooms[..*count].get(self.items.len()) {
            Some(chunk) => self.limit.saturating_sub(self.total_len() + head).min(*chunk as usize),
            None => room & !(UNIT - 1),
        };
        Some(u32::try_from(room).unwrap_or(u32::MAX))
    }

    /// Appends what `write` writes. It is run again with more space if it overflows, and must write the same then. On
    /// [`Overflow`] nothing is appended: there is no room.
    pub(in crate::server) fn append(
        &mut self,
        write: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<(), Overflow> {
        let room = self.room();
        loop {
            let space = self.octets.len() - self.len;
            let mut writer = Writer::new(&mut self.octets[self.len..self.len + space.min(room)]);
            if write(&mut writer).is_ok() {
                self.len += writer.position();
                return Ok(());
            }
            if space >= room {
                return Err(Overflow);
            }
            self.grow(2 * self.octets.len());
        }
    }

    /// Lets `write` append at most `most` octets, as often as it likes to [`Writer::rewind`]. What it returns decides: after
    /// an error nothing is appended.
    pub(in crate::server) fn append_within<T, E>(
        &mut self,
        most: usize,
        write: impl FnOnce(&mut Writer<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let most = most.min(self.room());
        if self.octets.len() - self.len < most {
            self.grow(self.len + most);
        }
        let mut writer = Writer::new(&mut self.octets[self.len..self.len + most]);
        let written = write(&mut writer)?;
        self.len += writer.position();
        Ok(written)
    }

    /// Appends a value.
    pub(in crate::server) fn value(&mut self, value: &impl Encode) -> Result<(), Overflow> {
        self.append(|writer| writer.value(value))
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        self.octets.resize(len.max(USUAL_LEN), 0);
    }

    /// Appends a DDP-eligible item of `len` octets that lies in `pieces`, which are drained.
    #[inline]
    pub(in crate::server) fn data(&mut self, len: u32, pieces: &mut Vec<Shared>) -> Result<(), Overflow> {
        let from = self.pieces.len();
        let data = ItemData::Pieces(from, from + pieces.len());
        self.item(len, data)?;
        self.pieces.append(pieces);
        Ok(())
    }

    /// Appends a DDP-eligible item that lies in ordinary memory.
    pub(in crate::server) fn text(&mut self, text: &[u8]) -> Result<(), Overflow> {
        let len = u32::try_from(text.len()).map_err(|_| Overflow)?;
        self.item(len, ItemData::Text(self.texts.len()))?;
        self.texts.extend_from_slice(text);
        Ok(())
    }

    #[inline]
    fn item(&mut self, len: u32, data: ItemData) -> Result<(), Overflow> {
        if self.item_room(UNIT).is_none_or(|room| len > room) {
            return Err(Overflow);
        }
        if self.chunk_rooms.1 > self.items.len() {
            self.reduced_len += padded(len) as usize;
        }
        self.items.push(Item { at: self.len, len, data });
        self.items_len += UNIT + padded(len) as usize;
        Ok(())
    }

    /// Begins an operation's results, as a success.
    #[inline]
    pub(super) fn begin_operation(&mut self, number: u32) -> OperationMark {
        let mark = OperationMark {
            len: self.len,
            items: self.items.len(),
            pieces: self.pieces.len(),
            texts: self.texts.len(),
            items_len: self.items_len,
            reduced_len: self.reduced_len,
        };
        // Even if the limit is reached: that has to be said.
        *self.next() = (u64::from(number) << 32).to_be_bytes();
        if self.count == 1 {
            self.second = Some((mark, number));
        }
        self.len += OPERATION_LEN;
        self.count += 1;
        self.status = Status4Word(Status4::Ok);
        mark
    }

    /// The next octets, which may be beyond the limit.
    #[inline]
    fn next<const LEN: usize>(&mut self) -> &mut [u8; LEN] {
        if self.octets.len() - self.len < LEN {
            self.grow(2 * self.octets.len());
        }
        self.octets[self.len..].first_chunk_mut().unwrap_or_else(|| unreachable!("it has grown"))
    }

    /// Appends a value that is always of `LEN` octets: with one check of the room.
    #[inline]
    pub(super) fn fixed<const LEN: usize>(&mut self, value: &impl Encode) -> Result<(), Overflow> {
        if self.room() < LEN {
            return Err(Overflow);
        }
        let mut writer = Writer::new(self.next::<LEN>());
        writer.value(value)?;
        debug_assert_eq!(writer.position(), LEN, "its length");
        self.len += LEN;
        Ok(())
    }

    /// Makes the operation that began at `mark` a failure, with the fields that it has appended.
    pub(super) fn fail_with_fields(&mut self, mark: OperationMark, status: Status4) {
        let place = mark.len + UNIT..mark.len + OPERATION_LEN;
        self.octets[place].copy_from_slice(&status.number().to_be_bytes());
        self.status = Status4Word(status);
    }

    /// Makes the operation that began at `mark` a failure, without fields.
    pub(super) fn fail(&mut self, mark: OperationMark, status: Status4) {
        self.len = mark.len + OPERATION_LEN;
        self.items.truncate(mark.items);
        self.pieces.truncate(mark.pieces);
        self.texts.truncate(mark.texts);
        (self.items_len, self.reduced_len) = (mark.items_len, mark.reduced_len);
        self.fail_with_fields(mark, status);
    }

    /// Forgets the operation that began at `mark`: it will run again.
    pub(super) fn forget(&mut self, mark: OperationMark) {
        self.fail(mark, Status4::Ok);
        self.len = mark.len;
        self.count -= 1;
    }

    /// Appends a word that always fits, as a failure must be told.
    pub(super) fn word_beyond_limit(&mut self, word: u32) {
        *self.next() = word.to_be_bytes();
        self.len += UNIT;
    }

    /// Sets the status of a COMPOUND without results.
    pub(super) fn set_status(&mut self, status: Status4) {
        self.status = Status4Word(status);
    }

    /// Takes note of an operation that must not run twice.
    pub(super) fn note_effects(&mut self) {
        self.has_effects = true;
    }

    /// Makes them a refusal for now, because there is no memory to send them from: the second operation answers NFS4ERR_DELAY.
    /// `false`: an operation ran that must not run twice, or there is no second one.
    fn refuse_for_now(&mut self) -> bool {
        let Some((mark, number)) = self.second.take().filter(|_| !self.has_effects && !self.is_restored)
        else {
            return false;
        };
        self.fail(mark, Status4::Delay);
        self.count = 2;
        if number == stag_wire::nfs4::operation::Operation4::Setattr.number() {
            self.word_beyond_limit(0);
        }
        self.finish();
        true
    }

    /// Ends them: they can be sent and kept.
    pub(super) fn finish(&mut self) {
        self.octets[..UNIT].copy_from_slice(&self.status.0.number().to_be_bytes());
        self.octets[self.count_place..self.count_place + UNIT].copy_from_slice(&self.count.to_be_bytes());
    }

    /// Hands `keep` all octets, items included, and what tells where those are. [`Results::restore`] takes it.
    pub(super) fn with_kept<R>(&mut self, keep: impl FnOnce(&[u8]) -> R) -> R {
        let flat = self.len;
        let mut kept = std::mem::take(&mut self.octets);
        if self.items.is_empty() {
            // As most that are kept.
            if kept.len() - flat < UNIT {
                kept.resize(flat + UNIT, 0);
            }
            kept[flat..flat + UNIT].fill(0);
            let answer = keep(&kept[..flat + UNIT]);
            self.octets = kept;
            return answer;
        }
        let mut all = Vec::with_capacity(self.total_len() + UNIT * (1 + 2 * self.items.len()));
        let mut from = 0;
        let mut places = Vec::with_capacity(self.items.len());
        for item in &self.items {
            all.extend_from_slice(&kept[from..item.at]);
            from = item.at;
            places.push((all.len() as u32, item.len));
            all.extend_from_slice(&item.len.to_be_bytes());
            let end = all.len() + padded(item.len) as usize;
            match item.data {
                ItemData::Pieces(first, behind) => {
                    self.pieces[first..behind].iter().for_each(|piece| all.extend_from_slice(piece));
                }
                ItemData::Text(at) => all.extend_from_slice(&self.texts[at..at + item.len as usize]),
            }
            all.resize(end, 0);
        }
        all.extend_from_slice(&kept[from..flat]);
        for (at, len) in &places {
            all.extend_from_slice(&at.to_be_bytes());
            all.extend_from_slice(&len.to_be_bytes());
        }
        all.extend_from_slice(&(places.len() as u32).to_be_bytes());
        self.octets = kept;
        keep(&all)
    }

    /// Becomes what [`Results::with_kept`] handed out. They are finished.
    pub(super) fn restore(&mut self, kept: &[u8]) {
        self.clear();
        let word = |at: usize| {
            let octets = kept.get(at..).and_then(<[u8]>::first_chunk);
            octets.map_or(0, |octets| u32::from_be_bytes(*octets)) as usize
        };
        let count = word(kept.len().saturating_sub(UNIT));
        let places = kept.len().saturating_sub(UNIT * (1 + 2 * count));
        self.octets.clear();
        let mut from = 0;
        for index in 0..count {
            let (at, len) = (word(places + 8 * index), word(places + 8 * index + UNIT));
            let data = at + UNIT..at + UNIT + len;
            self.octets.extend_from_slice(&kept[from..at]);
            self.items.push(Item {
                at: self.octets.len(),
                len: len as u32,
                data: ItemData::Text(self.texts.len()),
            });
            self.texts.extend_from_slice(&kept[data.clone()]);
            self.items_len += UNIT + padded(len as u32) as usize;
            from = at + UNIT + padded(len as u32) as usize;
        }
        self.octets.extend_from_slice(&kept[from..places]);
        (self.len, self.is_restored) = (self.octets.len(), true);
    }

    /// Whether they are those that were kept.
    pub(super) fn is_restored(&self) -> bool {
        self.is_restored
    }

    /// Sends them. Text that has to be in registered memory is copied to `pool`. Without memory for them the client is told to
    /// try again, if it may.
    pub(super) fn send(&mut self, reply: &mut Reply<'_>, pool: &Pool) {
        self.send_whole(reply, pool);
        if reply.lacks_memory() && self.refuse_for_now() {
            reply.forget_results();
            self.send_whole(reply, pool);
        }
    }

    fn send_whole(&mut self, reply: &mut Reply<'_>, pool: &Pool) {
        let mut reduced = 0_u32;
        for (index, item) in self.items.iter().enumerate() {
            if reply.item(item.len) == Placement::Inline {
                continue;
            }
            match item.data {
                ItemData::Pieces(first, behind) => {
                    // A retry never comes here: what is kept is text.
                    self.pieces[first..behind].iter().for_each(|piece| reply.piece(piece.clone()));
                }
                ItemData::Text(at) => {
                    let text = &self.texts[at..at + item.len as usize];
                    let Some(mut buf) = pool.take_len(text.len()) else { return reply.system_error() };
                    buf.copy_from_slice(text);
                    reply.piece(buf.share());
                }
            }
            reduced |= 1 << index;
        }
        let this = &*self;
        if this.items.is_empty() {
            let octets = &this.octets[..this.len];
            return reply.success(|writer| writer.opaque_fixed(octets));
        }
        reply.success(|writer| this.write(writer, reduced));
    }

    fn write(&self, writer: &mut Writer<'_>, reduced: u32) -> Result<(), Overflow> {
        let mut from = 0;
        for (index, item) in self.items.iter().enumerate() {
            writer.opaque_fixed(&self.octets[from..item.at])?;
            from = item.at;
            if index < 32 && reduced >> index & 1 != 0 {
                writer.eligible_opaque_reduced(item.len)?;
                continue;
            }
            match item.data {
                ItemData::Pieces(first, behind) => {
                    let pieces = self.pieces[first..behind].iter();
                    writer.opaque_pieces(item.len, pieces.map(|piece| &piece[..]))?;
                }
                ItemData::Text(at) => writer.opaque(&self.texts[at..at + item.len as usize])?,
            }
        }
        writer.opaque_fixed(&self.octets[from..self.len])
    }
}
