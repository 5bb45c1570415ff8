//! READ and WRITE: what is under way, and what waits for memory or for room.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use stag_disk::{Completion, Data, Disk, PIECES_MAX, Pieces, Sync};
use stag_memory::{Buf, Pool, Shared};
use stag_wire::nfs3::{Stable, Status};

use super::Place;
use super::object::{is_synchronous, stat, status};
use crate::store::{Finished, Progress, ReadDone, WriteData, WriteDone};

/// Transfers that wait for memory or room, at most: beyond that, clients are told to try again.
const WAITING_MAX: usize = 1024;

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
}

struct Transfer {
    file: Rc<OwnedFd>,
    offset: u64,
    len: usize,
    what: What,
    /// What is to be written, until that is under way.
    data: Pieces<Shared>,
    /// What came of it.
    completion: Option<Completion>,
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
        self.begin(Transfer { file, offset, len, what, data, completion: None })
    }

    fn copy<'a>(&self, len: usize, parts: impl Iterator<Item = &'a [u8]>) -> Result<Pieces<Shared>, Status> {
        let mut buf = self.pool.take_len(len).ok_or(Status::Jukebox)?;
        let mut at = 0;
        for part in parts {
            buf[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(Pieces::from_iter([buf.share()]))
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
        // In order: a large one must not wait for ever behind small ones that fit.
        if !self.waiting.is_empty() || !self.start(index) {
            self.waiting.push_back(index);
        }
        Ok(Progress::Later(Place::Transfer(index).ticket()))
    }

    /// Gives a transfer to the disk. `false`: there is no room, or no memory.
    fn start(&mut self, index: u32) -> bool {
        let Some(transfer) = self.slots[index as usize].as_mut() else { return true };
        if self.disk.left() == 0 {
            return false;
        }
        let (tag, file, offset) = (u64::from(index), &transfer.file, transfer.offset);
        let begun = match transfer.what {
            What::Read { .. } => {
                // One that is larger than the limit goes alone.
                if self.reading > 0 && self.reading + transfer.len > self.reading_max {
                    return false;
                }
                let mut pieces: Pieces<Buf> = Pieces::new();
                if !self.pool.take_pieces(transfer.len, &mut pieces, PIECES_MAX) {
                    return false;
                }
                self.reading += transfer.len;
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
        true
    }

    /// The next transfer that is over.
    pub(super) fn poll(&mut self) -> Option<u32> {
        loop {
            self.harvest();
            let mut started = false;
            while let Some(index) = self.waiting.front().copied()
                && self.start(index)
            {
                self.waiting.pop_front();
                started = true;
            }
            // What was just begun may be over already.
            if !started {
                break;
            }
        }
        self.done.pop_front()
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
