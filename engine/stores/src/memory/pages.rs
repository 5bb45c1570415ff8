//! The data of one file: pages, and holes where none was written.
//!
//! A page that holds fewer than [`PAGE_LEN`] octets reads as if zeros followed, so a file can be cut without
//! memory. One without octets is reserved: space for a WRITE to come. Pages are in chunks of [`CHUNK_PAGES`], and only chunks with pages exist: a file's bookkeeping
//! is proportional to its pages, wherever they are.

use std::mem::size_of;
use std::ops::Range;

use stag_memory::Shared;
use stag_vfs::FsError;

use super::chunks::{Chunk, Chunks};
use super::heap;
use super::space::{PAGE_LEN, Source, Space};

/// Pages of a chunk: 256 KiB of data, 1.5 KiB of bookkeeping.
const CHUNK_PAGES: u64 = 64;
/// Bytes of a chunk.
const CHUNK_LEN: u64 = CHUNK_PAGES * PAGE_LEN as u64;

/// Pages that one step reserves at most. Its caller is then told to try again, and goes on from there.
const RESERVED_MAX: u64 = 256 << 10;

/// Pages that a search for a hole examines at most. Behind them only a chunk that is missing counts as a hole: all data is still
/// told, and some zeros with it.
const EXAMINED_MAX: u64 = 256 << 10;

#[derive(Default)]
pub(super) struct Pages {
    // Invariant: no chunk is without pages.
    chunks: Chunks,
    /// Pages that are not holes.
    count: u64,
}

impl Pages {
    /// Pages that it holds.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Appends the octets `offset..end` to `pieces`, holes as zeros, and returns how many: fewer only if
    /// `pieces` is at its capacity.
    #[inline]
    pub(super) fn read(&self, space: &mut Space, offset: u64, end: u64, pieces: &mut Vec<Shared>) -> u64 {
        if let Some(part) = self.part_of_page(offset, end)
            && pieces.len() < pieces.capacity()
        {
            pieces.push(part);
            space.statistics.pages_read += 1;
            return end - offset;
        }
        self.read_several(space, offset, end, pieces)
    }

    /// The same, of any pages.
    #[inline(never)]
    fn read_several(&self, space: &mut Space, offset: u64, end: u64, pieces: &mut Vec<Shared>) -> u64 {
        let mut reading = Reading { first: pieces.len(), pieces, at: offset, pages: 0 };
        if offset < end {
            // `None`: the capacity is used up.
            let _ = self.read_chunks(space.zeros(), end, &mut reading);
        }
        space.statistics.pages_read += reading.pages;
        reading.at - offset
    }

    /// The octets `offset..end` if they are in one page, as those of most short READs are.
    #[inline]
    fn part_of_page(&self, offset: u64, end: u64) -> Option<Shared> {
        let number = offset / PAGE_LEN as u64;
        if offset >= end || (end - 1) / PAGE_LEN as u64 != number {
            return None;
        }
        let chunk = self.chunks.get(number / CHUNK_PAGES)?;
        let page = chunk.get((number % CHUNK_PAGES) as usize)?.as_ref()?;
        let from = (offset % PAGE_LEN as u64) as usize;
        let to = from + (end - offset) as usize;
        match (from, to) {
            (0, to) if to == page.len() => Some(page.clone()),
            (from, to) if to <= page.len() => Some(page.slice(from..to)),
            _ => None,
        }
    }

