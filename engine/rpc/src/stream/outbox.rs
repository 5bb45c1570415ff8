//! Outgoing Replies of one byte stream, and Calls to its client: pages that they are written into one after the other, and between
//! them memory that is sent from where it lies.

use std::collections::VecDeque;
use std::io::IoSlice;

use arrayvec::ArrayVec;
use stag_memory::{Buf, Pool, Shared};
use stag_wire::record::{MARK_LEN, Mark};
use stag_wire::xdr::{Overflow, Writer, padding};

use crate::server::draft::{Draft, transit_pages};

/// A page with less room is not begun with: a usual Reply would not fit.
const ROOM_MIN: usize = 640;

/// Octets behind a Reply that are kept for the padding of its spliced result.
pub(super) const PADDING_MAX: usize = 3;

/// Pieces that one system call sends.
pub(super) const SLICES_MAX: usize = 256;

/// Something to send.
#[derive(Debug)]
enum Part {
    /// Octets of a page, by its number.
    Page { page: u32, start: u32, end: u32 },
    /// Memory that is sent from where it lies: a store's, or a long Reply.
    Memory {
        shared: Shared,
        /// Pages for transit that it takes.
        pages: usize,
    },
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Page { start, end, .. } => (end - start) as usize,
            Part::Memory { shared, .. } => shared.len(),
        }
    }
}

/// The Reply does not add up: our service gave other pieces than it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadPieces;

/// Why a record has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutboxFull {
    /// There is no memory for it now.
    NoPage,
    /// It does not fit in a page.
    TooLong,
}

/// What one stream has to send.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Pages that parts are in; the last one may still be written to. Its `len` is what is written.
    pages: VecDeque<Buf>,
    /// Number of the first page.
    first: u32,
    parts: VecDeque<Part>,
    /// Octets of the first part that left already.
    left: usize,
    /// Octets to send.
    queued: usize,
    /// Pages for transit that memory takes which is sent from where it lies.
    memory: usize,
}

impl Outbox {
    /// Octets of heap with `parts` parts, each with a page. The lists double when they are full.
    pub(super) const fn footprint(parts: usize) -> usize {
        parts.next_power_of_two() * (size_of::<Part>() + size_of::<Buf>())
    }

