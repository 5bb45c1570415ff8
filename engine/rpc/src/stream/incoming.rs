//! One record on its way in: put together in payload memory, a large eligible argument apart from the rest.
//!
//! ```text
//!  record   mark  RPC header, arguments, length  data of a WRITE ............  padding, more arguments
//!                 └──────── head ─────────────┘  └─ item: payload buffers ─┘           └──── head ───┘
//! ```
//!
//! The item's data lie in payload buffers from their start, as an RDMA Read would have placed them: a store may keep
//! them. Most of them are received right there ([`Incoming::targets`]). A peer whose last item is not complete yet gets a
//! few pages first, and as many more each time these are full ([`crate::server::transit`]).

use std::io::IoSliceMut;
use std::time::Duration;

use smallvec::SmallVec;
use stag_memory::Buf;
use stag_wire::record::Splitter;
use stag_wire::rpc::{CallHeader, RpcError};
use stag_wire::xdr::{Reader, XdrError, padded};

use super::quota::Means;
use crate::pools::PAGE_LEN;
use crate::security::Claim;
use crate::server::transit;
use crate::service::call::{Placed, PlacedPieces};
use crate::service::{Lookup, Services};

/// Octets of an item from which on it is received where it belongs rather than copied there.
const DIRECT_MIN: u32 = 2048;

/// Octets of a record from which on it is worth looking for its item: shorter ones fit a page.
const ITEM_RECORD_MIN: u32 = PAGE_LEN as u32;

/// Buffers that one receive usually fills: the item's and one more.
const TARGETS_USUAL: usize = 17;

/// What one receive fills.
pub(super) type Targets<'a> = SmallVec<[IoSliceMut<'a>; TARGETS_USUAL]>;

/// How long a record waits for memory. Then an item is dropped, and its client is told to retry.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long one without an item does, which cannot be told so: then its connection ends.
pub(super) const PATIENCE_LONG: Duration = Duration::from_secs(20);

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
    /// Octets that there is memory for, or that are dropped.
    room: u32,
    /// Pages of memory that it holds.
    held: usize,
}

impl Item {
    /// Octets to come that can be taken, with padding.
    fn wanted(&self) -> u32 {
        let end = if self.room == self.len { padded(self.len) as u32 } else { self.room };
        end - self.filled
    }

    /// Whether more can only be taken when there is memory for the rest.
    fn is_short(&self) -> bool {
        self.room < self.len && self.filled == self.room
    }

    /// Whether all of it is here.
    pub(super) fn is_complete(&self) -> bool {
        self.room == self.len && self.wanted() == 0
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
    /// Its data begin at this octet, and have this length.
    At(u32, u32),
    /// There is none to place.
    Nowhere,
    /// More of the record has to be here.
    Unknown,
}

/// There is no memory to take more octets: go on when some of it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short {
    /// Whose memory it has to be, by the place of an account; `None`: anybody's.
    pub(super) owner: Option<u32>,
}

/// The record that arrives now.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) splitter: Splitter,
    record_len_max: u32,
    /// The record's octets so far, without the item's.
    pub(super) head: Vec<Buf>,
    pub(super) item: Option<Item>,
    /// The item is known, and waits for memory.
    wanted: Option<(u32, u32)>,
    /// Whether the item was looked for with success, or there is none.
    located: bool,
    /// When the first octet came.
    pub(super) started: Option<Duration>,
    /// Since when it waits for memory, and for whose.
    pub(super) waits: Option<(Duration, Short)>,
    /// Since when a record waits for memory that has to be in one piece, and cannot be dropped.
    pub(super) starved: Option<Duration>,
    /// The last item came, and since then the peer was not silent within one.
    pub(super) is_trusted: bool,
}

impl Incoming {
    pub(super) fn new(record_len_max: u32) -> Incoming {
        Incoming {
            splitter: Splitter::new(record_len_max),
            record_len_max,
            head: Vec::new(),
            item: None,
            wanted: None,
            located: false,
            started: None,
            waits: None,
            starved: None,
            is_trusted: false,
        }
    }

