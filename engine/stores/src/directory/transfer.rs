//! READ and WRITE: the requested transfers, those under way, and those that wait for memory or for room.
//!
//! A request is only noted. Once in a pass the store examines the files, and admits or refuses the requests
//! ([`Transfers::next_asked`]): so all transfers of one file that came in a pass cost one examination of it.
//!
//! A READ that finds too little memory answers with less than was asked for, as RFC 1813 allows (section 3.3.6); one that
//! finds none at all waits for [`PATIENCE`], and is then told to come again. A READ that waits does not hold up others
//! that need less.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use stag_disk::{Data, Disk, DiskCompletion, PIECES_MAX, Pieces, Sync};
use stag_memory::{Buf, Pool, Shared};
use stag_vfs::{
    Finished, FsError, ObjectId, ReadDone, Stability, Ticket, UserIdentity, WriteData, WriteDone,
};

use super::kernel::Kernel;
use super::object::{is_synchronous, stat, status};
use super::opened::File;
use super::ticket::Work;
use super::verifier::{LossCount, WriteVerifier};

/// Transfers that wait for memory or room, at most: beyond that, clients are told to try again.
const WAITING_MAX: usize = 1024;

/// Transfers that are noted and not yet admitted, at most: then the store admits them before the pass is over.
const ASKED_MAX: usize = 256;

/// How long a transfer waits for memory or room before its client is told to try again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Octets that a READ is cut to at least: for less it waits first.
const SHORT_READ_MIN: usize = 64 << 10;

/// READs leave one part in this number of the pool's pages for transit to others.
const OTHERS_SHARE: usize = 4;

pub(super) struct Transfers {
    disk: Disk,
    kernel: Rc<Kernel>,
    pool: Pool,
    slots: Vec<Option<Transfer>>,
    free: Vec<u32>,
    /// Those that are neither admitted nor refused yet, oldest first.
    asked: VecDeque<Asked>,
    /// Those that wait, oldest first.
    waiting: VecDeque<u32>,
    /// Those that are over.
    done: VecDeque<u32>,
    /// Octets of the buffers of READs that are under way, and how many there may be.
    reading: usize,
    reading_max: usize,
    failures: LossCount,
    /// Transfers that are over so far.
    ended: u64,
    /// The instant of this pass.
    now: Duration,
}

/// A transfer that somebody asks for.
pub(super) struct Asked {
    pub(super) index: u32,
    pub(super) object: ObjectId,
    pub(super) user: UserIdentity,
    /// Of a WRITE.
    pub(super) write: Option<Stability>,
}

struct Transfer {
    /// Once it is admitted.
    file: Option<File>,
    offset: u64,
    len: usize,
    what: What,
    /// The data of a WRITE, until the write is under way.
    data: Pieces<Shared>,
    /// Since when it waits.
    waiting: Option<Duration>,
    end: Option<End>,
}

/// What came of a transfer.
enum End {
    Completed(DiskCompletion),
    /// It was of no octets.
    Empty,
    Refused(FsError),
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
    Write(Stability),
}

/// Octets of a READ of `len` that are there, if the file ends at `size`.
fn len_there(size: u64, offset: u64, len: usize) -> usize {
    let left = size.saturating_sub(offset);
    len.min(usize::try_from(left).unwrap_or(usize::MAX))
}