    fn read_chunks(&self, zeros: &Shared, end: u64, reading: &mut Reading<'_>) -> Option<()> {
        for (index, chunk) in self.chunks.range(reading.at / CHUNK_LEN..=(end - 1) / CHUNK_LEN) {
            let start = index * CHUNK_LEN;
            reading.zeros(zeros, start)?;
            let first = ((reading.at - start) / PAGE_LEN as u64) as usize;
            let last = ((end - start).min(CHUNK_LEN) - 1) as usize / PAGE_LEN;
            for (index, page) in chunk.iter().enumerate().take(last + 1).skip(first) {
                let Some(page) = page else { continue };
                let start = start + (index * PAGE_LEN) as u64;
                reading.zeros(zeros, start)?;
                let stop = (start + page.len() as u64).min(end);
                if reading.at < stop {
                    let from = (reading.at - start) as usize;
                    let whole = from == 0 && stop - start == page.len() as u64;
                    let part = if whole { page.clone() } else { page.slice(from..(stop - start) as usize) };
                    reading.push(part)?;
                    reading.pages += 1;
                }
            }
        }
        reading.zeros(zeros, end)
    }

    /// Writes `source`, of `len` octets, at `offset`; returns how many were written before space ran out, and why it did
    /// if it was none. `offset + len` does not overflow.
    pub(super) fn write(
        &mut self,
        space: &mut Space,
        offset: u64,
        len: u64,
        source: &mut Source<'_>,
    ) -> Result<u64, FsError> {
        let end = offset + len;
        if self.replace_page(space, offset, len, source) {
            return Ok(len);
        }
        let mut at = offset;
        while at < end {
            let index = at / CHUNK_LEN;
            let start = index * CHUNK_LEN;
            let stop = (end - start).min(CHUNK_LEN) as usize;
            let (from, mut count) = ((at - start) as usize, 0);
            let (written, ended) = match self.chunks.get_mut(index) {
                Some(chunk) => write_chunk(chunk, space, from, stop, source, &mut count),
                None => match self.write_new_chunk(space, index, from..stop, source, &mut count) {
                    Ok(done) => done,
                    Err(status) => (from, Err(status)),
                },
            };
            self.count += count;
            at = start + written as u64;
            if let Err(status) = ended {
                if at == offset {
                    return Err(status);
                }
                break;
            }
        }
        Ok(at - offset)
    }

    /// Replaces a page by the one that holds all of `source`, as most short WRITEs do. `false`: it is another, and nothing happened.
    #[inline]
    fn replace_page(&mut self, space: &mut Space, offset: u64, len: u64, source: &mut Source<'_>) -> bool {
        let number = offset / PAGE_LEN as u64;
        if !offset.is_multiple_of(PAGE_LEN as u64) || len > PAGE_LEN as u64 {
            return false;
        }
        let chunk = self.chunks.get_mut(number / CHUNK_PAGES);
        let page = chunk.and_then(|chunk| chunk.get_mut((number % CHUNK_PAGES) as usize));
        let Some(Some(page)) = page else { return false };
        space.replace(page, len as usize, source)
    }

    /// The same where there is no chunk yet. Fails if there is no heap for one.
    fn write_new_chunk(
        &mut self,
        space: &mut Space,
        index: u64,
        Range { start, end }: Range<usize>,
        source: &mut Source<'_>,
        count: &mut u64,
    ) -> Result<(usize, Result<(), FsError>), FsError> {
        let write = |chunk: &mut Chunk, space: &mut Space, count: &mut u64| {
            write_chunk(chunk, space, start, end, source, count)
        };
        self.add_chunk(space, index, write, count)
    }

    /// Adds the chunk of this number, if `fill` puts pages into it, and counts them.
    fn add_chunk<T>(
        &mut self,
        space: &mut Space,
        index: u64,
        fill: impl FnOnce(&mut Chunk, &mut Space, &mut u64) -> T,
        count: &mut u64,
    ) -> Result<T, FsError> {
        let (tree, larger_tree) = (self.chunks.heap_len(), self.chunks.heap_len_with_more());
        space.heap.require(larger_tree - tree)?;
        let mut chunk = Chunk::new();
        let done = fill(&mut chunk, space, count);
        if *count > 0 {
            self.chunks.insert(index, chunk);
            space.heap.change(tree, self.chunks.heap_len());
        } else {
            space.heap.change(chunk_len(chunk.capacity()), 0);
        }
        Ok(done)
    }

