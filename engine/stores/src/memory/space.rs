//! The room for data: pages of the pool, counted against a limit, and the zeros that holes are read from.
//!
//! The pages are set aside in the pool ([`Pool::set_aside`]): Calls on their way cannot use them up. A page that a file gives
//! up while a client reads it stays in that account until it is read, so a page may be missing for a moment although the
//! files hold fewer than they may: then the answer is JUKEBOX, and never NOSPC.
//!
//! Files are in memory of this pool alone. Data that another reactor of a group placed, in memory of its own, is copied: kept
//! where it is, it would use up that reactor's memory for Calls on their way.

use std::ops::Range;

use stag_memory::{Buf, Pool, Shared};
use stag_vfs::FsError;

use super::heap::Heap;

/// Bytes of a page: the unit of the pool.
pub(super) const PAGE_LEN: usize = 4096;

/// Bytes of zeros that a hole is read from in one piece.
pub(super) const ZEROS_LEN: usize = 16 * PAGE_LEN;

/// What a store has done with data since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStoreStatistics {
    /// Octets copied into pages: data from messages, unaligned or partly written pages, and what a page that is
    /// still being read held before.
    pub octets_copied: u64,
    /// Pages that a placed buffer became, without a copy. Data that another reactor placed is copied.
    pub pages_placed: u64,
    /// Pages handed out to READs, without a copy.
    pub pages_read: u64,
}

pub(super) struct Space {
    pool: Pool,
    zeros: Shared,
    /// Pages that files hold.
    held: u64,
    /// Pages that files may hold.
    limit: u64,
    /// What describes the files, and all that is no data.
    pub(super) heap: Heap,
    pub(super) statistics: MemoryStoreStatistics,
}

impl Space {
    /// Takes the zeros from `pool`, and sets at most `limit` pages aside; `None` if it has not even one page.
    pub(super) fn new(pool: Pool, limit: u64, heap: Heap) -> Option<Space> {
        let mut zeros = pool.take_len(ZEROS_LEN).or_else(|| pool.take_len(PAGE_LEN))?;
        zeros.fill(0);
        let zeros = zeros.share();
        zeros.mark_stored();
        let zeros_pages = zeros.len() / PAGE_LEN;
        let set_aside =
            pool.set_aside(usize::try_from(limit).unwrap_or(usize::MAX).saturating_add(zeros_pages));
        let limit = set_aside.saturating_sub(zeros_pages) as u64;
        Some(Space { pool, zeros, held: 0, limit, heap, statistics: MemoryStoreStatistics::default() })
    }

