//! One record on its way in: put together in payload memory, a large eligible argument apart from the rest.
//!
//! ```text
//!  record   mark  RPC header, arguments, length  data of a WRITE ............  padding, more arguments
//!                 └──────── head ─────────────┘  └─ item: payload buffers ─┘           └──── head ───┘
//! ```
//!
//! The item's data lie in payload buffers from their start, as an RDMA Read would have placed them: a store may
//! keep them. Most of them are received right there ([`Incoming::targets`]).

use std::io::IoSliceMut;
use std::time::Duration;

use arrayvec::ArrayVec;
use stag_memory::{Buf, Pool};
use stag_wire::record::Splitter;
use stag_wire::rpc::{CallHeader, Error as RpcError};
use stag_wire::xdr::{Error, Reader, padded};

use super::quota::Quota;
use crate::call::{PIECES_MAX, Placed};
use crate::pools::PAGE_LEN;
use crate::service::{Lookup, Services};

/// Octets of an item from which on it is received where it belongs rather than copied there.
const DIRECT_MIN: u32 = 2048;

/// Octets of a record from which on it is worth looking for its item: shorter ones fit a page.
const ITEM_RECORD_MIN: u32 = PAGE_LEN as u32;

/// Buffers that one receive fills: the item's and one more.
pub(super) const TARGETS_MAX: usize = PIECES_MAX + 1;

/// The data of an eligible argument.
#[derive(Debug)]
pub(super) struct Item {
    /// Where in the record they begin.
    pub(super) position: u32,
    /// Octets, without padding.
    pub(super) len: u32,
    /// Octets that are here, or were dropped because there is no memory for them, padding among them.
    filled: u32,
    pub(super) placed: Placed,
    /// Octets of memory that it holds.
    held: usize,
}

impl Item {
    /// Octets to come, with padding.
    fn wanted(&self) -> u32 {
        padded(self.len) as u32 - self.filled
    }

    /// Whether all of it is here.
    pub(super) fn is_complete(&self) -> bool {
        self.wanted() == 0
    }

    /// Takes the next octets, and returns those that follow the item.
    fn fill<'a>(&mut self, octets: &'a [u8]) -> &'a [u8] {
        let (own, rest) = octets.split_at(octets.len().min(self.wanted() as usize));
        let data = own.len().min((self.len.saturating_sub(self.filled)) as usize);
        let (mut data, mut skip) = (&own[..data], self.filled as usize);
        for piece in &mut self.placed.pieces {
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let count = data.len().min(piece.len() - skip);
            let (now, later) = data.split_at(count);
            piece[skip..skip + count].copy_from_slice(now);
            (data, skip) = (later, 0);
            if data.is_empty() {
                break;
            }
        }
        self.filled += own.len() as u32;
        rest
    }
}

/// What looking for the item said.
enum Located {
    /// Its data begin there, and have so many octets.
    At(u32, u32),
    /// There is none to place.
    Nowhere,
    /// More of the record has to be here.
    Unknown,
}

/// There is no memory to take more octets: go on when some of it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short;

/// The record that arrives now.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) splitter: Splitter,
    record_len_max: u32,
    /// The record's octets so far, without the item's.
    pub(super) head: Option<Buf>,
    pub(super) item: Option<Item>,
    /// The item is known, and waits for memory.
    wanted: Option<(u32, u32)>,
    /// Whether the item was looked for with success, or there is none.
    located: bool,
    /// When the first octet came.
    pub(super) started: Option<Duration>,
}

impl Incoming {
    pub(super) fn new(record_len_max: u32) -> Incoming {
        Incoming {
            splitter: Splitter::new(record_len_max),
            record_len_max,
            head: None,
            item: None,
            wanted: None,
            located: false,
            started: None,
        }
    }

    /// Takes the record's next octets, and returns how many: fewer than all only when [`Short`].
    pub(super) fn take<S: Services>(
        &mut self,
        pool: &Pool,
        quota: &mut Quota,
        services: &S,
        octets: &[u8],
    ) -> (usize, Result<(), Short>) {
        let mut rest = octets;
        let result = self.take_some(pool, quota, services, &mut rest);
        (octets.len() - rest.len(), result)
    }

    fn take_some<S: Services>(
        &mut self,
        pool: &Pool,
        quota: &mut Quota,
        services: &S,
        rest: &mut &[u8],
    ) -> Result<(), Short> {
        loop {
            self.place(pool, quota)?;
            if let Some(item) = &mut self.item {
                *rest = item.fill(rest);
            }
            if rest.is_empty() {
                return Ok(());
            }
            let head = match &mut self.head {
                Some(head) => head,
                None => self.head.insert(quota.take(pool, PAGE_LEN).ok_or(Short)?),
            };
            let len = head.len();
            if len == head.capacity() {
                self.grow(pool, quota)?;
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(head.capacity() - len));
            head.set_len(len + now.len());
            head[len..].copy_from_slice(now);
            *rest = later;
            if !self.located && self.splitter.record_len().is_none_or(|len| len > ITEM_RECORD_MIN) {
                self.locate(services);
            }
        }
    }

