//! Begins operations on files, and gives out what is over.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::io::Errno;
use stag_memory::{Arena, Buf, Shared};

use crate::blocking::{self, Cached};
use crate::completion::{Data, DiskCompletion, DiskRefused, Pieces, cut};
use crate::file::DiskFile;
use crate::helped::Helped;
use crate::operations::{AtOnce, DiskStatistics, Means, Method, Operations, Owner};
use crate::ring::Ring;
use crate::steps::Steps;
use crate::work::{Sync, Work};

/// How to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Operations of all owners at once. An owner may have as many of them as it leaves to others: alone half.
    pub depth: u32,
    /// Whether to use io_uring where it is permitted.
    pub uring: bool,
    /// Whether helper threads do the operations if io_uring does not. Else each is done as it is begun, and holds the reactor up: for
    /// tests whose passes are counted.
    pub helpers: bool,
}

impl Default for DiskConfig {
    fn default() -> DiskConfig {
        DiskConfig { depth: 512, uring: true, helpers: true }
    }
}

/// Does operations on files for one owner; several of one reactor share what is beneath.
///
/// Each sees the completions of its own operations only. Dropping it forgets them: their buffers go back to
/// their pools as they complete.
pub struct Disk {
    shared: Rc<RefCell<Operations>>,
    owner: u32,
}

impl Disk {
    /// Prepares for `config.depth` operations at once. `arenas` are those that most buffers come from.
    #[must_use]
    pub fn new(config: &DiskConfig, arenas: &[&Arena]) -> Disk {
        let ring = if config.uring { Ring::new(config.depth, arenas).map_err(Some) } else { Err(None) };
        match ring {
            // The kernel may have a lower limit than what was asked for.
            Ok((ring, registered, refused)) => {
                let depth = ring.depth();
                Disk::by(Means::Uring(ring), Method::Uring { registered, refused }, depth)
            }
            Err(error) if config.helpers => match Helped::new(config.depth) {
                Ok(helped) => Disk::by(Means::Helped(helped), Method::Helpers(error), config.depth),
                Err(_) => Disk::by(Means::Blocking, Method::Blocking, config.depth),
            },
            Err(_) => Disk::by(Means::Blocking, Method::Blocking, config.depth),
        }
    }

    /// For tests: does an operation on request, and lets it fail on request.
    #[must_use]
    pub fn stepped(depth: u32) -> (Disk, Steps) {
        let disk = Disk::by(Means::Stepped(VecDeque::new()), Method::Stepped, depth);
        let steps = Steps::of(disk.shared.clone());
        (disk, steps)
    }

    fn by(means: Means, method: Method, depth: u32) -> Disk {
        Disk::of(Rc::new(RefCell::new(Operations {
            means,
            method,
            depth,
            outstanding: 0,
            owners: Vec::new(),
            statistics: DiskStatistics::default(),
        })))
    }

    /// One more owner of the same reactor.
    #[must_use]
    pub fn another(&self) -> Disk {
        Disk::of(self.shared.clone())
    }

    fn of(shared: Rc<RefCell<Operations>>) -> Disk {
        let mut operations = shared.borrow_mut();
        let owner = operations.owners.len() as u32;
        let done = VecDeque::with_capacity(operations.depth as usize);
        operations.owners.push(Owner { done, outstanding: 0, at_once: AtOnce::None, gone: false });
        drop(operations);
        Disk { shared, owner }
    }

    /// Sets which of this owner's operations are done as they are begun.
    pub fn set_at_once(&self, at_once: AtOnce) {
        self.shared.borrow_mut().owners[self.owner as usize].at_once = at_once;
    }

    /// Which of this owner's operations are done as they are begun.
    #[must_use]
    pub fn at_once(&self) -> AtOnce {
        self.shared.borrow().at_once(self.owner)
    }

    /// How it works.
    #[must_use]
    pub fn method(&self) -> Method {
        self.shared.borrow().method
    }

    /// What all owners did.
    #[must_use]
    pub fn statistics(&self) -> DiskStatistics {
        self.shared.borrow().statistics
    }