    /// Takes the record's next octets, and returns how many: fewer than all only when [`Short`].
    pub(super) fn take<S: Services>(
        &mut self,
        means: &mut Means<'_>,
        services: &S,
        octets: &[u8],
    ) -> (usize, Result<(), Short>) {
        let mut rest = octets;
        let result = self.take_some(means, services, &mut rest);
        match result {
            Ok(()) => self.waits = None,
            Err(short) => {
                let since = self.waits.map_or(means.now, |(since, _)| since);
                self.waits = Some((since, short));
            }
        }
        (octets.len() - rest.len(), result)
    }

    fn take_some<S: Services>(
        &mut self,
        means: &mut Means<'_>,
        services: &S,
        rest: &mut &[u8],
    ) -> Result<(), Short> {
        loop {
            self.place(means)?;
            if let Some(item) = &mut self.item {
                *rest = item.fill(rest);
                if item.is_short() {
                    continue;
                }
            }
            if rest.is_empty() {
                return Ok(());
            }
            if self.head.last().is_none_or(|page| page.len() == page.capacity()) {
                let is_first = self.head.is_empty();
                // An item begins in the first page, or nowhere.
                self.located |= !is_first;
                let page = match if is_first { means.take_first() } else { means.take() } {
                    Ok(page) => page,
                    Err(short) => {
                        self.starved.get_or_insert(means.now);
                        return Err(short);
                    }
                };
                self.head.push(page);
            }
            let Some(page) = self.head.last_mut() else {
                debug_assert!(false, "a page was just taken");
                return Err(Short { owner: None });
            };
            let len = page.len();
            let (now, later) = rest.split_at(rest.len().min(page.capacity() - len));
            page.set_len(len + now.len());
            page[len..].copy_from_slice(now);
            *rest = later;
            if !self.located && self.splitter.record_len().is_none_or(|len| len > ITEM_RECORD_MIN) {
                self.locate(services);
            }
        }
    }