    /// Where the first octet at or behind `offset` is that was written. `None`: there is none.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        // Each chunk has a page, though that may lie before the offset, or be reserved only.
        for (index, chunk) in self.chunks.range(offset / CHUNK_LEN..=u64::MAX / CHUNK_LEN) {
            let start = index * CHUNK_LEN;
            let first = (offset.saturating_sub(start) / PAGE_LEN as u64) as usize;
            let mut pages = chunk.iter().enumerate().skip(first);
            if let Some((page, _)) = pages.find(|(_, page)| has_data(page)) {
                return Some(offset.max(start + (page * PAGE_LEN) as u64));
            }
        }
        None
    }

    /// Where the first octet at or behind `offset` is that was not written.
    pub(super) fn next_hole(&self, offset: u64) -> u64 {
        let (mut at, mut examined) = (offset, 0);
        for (index, chunk) in self.chunks.range(offset / CHUNK_LEN..=u64::MAX / CHUNK_LEN) {
            let start = index * CHUNK_LEN;
            if at < start {
                return at;
            }
            if examined < EXAMINED_MAX {
                let first = ((at - start) / PAGE_LEN as u64) as usize;
                let data = chunk.iter().skip(first).take_while(|page| has_data(page)).count();
                if first + data < CHUNK_PAGES as usize {
                    return at.max(start + ((first + data) * PAGE_LEN) as u64);
                }
                examined += CHUNK_PAGES;
            }
            at = start + CHUNK_LEN;
        }
        at
    }

    /// Reserves a page for each hole in `octets`. If the heap ends between, those stay that it has. [`FsError::Busy`]: it has
    /// reserved [`RESERVED_MAX`], and goes on when it is asked again.
    pub(super) fn reserve(&mut self, space: &mut Space, octets: Range<u64>) -> Result<(), FsError> {
        let page_len = PAGE_LEN as u64;
        let pages = octets.start / page_len..octets.end.div_ceil(page_len);
        if pages.end - pages.start > self.held_in(&pages) + space.free() {
            return Err(FsError::NoSpace);
        }
        let (mut at, mut reserved) = (pages.start, 0);
        while at < pages.end {
            let index = at / CHUNK_PAGES;
            let start = index * CHUNK_PAGES;
            let (from, to) = ((at - start) as usize, (pages.end - start).min(CHUNK_PAGES) as usize);
            let mut count = 0;
            let ended = match self.chunks.get_mut(index) {
                Some(chunk) => reserve_chunk(chunk, space, from..to, &mut count),
                None => self.add_chunk(
                    space,
                    index,
                    |chunk, space, count| reserve_chunk(chunk, space, from..to, count),
                    &mut count,
                )?,
            };
            self.count += count;
            ended?;
            at = start + to as u64;
            reserved += count;
            if reserved >= RESERVED_MAX && at < pages.end {
                return Err(FsError::Busy);
            }
        }
        Ok(())
    }

    /// How many of these pages are no holes.
    fn held_in(&self, pages: &Range<u64>) -> u64 {
        let chunks = self.chunks.range(pages.start / CHUNK_PAGES..=(pages.end - 1) / CHUNK_PAGES);
        let held = chunks.map(|(index, chunk)| {
            let start = index * CHUNK_PAGES;
            let first = pages.start.saturating_sub(start) as usize;
            let last = (pages.end - start).min(CHUNK_PAGES) as usize;
            chunk.iter().take(last).skip(first).flatten().count() as u64
        });
        held.sum()
    }

    /// Makes a hole of `octets`. Fails if a page is missing for the rest of the first or last one, and has done nothing then.
    pub(super) fn release(&mut self, space: &mut Space, octets: Range<u64>) -> Result<(), FsError> {
        let page_len = PAGE_LEN as u64;
        let (first, last) = (octets.start / page_len, (octets.end - 1) / page_len);
        let (from, to) = ((octets.start % page_len) as usize, (octets.end - last * page_len) as usize);
        let mut whole = first + u64::from(from > 0)..last + u64::from(to == PAGE_LEN);
        let mut rests = [None, None];
        if from > 0 {
            let end = if first == last { to } else { PAGE_LEN };
            rests[0] = self.rest(space, first, from..end)?;
        }
        if to < PAGE_LEN && (first < last || from == 0) {
            if self.page(last).is_some_and(|page| !page.is_empty() && page.len() <= to) {
                // The file has no more of this page.
                whole.end = last + 1;
            } else {
                rests[1] = self.rest(space, last, 0..to)?;
            }
        }
        for (number, rest) in [first, last].into_iter().zip(rests) {
            if let Some(rest) = rest
                && let Some(chunk) = self.chunks.get_mut(number / CHUNK_PAGES)
            {
                chunk[(number % CHUNK_PAGES) as usize] = Some(rest);
            }
        }
        if whole.start < whole.end {
            self.remove(space, whole);
        }
        Ok(())
    }

    fn page(&self, number: u64) -> Option<&Shared> {
        self.chunks.get(number / CHUNK_PAGES)?.get((number % CHUNK_PAGES) as usize)?.as_ref()
    }

    /// What is left of a page without these octets; `None`: it has none of them.
    fn rest(&self, space: &mut Space, number: u64, octets: Range<usize>) -> Result<Option<Shared>, FsError> {
        let page = self.page(number).filter(|page| octets.start < page.len());
        page.map(|page| space.without(page, octets)).transpose()
    }

    /// Forgets pages.
    fn remove(&mut self, space: &mut Space, pages: Range<u64>) {
        let tree = self.chunks.heap_len();
        let numbers = pages.start / CHUNK_PAGES..=(pages.end - 1) / CHUNK_PAGES;
        let found: Vec<u64> = self.chunks.range(numbers).map(|(index, _)| index).collect();
        let mut freed = 0;
        for index in found {
            let Some(chunk) = self.chunks.get_mut(index) else { continue };
            let start = index * CHUNK_PAGES;
            let from = (pages.start.saturating_sub(start) as usize).min(chunk.len());
            let to = ((pages.end - start).min(CHUNK_PAGES) as usize).min(chunk.len());
            freed += chunk[from..to.max(from)].iter_mut().filter_map(Option::take).count() as u64;
            let before = chunk_len(chunk.capacity());
            if chunk.iter().all(Option::is_none) {
                self.chunks.remove(index);
                space.heap.change(before, 0);
            }
        }
        space.heap.change(tree, self.chunks.heap_len());
        self.count -= freed;
        space.release(freed);
    }

    /// Forgets what is at `len` and beyond.
    pub(super) fn truncate(&mut self, space: &mut Space, len: u64) {
        let mut freed = 0;
        let index = len / CHUNK_LEN;
        let tree = self.chunks.heap_len();
        for (found, mut chunk) in self.chunks.split_off(index) {
            let mut kept = 0;
            if found == index {
                let len = (len - index * CHUNK_LEN) as usize;
                kept = len.div_ceil(PAGE_LEN).min(chunk.len());
                if let Some(Some(page)) = chunk.get_mut(len / PAGE_LEN)
                    && !len.is_multiple_of(PAGE_LEN)
                    && page.len() > len % PAGE_LEN
                {
                    *page = page.slice(..len % PAGE_LEN);
                }
            }
            freed += chunk.drain(kept..).flatten().count() as u64;
            let before = chunk_len(chunk.capacity());
            let mut after = 0;
            if chunk.iter().any(Option::is_some) {
                chunk.shrink_to_fit();
                after = chunk_len(chunk.capacity());
                self.chunks.insert(found, chunk);
            }
            space.heap.change(before, after);
        }
        space.heap.change(tree, self.chunks.heap_len());
        self.count -= freed;
        space.release(freed);
    }
}

