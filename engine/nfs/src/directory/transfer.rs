//! READ and WRITE: what is under way, and what waits for memory or for room.
//!
//! A READ that finds too little memory answers with less than was asked for, as RFC 1813 allows (section 3.3.6); one that
//! finds none at all waits for [`PATIENCE`], and is then told to come again. One that waits keeps nobody else waiting who
//! needs less.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use stag_disk::{Completion, Data, Disk, PIECES_MAX, Pieces, Sync};
use stag_memory::{Buf, Pool, Shared};
use stag_wire::nfs3::{Stable, Status};

use super::Place;
use super::object::{is_synchronous, stat, status};
use crate::store::{Finished, Progress, ReadDone, WriteData, WriteDone};

/// Transfers that wait for memory or room, at most: beyond that, clients are told to try again.
const WAITING_MAX: usize = 1024;

/// How long a transfer waits for memory or room before its client is told to try again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Octets that a READ is cut to at least: for less it waits first.
const SHORT_READ_MIN: usize = 64 << 10;

/// Of the pool's pages for transit, READs leave one in so many to others.
const OTHERS_SHARE: usize = 4;

pub(super) struct Transfers {
    disk: Disk,
    pool: Pool,
    slots: Vec<Option<Transfer>>,
    free: Vec<u32>,
    /// Those that wait, oldest first.
    waiting: VecDeque<u32>,
    /// Those that are over.
    done: VecDeque<u32>,
    /// Octets of the buffers of READs that are under way, and how many there may be.
    reading: usize,
    reading_max: usize,
    failures: u64,
    /// The instant of this pass.
    now: Duration,
}

struct Transfer {
    file: Rc<OwnedFd>,
    offset: u64,
    len: usize,
    what: What,
    /// What is to be written, until that is under way.
    data: Pieces<Shared>,
    /// Since when it waits.
    waiting: Option<Duration>,
    /// What came of it.
    completion: Option<Completion>,
}

/// Whether a transfer could be given to the disk.
enum Start {
    Begun,
    /// There is no room for any.
    NoRoom,
    /// There is no memory for this one.
    NoMemory,
}

enum What {
    Read {
        /// Of the file, when it began.
        size: u64,
    },
    Write(Stable),
}

impl Transfers {
    /// Transfers by `disk`, with buffers of `pool`; READs take at most `reading_max` octets of them.
    pub(super) fn new(disk: Disk, pool: Pool, reading_max: usize) -> Transfers {
        Transfers {
            disk,
            pool,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            done: VecDeque::new(),
            reading: 0,
            reading_max,
            failures: 0,
            now: Duration::ZERO,
        }
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Stable WRITEs that failed: what was written and not synced may be lost each time.
    pub(super) fn failures(&self) -> u64 {
        self.failures
    }

    /// Begins to read a file that ends at `size`.
    pub(super) fn read(
        &mut self,
        file: Rc<OwnedFd>,
        offset: u64,
        count: u32,
        size: u64,
    ) -> Result<Progress<ReadDone>, Status> {
        let len = u64::from(count).min(size.saturating_sub(offset));
        if len == 0 {
            return Ok(Progress::Done(ReadDone { count: 0, eof: offset >= size }));
        }
        self.begin(Transfer {
            file,
            offset,
            len: len as usize,
            what: What::Read { size },
            data: Pieces::new(),
            waiting: None,
            completion: None,
        })
    }

    /// Begins to write.
    pub(super) fn write(
        &mut self,
        file: Rc<OwnedFd>,
        offset: u64,
        data: WriteData<'_>,
        stable: Stable,
    ) -> Result<Progress<WriteDone>, Status> {
        let len = data.len();
        let data = match data {
            WriteData::Placed(pieces) if pieces.len() <= PIECES_MAX => pieces.iter().cloned().collect(),
            WriteData::Placed(pieces) => self.copy(len, pieces.iter().map(|piece| &piece[..]))?,
            WriteData::Inline(octets) => self.copy(len, [octets].into_iter())?,
        };
        let what = What::Write(stable);
        self.begin(Transfer { file, offset, len, what, data, waiting: None, completion: None })
    }

    fn copy<'a>(&self, len: usize, parts: impl Iterator<Item = &'a [u8]>) -> Result<Pieces<Shared>, Status> {
        let mut bufs: Pieces<Buf> = Pieces::new();
        let pages = len.div_ceil(self.pool.unit_len());
        if pages > self.pool.transit_free() || !self.pool.take_pieces(len, &mut bufs) {
            return Err(Status::Jukebox);
        }
        let (mut at, mut buf) = (0, 0);
        for mut part in parts {
            while !part.is_empty() {
                let space = &mut bufs[buf][at..];
                let (now, later) = part.split_at(part.len().min(space.len()));
                space[..now.len()].copy_from_slice(now);
                part = later;
                at += now.len();
                if at == bufs[buf].len() {
                    (at, buf) = (0, buf + 1);
                }
            }
        }
        Ok(bufs.into_iter().map(Buf::share).collect())
    }