    /// Looks for the item in what is here of the record.
    fn locate<S: Services>(&mut self, services: &S) {
        let Some(head) = self.head.first() else { return };
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

    /// Takes memory for the item that was found, or for the rest of it, and moves there what is here of it.
    fn place(&mut self, means: &mut Means<'_>) -> Result<(), Short> {
        if let Some(item) = self.item.as_mut().filter(|item| item.is_short()) {
            // As much again as came, while there is plenty; else all the rest, so that two never wait for each other.
            let rest = item.len - item.room;
            let octets = if means.quota.is_scarce() { rest } else { rest.min(item.room) };
            return Self::grant(means, item, octets, self.waits.map(|(since, _)| since));
        }
        let Some((position, len)) = self.wanted else { return Ok(()) };
        let placed = Placed { pieces: PlacedPieces::new(), len };
        let mut item = Item { position, len, filled: 0, placed, room: 0, held: 0 };
        let probe = transit::probe_len(means.pool, means.streams_max) * means.pool.unit_len();
        let is_trusted = self.is_trusted && !means.quota.is_scarce();
        let octets = if is_trusted { len } else { len.min(probe as u32) };
        Self::grant(means, &mut item, octets, self.waits.map(|(since, _)| since))?;
        self.wanted = None;
        let Some(head) = self.head.first_mut() else {
            debug_assert!(false, "an item was found, and the page that it was found in is gone");
            return Err(Short { owner: None });
        };
        let left = item.fill(&head[position as usize..]).len();
        // What follows the item, if so much is here already, moves to its place.
        let end = head.len();
        head.copy_within(end - left.., position as usize);
        head.set_len(position as usize + left);
        self.item = Some(item);
        Ok(())
    }

    /// Gives an item memory for `octets` more, all or nothing. After too long a wait it is dropped instead, and its
    /// handler sees that it is missing.
    fn grant(
        means: &mut Means<'_>,
        item: &mut Item,
        octets: u32,
        waits: Option<Duration>,
    ) -> Result<(), Short> {
        let pages = transit::pages(means.pool, octets as usize);
        let short = match means.check(pages) {
            Ok(()) if means.pool.take_pieces(octets as usize, &mut item.placed.pieces) => {
                means.hold(pages);
                item.held += pages;
                item.room += octets;
                return Ok(());
            }
            Ok(()) => Short { owner: None },
            Err(short) => short,
        };
        if waits.is_none_or(|since| means.now < since + PATIENCE) {
            return Err(short);
        }
        means.give(std::mem::take(&mut item.held));
        item.placed.pieces.clear();
        item.room = item.len;
        Ok(())
    }

    /// Lets go of the memory of the item that nothing came for yet.
    pub(super) fn vacate(&mut self, means: &mut Means<'_>) {
        let Some(item) = self.item.as_mut() else { return };
        let unit = means.pool.unit_len();
        let keep = (item.filled as usize).next_multiple_of(unit).max(unit);
        if item.placed.pieces.is_empty() || keep >= item.room as usize {
            return;
        }
        let mut room = 0;
        item.placed.pieces.retain(|piece| {
            let left = keep - room;
            if piece.len() > left && left > 0 {
                piece.shrink_to(left);
            }
            room += piece.len().min(left);
            left > 0
        });
        item.room = room as u32;
        let held = room / unit;
        means.give(item.held - held);
        item.held = held;
    }

    /// Octets that are best received right where they belong: the rest of an item.
    pub(super) fn direct(&self) -> u32 {
        let Some(item) = self.item.as_ref().filter(|item| !item.placed.pieces.is_empty()) else { return 0 };
        let len = item.room.saturating_sub(item.filled).min(self.splitter.expected());
        if len < DIRECT_MIN { 0 } else { len }
    }

    /// Where to receive the next [`Incoming::direct`] octets.
    pub(super) fn targets<'a>(&'a mut self, slices: &mut Targets<'a>) {
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

    /// This number of octets was received in [`Incoming::targets`].
    pub(super) fn received(&mut self, octets: u32) {
        if let Some(item) = &mut self.item {
            item.filled += octets;
            self.splitter.advance(octets);
        }
    }

    /// Between two records: lets the next begin, or wait. `false`: it waits.
    pub(super) fn try_begin(&mut self, means: &Means<'_>) -> bool {
        if self.started.is_some() {
            return true;
        }
        self.waits = match means.check_first() {
            Ok(()) => None,
            Err(short) => Some((self.waits.map_or(means.now, |(since, _)| since), short)),
        };
        self.waits.is_none()
    }

    /// Whether what was found of the record waits for memory.
    pub(super) fn is_waiting(&self) -> bool {
        self.wanted.is_some() || self.item.as_ref().is_some_and(Item::is_short)
    }

    /// Octets of memory that it holds.
    pub(super) fn held(&self) -> usize {
        self.item.as_ref().map_or(0, |item| item.held * PAGE_LEN)
            + self.head.iter().map(Buf::capacity).sum::<usize>()
    }

    /// Octets of the record that came.
    pub(super) fn came(&self) -> usize {
        self.item.as_ref().map_or(0, |item| item.filled as usize)
            + self.head.iter().map(|page| page.len()).sum::<usize>()
    }

    /// Lets go of the record: it was executed, or its connection is over.
    pub(super) fn clear(&mut self, means: &mut Means<'_>) {
        if !self.head.is_empty() {
            means.give_first();
        }
        means.give(self.head.len());
        self.head.clear();
        if let Some(item) = self.item.take() {
            self.is_trusted |= item.is_complete() && item.held > 0;
            means.give(item.held);
        }
        self.wanted = None;
        self.located = false;
        self.started = None;
        self.waits = None;
        self.starved = None;
    }
}

fn locate<S: Services>(services: &S, head: &[u8]) -> Located {
    let mut reader = Reader::new(head);
    let header = match CallHeader::parse(&mut reader) {
        Ok(header) => header,
        Err(RpcError::Garbage { cause: XdrError::Truncated, .. }) => return Located::Unknown,
        Err(RpcError::Drop) if head.len() < 8 => return Located::Unknown,
        Err(_) => return Located::Nowhere,
    };
    // What is signed or encrypted stays in one piece.
    if matches!(services.claim(&header), Claim::Protected) {
        return Located::Nowhere;
    }
    let Lookup::Found { procedure, .. } = services.lookup(header.program, header.version, header.procedure)
    else {
        return Located::Nowhere;
    };
    let Some(find) = procedure.locate.filter(|_| procedure.eligible_arguments == 1) else {
        return Located::Nowhere;
    };
    match find(&mut reader) {
        Ok(len) => Located::At(reader.position() as u32, len),
        Err(XdrError::Truncated) => Located::Unknown,
        Err(_) => Located::Nowhere,
    }
}