    pub(super) fn zeros(&self) -> &Shared {
        &self.zeros
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Pages that can still be written.
    pub(super) fn free(&self) -> u64 {
        self.limit - self.held
    }

    /// Counts `pages` that files no longer hold.
    pub(super) fn release(&mut self, pages: u64) {
        self.held -= pages;
    }

    /// All files are about to be dropped, and none may be stored again.
    pub(super) fn give_up(&mut self) {
        (self.held, self.limit) = (0, 0);
        self.heap = Heap::new(1);
    }

    /// Whether one more page may be stored now.
    fn has_page(&self) -> bool {
        self.pool.stored() < self.pool.stored_max()
    }

    /// Whether a page has memory that nothing else refers to. One that is reserved only has none.
    #[inline]
    fn is_own(page: &Shared) -> bool {
        page.is_unique() && !page.is_empty()
    }

    /// A page of `len` octets to write a copy into.
    fn blank(&self, len: usize) -> Result<Buf, FsError> {
        let mut page = self.pool.take().ok_or(FsError::Busy)?;
        page.set_len(len);
        Ok(page)
    }

    /// Makes a page where there was a hole: octets `from..to` of it are the next of `source`.
    pub(super) fn fill(
        &mut self,
        from: usize,
        to: usize,
        source: &mut Source<'_>,
    ) -> Result<Shared, FsError> {
        if self.held == self.limit {
            return Err(FsError::NoSpace);
        }
        if !self.has_page() {
            return Err(FsError::Busy);
        }
        let page = match source.take_page(from, to, &self.pool) {
            Some(page) => {
                self.statistics.pages_placed += 1;
                page
            }
            None => {
                let mut page = self.blank(to)?;
                page[..from].fill(0);
                source.copy_to(&mut page[from..]);
                self.statistics.octets_copied += (to - from) as u64;
                page.share()
            }
        };
        page.mark_stored();
        self.held += 1;
        Ok(page)
    }

    /// A page without octets, which counts and takes no memory: that is there for it when it is written.
    pub(super) fn reserved(&mut self) -> Result<Shared, FsError> {
        if self.held == self.limit {
            return Err(FsError::NoSpace);
        }
        self.held += 1;
        Ok(self.zeros.slice(..0))
    }

    /// A page that reads as `page` does, but for zeros at these octets. It takes the place of that one.
    pub(super) fn without(&mut self, page: &Shared, octets: Range<usize>) -> Result<Shared, FsError> {
        if octets.end >= page.len() {
            return Ok(page.slice(..octets.start));
        }
        if !page.is_unique() && !self.has_page() {
            return Err(FsError::Busy);
        }
        let mut copy = self.blank(page.len())?;
        copy.copy_from_slice(page);
        copy[octets].fill(0);
        self.statistics.octets_copied += page.len() as u64;
        let copy = copy.share();
        copy.mark_stored();
        Ok(copy)
    }

    /// Puts all of `source`, `len` octets that are no fewer than the page has, in its place, if they lie in one page of the pool. The page
    /// that was there takes the place of that one.
    /// `false`: nothing happened, and [`Space::rewrite`] does it, or says what is missing.
    #[inline]
    pub(super) fn replace(&mut self, page: &mut Shared, len: usize, source: &mut Source<'_>) -> bool {
        if len < page.len() || !(Self::is_own(page) || self.has_page()) {
            return false;
        }
        let Some(placed) = source.take_only(len, &self.pool) else { return false };
        std::mem::swap(page, placed);
        page.mark_stored();
        self.statistics.pages_placed += 1;
        true
    }

    /// Puts the next octets of `source` at `from..to` of a page. A reader of the page goes on reading what it
    /// held.
    pub(super) fn rewrite(
        &mut self,
        page: &mut Shared,
        from: usize,
        to: usize,
        source: &mut Source<'_>,
    ) -> Result<(), FsError> {
        let len = page.len();
        if !Self::is_own(page) && !self.has_page() {
            return Err(FsError::Busy);
        }
        if to >= len
            && let Some(placed) = source.take_page(from, to, &self.pool)
        {
            *page = placed;
            page.mark_stored();
            self.statistics.pages_placed += 1;
            return Ok(());
        }
        let written = (to - from) as u64;
        if to <= len
            && let Some(octets) = page.get_mut()
        {
            source.copy_to(&mut octets[from..to]);
            self.statistics.octets_copied += written;
            return Ok(());
        }
        // It is being read, or it has to become longer, which a `Shared` cannot.
        let mut copy = self.blank(len.max(to))?;
        let kept = from.min(len);
        copy[..kept].copy_from_slice(&page[..kept]);
        copy[kept..from].fill(0);
        source.copy_to(&mut copy[from..to]);
        if to < len {
            copy[to..].copy_from_slice(&page[to..]);
        }
        self.statistics.octets_copied += written + kept as u64 + len.saturating_sub(to) as u64;
        *page = copy.share();
        page.mark_stored();
        Ok(())
    }
}

/// The octets of a WRITE that are not written yet.
pub(super) struct Source<'a> {
    inline: &'a [u8],
    pieces: &'a mut [Shared],
    /// Octets of the first of `pieces` that were taken.
    taken: usize,
}

impl<'a> Source<'a> {
    pub(super) fn inline(octets: &'a [u8]) -> Source<'a> {
        Source { inline: octets, pieces: &mut [], taken: 0 }
    }

    pub(super) fn placed(pieces: &'a mut [Shared]) -> Source<'a> {
        Source { inline: &[], pieces, taken: 0 }
    }

    /// Drops the first pieces that are used up.
    fn settle(&mut self) {
        while self.pieces.first().is_some_and(|first| first.len() == self.taken) {
            self.pieces.split_off_first_mut();
            self.taken = 0;
        }
    }

    /// Takes `to - from` octets as the page they lie in, if they begin both a page of the file and one of `pool`.
    /// Elsewhere they would keep a second page of memory, or one of another reactor.
    fn take_page(&mut self, from: usize, to: usize, pool: &Pool) -> Option<Shared> {
        if from != 0 {
            return None;
        }
        self.settle();
        let first = self.pieces.first()?;
        let end = self.taken + to;
        if end > first.len()
            || !pool.has(first)
            || !(first.location().offset + self.taken as u64).is_multiple_of(PAGE_LEN as u64)
        {
            return None;
        }
        let page = first.slice(self.taken..end);
        self.taken = end;
        Some(page)
    }

    /// Takes all of it, `len` octets, if it is one page of `pool`, or the start of one: whose place it is may be filled anew.
    #[inline]
    fn take_only(&mut self, len: usize, pool: &Pool) -> Option<&mut Shared> {
        let [only] = &mut *self.pieces else { return None };
        let begins_page = only.location().offset.is_multiple_of(PAGE_LEN as u64);
        if self.taken > 0 || only.len() != len || !begins_page || !pool.has(only) {
            return None;
        }
        self.taken = len;
        Some(only)
    }

    /// Copies as many octets as `target` has room for. There must be as many.
    fn copy_to(&mut self, mut target: &mut [u8]) {
        let (now, later) = self.inline.split_at(target.len().min(self.inline.len()));
        target[..now.len()].copy_from_slice(now);
        self.inline = later;
        target = &mut target[now.len()..];
        while !target.is_empty() {
            self.settle();
            let first = &self.pieces[0][self.taken..];
            let len = first.len().min(target.len());
            let (now, later) = target.split_at_mut(len);
            now.copy_from_slice(&first[..len]);
            self.taken += len;
            target = later;
        }
    }
}
