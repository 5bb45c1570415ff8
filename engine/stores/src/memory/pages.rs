//! The data of one file: pages, and holes where none was written.
//!
//! A page that holds fewer than [`PAGE_LEN`] octets reads as if zeros followed, so a file can be cut without
//! memory. Pages are in chunks of [`CHUNK_PAGES`], and only chunks with pages exist: a file's bookkeeping
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
    pub(super) fn read(&self, space: &mut Space, offset: u64, end: u64, pieces: &mut Vec<Shared>) -> u64 {
        if let Some(part) = self.part_of_page(offset, end)
            && pieces.len() < pieces.capacity()
        {
            pieces.push(part);
            space.statistics.pages_read += 1;
            return end - offset;
        }
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
        let (tree, larger_tree) = (self.chunks.heap_len(), self.chunks.heap_len_with_more());
        space.heap.require(larger_tree - tree)?;
        let mut chunk = Chunk::new();
        let done = write_chunk(&mut chunk, space, start, end, source, count);
        if *count > 0 {
            self.chunks.insert(index, chunk);
            space.heap.change(tree, self.chunks.heap_len());
        } else {
            space.heap.change(chunk_len(chunk.capacity()), 0);
        }
        Ok(done)
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