/// Writes `source` at `at..stop` of a chunk, page by page; returns where it ended, and why if that is too early. Adds to
/// `count` the pages that were holes.
fn write_chunk(
    chunk: &mut Chunk,
    space: &mut Space,
    mut at: usize,
    stop: usize,
    source: &mut Source<'_>,
    count: &mut u64,
) -> (usize, Result<(), FsError>) {
    while at < stop {
        let index = at / PAGE_LEN;
        let start = index * PAGE_LEN;
        let (from, to) = (at - start, (stop - start).min(PAGE_LEN));
        if let Some(Some(page)) = chunk.get_mut(index) {
            if let Err(status) = space.rewrite(page, from, to, source) {
                return (at, Err(status));
            }
        } else {
            if let Err(status) = grow(chunk, index + 1, space) {
                return (at, Err(status));
            }
            let page = match space.fill(from, to, source) {
                Ok(page) => page,
                Err(status) => return (at, Err(status)),
            };
            if chunk.len() <= index {
                chunk.resize_with(index + 1, || None);
            }
            chunk[index] = Some(page);
            *count += 1;
        }
        at = start + to;
    }
    (at, Ok(()))
}

/// Whether a page was written, and not only reserved.
fn has_data(page: &Option<Shared>) -> bool {
    page.as_ref().is_some_and(|page| !page.is_empty())
}