impl Transfers {
    /// Transfers by `disk`, with buffers of `pool`; READs take at most `reading_max` octets of them.
    pub(super) fn new(
        disk: Disk,
        kernel: Rc<Kernel>,
        pool: Pool,
        reading_max: usize,
        verifier: &WriteVerifier,
    ) -> Transfers {
        Transfers {
            disk,
            kernel,
            pool,
            slots: Vec::new(),
            free: Vec::new(),
            asked: VecDeque::with_capacity(ASKED_MAX),
            waiting: VecDeque::new(),
            done: VecDeque::new(),
            reading: 0,
            reading_max,
            failures: LossCount::new(verifier),
            ended: 0,
            now: Duration::ZERO,
        }
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Stability WRITEs that failed: what was written and not synced may be lost each time.
    pub(super) fn failures(&self) -> u64 {
        self.failures.own()
    }

    /// Transfers that are over so far.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// Notes that somebody asks for `count` octets.
    pub(super) fn read(
        &mut self,
        object: ObjectId,
        user: UserIdentity,
        offset: u64,
        count: u32,
    ) -> Result<Ticket, FsError> {
        let what = What::Read { size: 0 };
        self.ask(object, user, None, (offset, count as usize), what, Pieces::new())
    }

    /// Notes what somebody wants to be written.
    pub(super) fn write(
        &mut self,
        object: ObjectId,
        user: UserIdentity,
        offset: u64,
        data: WriteData<'_>,
        stable: Stability,
    ) -> Result<Ticket, FsError> {
        let len = data.len();
        let data = match data {
            WriteData::Placed(pieces) if pieces.len() <= PIECES_MAX => pieces.iter().cloned().collect(),
            WriteData::Placed(pieces) => self.copy(len, pieces.iter().map(|piece| &piece[..]))?,
            WriteData::Inline(octets) => self.copy(len, [octets].into_iter())?,
        };
        self.ask(object, user, Some(stable), (offset, len), What::Write(stable), data)
    }

    fn copy<'a>(&self, len: usize, parts: impl Iterator<Item = &'a [u8]>) -> Result<Pieces<Shared>, FsError> {
        let mut bufs: Pieces<Buf> = Pieces::new();
        let pages = len.div_ceil(self.pool.unit_len());
        if pages > self.pool.transit_free() || !self.pool.take_pieces(len, &mut bufs) {
            return Err(FsError::Busy);
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

    fn ask(
        &mut self,
        object: ObjectId,
        user: UserIdentity,
        write: Option<Stability>,
        (offset, len): (u64, usize),
        what: What,
        data: Pieces<Shared>,
    ) -> Result<Ticket, FsError> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(FsError::Busy);
        }
        let transfer = Transfer { file: None, offset, len, what, data, waiting: None, end: None };
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
        self.asked.push_back(Asked { index, object, user, write });
        Ok(Work::Transfer(index).ticket())
    }

    /// Whether there is something to admit or to refuse.
    pub(super) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether enough is asked for that admission should not wait for the end of the pass.
    pub(super) fn has_many_asked(&self) -> bool {
        self.asked.len() >= ASKED_MAX
    }

    /// The next transfer to admit or to refuse, the oldest first.
    pub(super) fn next_asked(&mut self) -> Option<Asked> {
        self.asked.pop_front()
    }

    /// Begins a READ of a file that ends at `size`.
    pub(super) fn admit_read(&mut self, index: u32, file: File, size: u64) {
        let Some(transfer) = self.slots[index as usize].as_mut() else { return };
        transfer.len = len_there(size, transfer.offset, transfer.len);
        transfer.what = What::Read { size };
        self.admit(index, file);
    }

    /// Does a READ of a file that ends at `size`, if that waits for no device and there is memory for all of it.
    pub(super) fn read_now(
        &mut self,
        file: &File,
        size: u64,
        (offset, count): (u64, u32),
        pieces: &mut Vec<Shared>,
    ) -> Option<Result<ReadDone, FsError>> {
        let len = len_there(size, offset, count as usize);
        if len == 0 {
            return Some(Ok(ReadDone { count: 0, eof: offset >= size }));
        }
        let mut bufs: Pieces<Buf> = Pieces::new();
        if self.room(offset, len) < len || !self.pool.take_pieces(len, &mut bufs) {
            return None;
        }
        Some(match self.disk.read_at_once(file, offset, &mut bufs)? {
            Ok(count) => {
                pieces.extend(bufs.into_iter().map(Buf::share));
                self.read_done(file, size, (offset, len), count)
            }
            Err(error) => Err(failure(error)),
        })
    }