    /// Looks for the item in what is here of the record.
    fn locate<S: Services>(&mut self, services: &S) {
        let Some(head) = &self.head else { return };
        match locate(services, head) {
            Located::Unknown => {}
            Located::Nowhere => self.located = true,
            Located::At(position, len) => {
                self.located = true;
                let end = u64::from(position) + padded(len);
                let limit = self.splitter.record_len().unwrap_or(self.record_len_max);
                // Otherwise it lies: its decoder will say so.
                if len > 0 && end <= u64::from(limit) {
                    self.wanted = Some((position, len));
                }
            }
        }
    }

    /// Takes memory for the item that was found, and moves there what is here of it.
    fn place(&mut self, pool: &Pool, quota: &mut Quota) -> Result<(), Short> {
        let Some((position, len)) = self.wanted else { return Ok(()) };
        let units = (len as usize).next_multiple_of(PAGE_LEN);
        if !quota.has(units) {
            return Err(Short);
        }
        self.wanted = None;
        let mut placed = Placed { pieces: ArrayVec::new(), len };
        // Without memory the data are dropped, and the handler sees that they are missing.
        let _ = match pool.take_len(len as usize) {
            Some(buf) => placed.pieces.try_push(buf).is_ok(),
            None => pool.take_pieces(len as usize, &mut placed.pieces, PIECES_MAX),
        };
        let held = placed.pieces.iter().map(Buf::capacity).sum();
        quota.hold(held);
        let mut item = Item { position, len, filled: 0, placed, held };
        if let Some(head) = &mut self.head {
            let rest = item.fill(&head[position as usize..]).len();
            // What follows the item, if so much is here already, moves to its place.
            let end = head.len();
            head.copy_within(end - rest.., position as usize);
            head.set_len(position as usize + rest);
        }
        self.item = Some(item);
        Ok(())
    }

    /// Makes room for more of a record that has to be in one piece.
    #[cold]
    fn grow(&mut self, pool: &Pool, quota: &mut Quota) -> Result<(), Short> {
        let Some(old) = self.head.take() else { return Ok(()) };
        let known = self.splitter.record_len().map_or(0, |len| len as usize);
        let len = known.max(old.capacity() * 2).min((self.record_len_max as usize).max(old.capacity() + 1));
        let new = if quota.has(len) { quota.take(pool, len) } else { None };
        let Some(mut new) = new else {
            self.head = Some(old);
            return Err(Short);
        };
        new.set_len(old.len());
        new.copy_from_slice(&old);
        quota.give(old);
        self.head = Some(new);
        Ok(())
    }

    /// Octets that are best received right where they belong: the rest of an item.
    pub(super) fn direct(&self) -> u32 {
        let Some(item) = self.item.as_ref().filter(|item| !item.placed.pieces.is_empty()) else { return 0 };
        let len = item.len.saturating_sub(item.filled).min(self.splitter.expected());
        if len < DIRECT_MIN { 0 } else { len }
    }

    /// Where to receive the next [`Incoming::direct`] octets.
    pub(super) fn targets<'a>(&'a mut self, slices: &mut ArrayVec<IoSliceMut<'a>, TARGETS_MAX>) {
        let mut left = self.direct() as usize;
        let Some(item) = self.item.as_mut().filter(|_| left > 0) else { return };
        let mut skip = item.filled as usize;
        for piece in &mut item.placed.pieces {
            let len = piece.len();
            if skip < len && left > 0 {
                let count = left.min(len - skip);
                slices.push(IoSliceMut::new(&mut piece[skip..skip + count]));
                left -= count;
            }
            skip = skip.saturating_sub(len);
        }
    }

    /// So many octets were received in [`Incoming::targets`].
    pub(super) fn received(&mut self, octets: u32) {
        if let Some(item) = &mut self.item {
            item.filled += octets;
            self.splitter.advance(octets);
        }
    }

    /// Whether what was found of the record waits for memory.
    pub(super) fn is_waiting(&self) -> bool {
        self.wanted.is_some()
    }

    /// Lets go of the record: it was executed, or its connection is over.
    pub(super) fn clear(&mut self, quota: &mut Quota) {
        if let Some(head) = self.head.take() {
            quota.give(head);
        }
        if let Some(item) = self.item.take() {
            quota.release(item.held);
        }
        self.wanted = None;
        self.located = false;
        self.started = None;
    }
}

fn locate<S: Services>(services: &S, head: &[u8]) -> Located {
    let mut reader = Reader::new(head);
    let header = match CallHeader::parse(&mut reader) {
        Ok(header) => header,
        Err(RpcError::Garbage { cause: Error::Truncated, .. }) => return Located::Unknown,
        Err(RpcError::Drop) if head.len() < 8 => return Located::Unknown,
        Err(_) => return Located::Nowhere,
    };
    let Lookup::Found { procedure, .. } = services.lookup(header.program, header.version, header.procedure)
    else {
        return Located::Nowhere;
    };
    let Some(find) = procedure.locate.filter(|_| procedure.eligible_arguments == 1) else {
        return Located::Nowhere;
    };
    match find(&mut reader) {
        Ok(len) => Located::At(reader.position() as u32, len),
        Err(Error::Truncated) => Located::Unknown,
        Err(_) => Located::Nowhere,
    }
}