    fn begin<T>(&mut self, transfer: Transfer) -> Result<Progress<T>, Status> {
        if self.waiting.len() == WAITING_MAX {
            return Err(Status::Jukebox);
        }
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(transfer);
                index
            }
            None => {
                self.slots.push(Some(transfer));
                (self.slots.len() - 1) as u32
            }
        };
        if !matches!(self.start(index), Start::Begun) {
            self.waiting.push_back(index);
        }
        Ok(Progress::Later(Place::Transfer(index).ticket()))
    }

    /// Octets of a READ of `len` at `offset` that there is memory for.
    fn room(&self, offset: u64, len: usize) -> usize {
        let unit = self.pool.unit_len();
        let others = self.pool.transit() / OTHERS_SHARE;
        let free = self.pool.transit_free().saturating_sub(others).saturating_mul(unit);
        // One that is larger than the limit goes alone.
        let limit = if self.reading == 0 { len } else { self.reading_max.saturating_sub(self.reading) };
        let room = free.min(limit);
        if room >= len {
            return len;
        }
        // To the end of a page of the file: the rest is then asked for from there.
        let over = ((offset % unit as u64) as usize + room) % unit;
        room - over.min(room)
    }

    /// Gives a transfer to the disk, if there are room and memory.
    fn start(&mut self, index: u32) -> Start {
        if self.disk.left() == 0 {
            return Start::NoRoom;
        }
        let Some(transfer) = self.slots[index as usize].as_ref() else { return Start::Begun };
        let mut pieces: Pieces<Buf> = Pieces::new();
        if let What::Read { .. } = transfer.what {
            let is_patient = transfer.waiting.is_none_or(|since| self.now < since + PATIENCE);
            let least = if is_patient { transfer.len.min(SHORT_READ_MIN) } else { 1 };
            let room = self.room(transfer.offset, transfer.len);
            if room < least || !self.pool.take_pieces(room, &mut pieces) {
                return Start::NoMemory;
            }
            self.reading += room;
        }
        let Some(transfer) = self.slots[index as usize].as_mut() else { return Start::Begun };
        let (tag, file, offset) = (u64::from(index), &transfer.file, transfer.offset);
        let begun = match transfer.what {
            What::Read { .. } => {
                transfer.len = pieces.iter().map(|piece| piece.len()).sum();
                self.disk.read(tag, file, offset, pieces)
            }
            What::Write(stable) => {
                let sync = match stable {
                    Stable::Unstable => Sync::None,
                    Stable::DataSync => Sync::Data,
                    Stable::FileSync => Sync::All,
                };
                self.disk.write(tag, file, offset, std::mem::take(&mut transfer.data), sync)
            }
        };
        assert!(begun.is_ok(), "there was room for an operation");
        Start::Begun
    }

    /// The next transfer that is over.
    pub(super) fn poll(&mut self, now: Duration) -> Option<u32> {
        self.now = now;
        loop {
            self.harvest();
            // What was just begun may be over already.
            if !self.start_waiting() {
                break;
            }
        }
        self.done.pop_front()
    }

    /// Begins those that waited and need not any more, oldest first, and gives up those that waited for too long.
    /// `false`: there was none.
    fn start_waiting(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.waiting.len() {
            let Some(index) = self.waiting.pop_front() else { break };
            let start = self.start(index);
            if matches!(start, Start::Begun) {
                any = true;
                continue;
            }
            let Some(transfer) = self.slots[index as usize].as_mut() else { continue };
            let since = *transfer.waiting.get_or_insert(self.now);
            if matches!(start, Start::NoMemory) && self.now >= since + PATIENCE {
                let result = Err(Errno::CANCELED);
                transfer.len = 0;
                transfer.completion = Some(Completion { tag: u64::from(index), result, data: Data::None });
                self.done.push_back(index);
                continue;
            }
            self.waiting.push_back(index);
        }
        any
    }

    fn harvest(&mut self) {
        while let Some(completion) = self.disk.poll() {
            let index = completion.tag as u32;
            let Some(transfer) = self.slots[index as usize].as_mut() else { continue };
            transfer.completion = Some(completion);
            self.done.push_back(index);
        }
    }

    /// What came of a transfer that is over.
    pub(super) fn finish(&mut self, index: u32, pieces: &mut Vec<Shared>) -> Result<Finished, Status> {
        let taken = self
            .slots
            .get_mut(index as usize)
            .and_then(|slot| slot.take_if(|transfer| transfer.completion.is_some()));
        let Some(Transfer { file, offset, len, what, completion: Some(completion), .. }) = taken else {
            return Err(Status::ServerFault);
        };
        self.free.push(index);
        let result = completion.result.map_err(|error| self.failed(&what, &file, error));
        match what {
            What::Read { size } => {
                // Until now, also if nobody asked: the buffers were not free.
                self.reading -= len;
                let count = result?;
                if let Data::Read(bufs) = completion.data {
                    pieces.extend(bufs.into_iter().map(Buf::share));
                }
                let end = offset + u64::from(count);
                // Less than there was: the file is shorter by now, or the client has to ask for the rest.
                let size = if (count as usize) < len { stat(&*file).map_err(status)?.size } else { size };
                Ok(Finished::Read(ReadDone { count, eof: end >= size }))
            }
            What::Write(stable) => match result? {
                0 if len > 0 => Err(Status::NoSpc),
                count => Ok(Finished::Write(WriteDone { count, committed: stable })),
            },
        }
    }

    /// The kernel tells of data that it could not write once for each descriptor: to whatever syncs next. A synchronous
    /// WRITE that failed, whatever with, may have been that; then no COMMIT would tell of what others wrote and lost.
    fn failed(&mut self, what: &What, file: &OwnedFd, error: Errno) -> Status {
        let was_sync = match what {
            What::Read { .. } => false,
            What::Write(Stable::Unstable) => is_synchronous(file),
            What::Write(_) => true,
        };
        self.failures += u64::from(was_sync);
        match error {
            Errno::INTR | Errno::CANCELED => Status::Jukebox,
            error => status(error),
        }
    }
}