    /// Performs a WRITE, if it waits for nothing. `None`: it would wait, or has too many pieces for one system call.
    pub(super) fn write_now(
        &mut self,
        file: &File,
        offset: u64,
        data: &WriteData<'_>,
        stable: Stability,
    ) -> Option<Result<WriteDone, FsError>> {
        let mut slices: Pieces<IoSlice<'_>> = Pieces::new();
        match data {
            WriteData::Inline(octets) => slices.push(IoSlice::new(octets)),
            WriteData::Placed(pieces) if pieces.len() > PIECES_MAX => return None,
            WriteData::Placed(pieces) => slices.extend(pieces.iter().map(|piece| IoSlice::new(piece))),
        }
        let written = self.disk.write_at_once(file, offset, &slices, sync(stable))?;
        Some(self.write_done(file, data.len(), stable, written))
    }

    /// The result of a WRITE of `len` octets, of which the kernel says what was `written`.
    fn write_done(
        &mut self,
        file: &File,
        len: usize,
        stable: Stability,
        written: Result<u32, Errno>,
    ) -> Result<WriteDone, FsError> {
        match written {
            Ok(0) if len > 0 => Err(FsError::NoSpace),
            Ok(count) => Ok(WriteDone { count, committed: stable }),
            Err(error) => {
                self.note_failed_write(file, stable);
                Err(failure(error))
            }
        }
    }

    /// What a READ of `len` octets came to that `file` had when it was `size` long, of which `count` were read.
    fn read_done(
        &self,
        file: &File,
        size: u64,
        (offset, len): (u64, usize),
        count: u32,
    ) -> Result<ReadDone, FsError> {
        let end = offset + u64::from(count);
        // Less than there was: the file is shorter by now, or the client has to ask for the rest.
        let is_short = (count as usize) < len;
        let size = match is_short && self.kernel.knows_what_is_open() {
            true => stat(&**file).map_err(status)?.size,
            false => size,
        };
        // Where the size would have to be waited for, the client asks for the rest, and gets nothing.
        Ok(ReadDone { count, eof: end >= size || count == 0 && is_short })
    }

    /// Begins a WRITE, which will be as safe as `stable` says.
    pub(super) fn admit_write(&mut self, index: u32, file: File, stable: Stability) {
        let Some(transfer) = self.slots[index as usize].as_mut() else { return };
        transfer.what = What::Write(stable);
        self.admit(index, file);
    }

    fn admit(&mut self, index: u32, file: File) {
        let Some(transfer) = self.slots[index as usize].as_mut() else { return };
        transfer.file = Some(file);
        if !self.end_if_empty(index) && !matches!(self.start(index), Start::Begun) {
            self.waiting.push_back(index);
        }
    }

    /// Whether a transfer is of no octets.
    pub(super) fn is_empty(&self, index: u32) -> bool {
        self.slots[index as usize].as_ref().is_none_or(|transfer| transfer.len == 0)
    }

    /// Ends a transfer of no octets that may be: there is nothing to do. `false`: there is.
    pub(super) fn end_if_empty(&mut self, index: u32) -> bool {
        let Some(transfer) = self.slots[index as usize].as_mut().filter(|transfer| transfer.len == 0) else {
            return false;
        };
        transfer.end = Some(End::Empty);
        self.note_end(index);
        true
    }

    /// Ends a transfer that is not to be.
    pub(super) fn refuse(&mut self, index: u32, status: FsError) {
        let Some(transfer) = self.slots[index as usize].as_mut() else { return };
        transfer.end = Some(End::Refused(status));
        self.note_end(index);
    }