    /// Operations that this owner could begin now: until it has as many as are free. So files that stand still leave room for
    /// those of others.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.shared.borrow().left(self.owner)
    }

    /// What becomes readable when an operation completes.
    #[must_use]
    pub fn descriptor(&self) -> Option<RawFd> {
        match &self.shared.borrow().means {
            Means::Uring(ring) => Some(ring.descriptor()),
            Means::Helped(helped) => Some(helped.descriptor()),
            Means::Blocking | Means::Stepped(_) => None,
        }
    }

    /// Begins to fill `pieces` from `offset` of `file`. [`Disk::poll`] completes it.
    pub fn read(
        &self,
        tag: u64,
        file: &Arc<DiskFile>,
        offset: u64,
        pieces: Pieces<Buf>,
    ) -> Result<(), DiskRefused> {
        self.begin(Work { tag, offset, sync: Sync::None, data: Data::Read(pieces) }, file)
    }

    /// Begins to write `pieces` at `offset` of `file`; it completes when that is as safe as `sync` says.
    pub fn write(
        &self,
        tag: u64,
        file: &Arc<DiskFile>,
        offset: u64,
        pieces: Pieces<Shared>,
        sync: Sync,
    ) -> Result<(), DiskRefused> {
        self.begin(Work { tag, offset, sync, data: Data::Write(pieces) }, file)
    }

    /// Begins to make safe what was written to `file`.
    pub fn sync(&self, tag: u64, file: &Arc<DiskFile>, sync: Sync) -> Result<(), DiskRefused> {
        self.begin(Work { tag, offset: 0, sync, data: Data::None }, file)
    }

    /// Fills `pieces` from `offset` of `file`, and cuts them to what was read, if no device has to be waited for: see [`AtOnce`].
    /// Gives the octets read. `None`: [`Disk::read`] has to do it.
    pub fn read_at_once(
        &self,
        file: &DiskFile,
        offset: u64,
        pieces: &mut Pieces<Buf>,
    ) -> Option<Result<u32, Errno>> {
        let operations = &mut *self.shared.borrow_mut();
        let at_once = operations.at_once(self.owner);
        let result = match at_once {
            AtOnce::None => return None,
            AtOnce::All => blocking::read(pieces, file, offset),
            AtOnce::CachedReads => {
                operations.statistics.system_calls += 1;
                match blocking::read_cached(pieces, file, offset) {
                    Cached::All(count) => Ok(count),
                    Cached::NotAll => return None,
                    // Of this file system it is not asked again.
                    Cached::Unknown => {
                        operations.owners[self.owner as usize].at_once = AtOnce::None;
                        return None;
                    }
                }
            }
        };
        let statistics = &mut operations.statistics;
        statistics.reads += 1;
        statistics.system_calls += u64::from(at_once == AtOnce::All);
        statistics.failures += u64::from(result.is_err());
        cut(pieces, result.unwrap_or(0));
        Some(result.map(|count| count as u32))
    }

    /// Writes `slices`, at most [`PIECES_MAX`](crate::PIECES_MAX), at `offset` of `file`, and syncs as `sync` says, if this owner has
    /// [`AtOnce::All`]. Returns the octets written. `None`: use [`Disk::write`].
    pub fn write_at_once(
        &self,
        file: &DiskFile,
        offset: u64,
        slices: &[IoSlice<'_>],
        sync: Sync,
    ) -> Option<Result<u32, Errno>> {
        let operations = &mut *self.shared.borrow_mut();
        if operations.at_once(self.owner) != AtOnce::All {
            return None;
        }
        let result = blocking::write(slices, file, offset, sync);
        let statistics = &mut operations.statistics;
        statistics.writes += 1;
        statistics.system_calls += 1;
        statistics.failures += u64::from(result.is_err());
        Some(result.map(|count| count as u32))
    }

    fn begin(&self, work: Work, file: &Arc<DiskFile>) -> Result<(), DiskRefused> {
        let operations = &mut *self.shared.borrow_mut();
        if operations.left(self.owner) == 0 {
            return Err(DiskRefused(work.data));
        }
        let statistics = &mut operations.statistics;
        match work.data {
            Data::None => statistics.syncs += 1,
            Data::Read(_) => statistics.reads += 1,
            Data::Write(_) => statistics.writes += 1,
        }
        operations.outstanding += 1;
        let owner = &mut operations.owners[self.owner as usize];
        owner.outstanding += 1;
        let is_at_once = owner.at_once == AtOnce::All;
        let left = match &mut operations.means {
            Means::Uring(ring) if !is_at_once => {
                ring.begin(self.owner, work, file, owner.at_once == AtOnce::None);
                None
            }
            Means::Helped(helped) if !is_at_once => match helped.start_threads(self.owner) {
                Ok(()) => {
                    helped.begin(self.owner, work, file);
                    None
                }
                // Without a thread it is done here.
                Err(_) => Some(work),
            },
            Means::Uring(_) | Means::Helped(_) | Means::Blocking => Some(work),
            Means::Stepped(waiting) => {
                waiting.push_back((self.owner, work, file.clone()));
                None
            }
        };
        if let Some(work) = left {
            operations.statistics.system_calls += 1;
            let completion = blocking::run(work, file);
            operations.complete(self.owner, completion);
        }
        Ok(())
    }

    /// The next of this owner's operations that is over. Hands those that were begun since the last time to
    /// the kernel first.
    pub fn poll(&self) -> Option<DiskCompletion> {
        let operations = &mut *self.shared.borrow_mut();
        if let Means::Uring(ring) = &mut operations.means {
            operations.statistics.system_calls += u64::from(ring.submit());
        }
        while let Some((owner, completion)) = operations.harvest() {
            operations.complete(owner, completion);
        }
        operations.next_done(self.owner)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let operations = &mut *self.shared.borrow_mut();
        let owner = &mut operations.owners[self.owner as usize];
        owner.gone = true;
        operations.outstanding -= owner.done.len() as u32;
        owner.outstanding -= owner.done.len() as u32;
        owner.done.clear();
    }
}