    /// Parts of Replies that wait.
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Octets to send.
    #[inline]
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Pages for transit that it holds.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.pages.len() + self.memory
    }

    /// Takes out the page that the next Reply goes into: with `len` octets of others in front. `None` if there is none.
    pub(super) fn open(&mut self, pool: &Pool) -> Option<Buf> {
        if self.pages.back().is_some_and(|page| page.capacity() - page.len() >= ROOM_MIN) {
            return self.pages.pop_back();
        }
        if pool.transit_free() == 0 {
            return None;
        }
        pool.take()
    }

    /// Puts the page back without a Reply, with `len` octets as before.
    pub(super) fn put_back(&mut self, mut page: Buf, len: usize) {
        if len == 0 {
            return;
        }
        page.set_len(len);
        self.pages.push_back(page);
    }

    /// Puts the page back, with a Reply that begins at `at`.
    pub(super) fn close(&mut self, draft: &mut Draft, at: usize) -> Result<(), BadPieces> {
        let Some(mut page) = draft.send.take() else { return Err(BadPieces) };
        let item = draft.items.first().filter(|item| item.reduced).map(|item| item.len as usize);
        let given: usize = draft.pieces.iter().map(Shared::len).sum();
        if item.unwrap_or(0) != given {
            self.put_back(page, at);
            return Err(BadPieces);
        }
        let pad = item.map_or(0, padding);
        let splice = item.map_or(draft.payload_len, |_| draft.splice as usize);
        let record_len = draft.payload_len + given + pad;
        page[at..at + MARK_LEN].copy_from_slice(&Mark::whole(record_len as u32).to_bytes());
        let start = at + MARK_LEN;
        let number = self.first.wrapping_add(self.pages.len() as u32);
        let on_page =
            |start: usize, end: usize| Part::Page { page: number, start: start as u32, end: end as u32 };
        if !draft.long.is_empty() {
            page[start..start + pad].fill(0);
            page.set_len(start + pad);
            self.pages.push_back(page);
            self.push(on_page(at, start));
            let mut left = splice;
            let mut given = Some(draft.pieces.drain(..));
            for long in draft.long.drain(..) {
                let len = long.len();
                if len <= left || given.is_none() {
                    left -= len.min(left);
                    self.push_memory(long);
                    continue;
                }
                let (front, back) = long.split_at(std::mem::take(&mut left));
                self.push_memory(front);
                given.take().into_iter().flatten().for_each(|piece| self.push_memory(piece));
                self.push(on_page(start, start + pad));
                self.push_memory(back);
            }
            if let Some(given) = given {
                // The result is the last thing in the Reply.
                given.for_each(|piece| self.push_memory(piece));
                self.push(on_page(start, start + pad));
            }
        } else {
            let (cut, end) = (start + splice, start + draft.payload_len);
            if pad > 0 {
                page.copy_within(cut..end, cut + pad);
                page[cut..cut + pad].fill(0);
            }
            page.set_len(end + pad);
            self.pages.push_back(page);
            self.push(on_page(at, cut));
            draft.pieces.drain(..).for_each(|piece| self.push_memory(piece));
            self.push(on_page(cut, end + pad));
        }
        Ok(())
    }

    /// Appends a record of at most `len` octets, which `write` writes.
    pub(super) fn push_record(
        &mut self,
        pool: &Pool,
        len: usize,
        write: impl FnOnce(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<(), OutboxFull> {
        let begin = |page: &Buf| if page.len() == page.capacity() { 0 } else { page.len() };
        let mut page = self.open(pool).ok_or(OutboxFull::NoPage)?;
        if page.capacity() - begin(&page) < MARK_LEN + len && begin(&page) > 0 {
            let at = begin(&page);
            self.put_back(page, at);
            if pool.transit_free() == 0 {
                return Err(OutboxFull::NoPage);
            }
            page = pool.take().ok_or(OutboxFull::NoPage)?;
        }
        let at = begin(&page);
        page.set_len(page.capacity());
        let mut writer = Writer::new(&mut page[at + MARK_LEN..]);
        let written = write(&mut writer).map(|()| writer.position());
        let Ok(len) = written else {
            self.put_back(page, at);
            return Err(OutboxFull::TooLong);
        };
        page[at..at + MARK_LEN].copy_from_slice(&Mark::whole(len as u32).to_bytes());
        let end = at + MARK_LEN + len;
        page.set_len(end);
        let number = self.first.wrapping_add(self.pages.len() as u32);
        self.pages.push_back(page);
        self.push(Part::Page { page: number, start: at as u32, end: end as u32 });
        Ok(())
    }

    fn push_memory(&mut self, shared: Shared) {
        let pages = transit_pages(&shared);
        if !shared.is_empty() {
            self.memory += pages;
        }
        self.push(Part::Memory { shared, pages });
    }

    fn push(&mut self, part: Part) {
        let len = part.len();
        if len == 0 {
            return;
        }
        self.queued += len;
        if let Part::Page { page, start, end } = part
            && let Some(Part::Page { page: last, end: last_end, .. }) = self.parts.back_mut()
            && (*last, *last_end) == (page, start)
        {
            *last_end = end;
            return;
        }
        self.parts.push_back(part);
    }

    /// The next octets to send.
    pub(super) fn slices<'a>(&'a self, slices: &mut ArrayVec<IoSlice<'a>, SLICES_MAX>) {
        let mut skip = self.left;
        for part in self.parts.iter().take(SLICES_MAX) {
            let octets: &[u8] = match part {
                Part::Page { page, start, end } => {
                    &self.pages[page.wrapping_sub(self.first) as usize][*start as usize..*end as usize]
                }
                Part::Memory { shared, .. } => shared,
            };
            slices.push(IoSlice::new(&octets[skip..]));
            skip = 0;
        }
    }

    /// The socket took this number of octets.
    pub(super) fn sent(&mut self, octets: usize) {
        self.queued -= octets;
        let mut octets = octets + self.left;
        self.left = 0;
        while let Some(part) = self.parts.front() {
            let len = part.len();
            if octets < len {
                self.left = octets;
                break;
            }
            octets -= len;
            if let Some(Part::Memory { pages, .. }) = self.parts.pop_front() {
                self.memory -= pages;
            }
        }
        // The number of the first page that is still needed.
        let needed = self.parts.iter().find_map(|part| match part {
            Part::Page { page, .. } => Some(*page),
            _ => None,
        });
        let end = self.first.wrapping_add(self.pages.len() as u32);
        let keep = needed.unwrap_or(if self.parts.is_empty() { end } else { end.wrapping_sub(1) });
        while self.first != keep && self.pages.pop_front().is_some() {
            self.first = self.first.wrapping_add(1);
        }
    }
}