    fn note_end(&mut self, index: u32) {
        self.ended += 1;
        self.done.push_back(index);
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
        let Some(file) = &transfer.file else { return Start::Begun };
        let (tag, offset) = (u64::from(index), transfer.offset);
        let begun = match transfer.what {
            What::Read { .. } => {
                transfer.len = pieces.iter().map(|piece| piece.len()).sum();
                self.disk.read(tag, file, offset, pieces)
            }
            What::Write(stable) => {
                self.disk.write(tag, file, offset, std::mem::take(&mut transfer.data), sync(stable))
            }
        };
        assert!(begun.is_ok(), "there was room for an operation");
        Start::Begun
    }

    /// The next transfer that is over.
    pub(super) fn poll(&mut self, now: Duration) -> Option<u32> {
        // Once in each pass the disk is asked, however many are over.
        if self.now == now
            && let Some(index) = self.done.pop_front()
        {
            return Some(index);
        }
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
                self.refuse(index, FsError::Busy);
                continue;
            }
            self.waiting.push_back(index);
        }
        any
    }

    fn harvest(&mut self) {
        while let Some(completion) = self.disk.poll() {
            self.note_completion(completion);
        }
    }

    fn note_completion(&mut self, completion: DiskCompletion) {
        let index = completion.tag as u32;
        let Some(transfer) = self.slots[index as usize].as_mut() else { return };
        transfer.end = Some(End::Completed(completion));
        self.note_end(index);
    }

    /// What came of a transfer that is over.
    pub(super) fn finish(&mut self, index: u32, pieces: &mut Vec<Shared>) -> Result<Finished, FsError> {
        let taken = self
            .slots
            .get_mut(index as usize)
            .and_then(|slot| slot.take_if(|transfer| transfer.end.is_some()));
        let Some(Transfer { file, offset, len, what, end: Some(end), .. }) = taken else {
            return Err(FsError::Fault);
        };
        self.free.push(index);
        let (completion, file) = match (end, file) {
            (End::Completed(completion), Some(file)) => (completion, file),
            (End::Refused(status), _) => return Err(status),
            (End::Empty, _) => {
                return Ok(match what {
                    What::Read { size } => Finished::Read(ReadDone { count: 0, eof: offset >= size }),
                    What::Write(stable) => Finished::Write(WriteDone { count: 0, committed: stable }),
                });
            }
            (End::Completed(_), None) => return Err(FsError::Fault),
        };
        match what {
            What::Read { size } => {
                // Until now, even for an abandoned READ: the buffers were not free.
                self.reading -= len;
                let count = completion.result.map_err(failure)?;
                if let Data::Read(bufs) = completion.data {
                    pieces.extend(bufs.into_iter().map(Buf::share));
                }
                self.read_done(&file, size, (offset, len), count).map(Finished::Read)
            }
            What::Write(stable) => {
                self.write_done(&file, len, stable, completion.result).map(Finished::Write)
            }
        }
    }

    /// The kernel tells of data that it could not write once for each descriptor: to whatever syncs next. A synchronous
    /// WRITE that failed, whatever with, may have been that; then no COMMIT would tell of what others wrote and lost.
    fn note_failed_write(&mut self, file: &File, stable: Stability) {
        let was_sync = match stable {
            // To ask a file system that may wait would be too much; and too many losses do no harm.
            Stability::Unstable => !self.kernel.knows_what_is_open() || is_synchronous(&**file),
            Stability::DataSync | Stability::FileSync => true,
        };
        if was_sync {
            self.failures.note();
        }
    }
}

/// The error that a client gets for a transfer that failed.
fn failure(error: Errno) -> FsError {
    match error {
        Errno::INTR | Errno::CANCELED => FsError::Busy,
        error => status(error),
    }
}

/// How to sync a WRITE of this stability.
fn sync(stable: Stability) -> Sync {
    match stable {
        Stability::Unstable => Sync::None,
        Stability::DataSync => Sync::Data,
        Stability::FileSync => Sync::All,
    }
}