/// Reserves these pages of a chunk, as far as they are holes, and counts them.
fn reserve_chunk(
    chunk: &mut Chunk,
    space: &mut Space,
    pages: Range<usize>,
    count: &mut u64,
) -> Result<(), FsError> {
    grow(chunk, pages.end, space)?;
    if chunk.len() < pages.end {
        chunk.resize_with(pages.end, || None);
    }
    for page in chunk[pages].iter_mut().filter(|page| page.is_none()) {
        *page = Some(space.reserved()?);
        *count += 1;
    }
    Ok(())
}

/// Makes room for `pages` in a chunk.
fn grow(chunk: &mut Chunk, pages: usize, space: &mut Space) -> Result<(), FsError> {
    let before = chunk_len(chunk.capacity());
    if pages > chunk.capacity() {
        let capacity = pages.next_power_of_two().min(CHUNK_PAGES as usize);
        space.heap.require(chunk_len(capacity).saturating_sub(before))?;
        chunk.reserve_exact(capacity - chunk.len());
        space.heap.change(before, chunk_len(chunk.capacity()));
    }
    Ok(())
}

/// What a chunk takes of the heap.
fn chunk_len(capacity: usize) -> u64 {
    heap::allocation((capacity * size_of::<Option<Shared>>()) as u64)
}

/// Collects the pieces of a READ.
struct Reading<'a> {
    pieces: &'a mut Vec<Shared>,
    /// The first of `pieces` that is ours: earlier pieces are not joined to.
    first: usize,
    /// How far in the file it is.
    at: u64,
    pages: u64,
}

impl Reading<'_> {
    /// Appends a piece, to the last one if it follows it in memory too. `None`: there is no room.
    #[inline]
    fn push(&mut self, piece: Shared) -> Option<()> {
        let len = piece.len() as u64;
        let piece = match self.pieces[self.first..].last_mut() {
            Some(last) => last.try_join(piece).err(),
            None => Some(piece),
        };
        if let Some(piece) = piece {
            if self.pieces.len() == self.pieces.capacity() {
                return None;
            }
            self.pieces.push(piece);
        }
        self.at += len;
        Some(())
    }

    /// Appends zeros up to `end`; nothing if that is behind.
    #[inline]
    fn zeros(&mut self, zeros: &Shared, end: u64) -> Option<()> {
        while self.at < end {
            let len = (end - self.at).min(zeros.len() as u64) as usize;
            self.push(zeros.slice(..len))?;
        }
        Some(())
    }
}
