//! The operations of one reactor, and their owners.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::Timespec;
use rustix::io::Errno;
use stag_memory::{Arena, Buf, Shared};

use crate::blocking::{self, Cached};
use crate::completion::{Data, DiskCompletion, DiskRefused, Pieces, cut};
use crate::file::DiskFile;
use crate::helped::Helped;
use crate::ring::Ring;
use crate::steps::Steps;

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

/// How operations are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By io_uring. `registered` is how much of the arenas' memory it knows beforehand, in bytes: what is not
    /// registered is looked up for each operation.
    Uring {
        /// Bytes.
        registered: u64,
        /// Why it is not all of it.
        refused: Option<Errno>,
    },
    /// By helper threads: io_uring was refused for this reason, or not asked for.
    Helpers(Option<Errno>),
    /// By plain system calls, which hold the reactor up for as long as the disk takes.
    Blocking,
    /// One by one, when [`Steps::step`] says so.
    Stepped,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Method::Uring { refused: None, .. } => write!(f, "io_uring, buffers registered"),
            Method::Uring { registered, refused: Some(error) } => {
                write!(f, "io_uring, {registered} bytes of buffers registered: {error}; raise `ulimit -l`")
            }
            Method::Blocking => {
                write!(f, "plain system calls, which hold everything up while the disk works")
            }
            Method::Helpers(None) => write!(f, "helper threads, as asked for"),
            Method::Helpers(Some(error)) => write!(
                f,
                "helper threads, which take longer: io_uring is refused ({error}); permit io_uring_setup, io_uring_enter \
                 and io_uring_register"
            ),
            Method::Stepped => write!(f, "step by step"),
        }
    }
}

/// How long the end of a disk waits for an operation in flight to end.
pub(crate) const DROP_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Which operations of an owner are done as they are begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtOnce {
    /// None: io_uring does them, or helper threads. For files that another machine or process answers for.
    #[default]
    None,
    /// [`Disk::read_at_once`] tries by a system call that does not wait, and reads what is in memory already. All else is done as
    /// with [`AtOnce::None`]. For files on local devices.
    CachedReads,
    /// All, by plain system calls. For files that are in memory ([`system::is_in_memory`](crate::system::is_in_memory)): no device
    /// holds such a call up, while the ring takes longer to read them, and hands each write to another thread.
    All,
}

/// How safe a write has to be before it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Not at all: [`Disk::sync`] will make it so.
    None,
    /// The octets, and what is needed to find them.
    Data,
    /// All of the file's attributes too.
    All,
}

impl Sync {
    /// The flags of a write's system call.
    pub(crate) fn write_flags(self) -> libc::c_int {
        match self {
            Sync::None => 0,
            Sync::Data => libc::RWF_DSYNC,
            Sync::All => libc::RWF_SYNC,
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStatistics {
    /// Reads begun.
    pub reads: u64,
    /// Writes begun.
    pub writes: u64,
    /// Syncs begun.
    pub syncs: u64,
    /// System calls made for them.
    pub system_calls: u64,
    /// Operations that failed.
    pub failures: u64,
}

/// Does operations on files for one owner; several of one reactor share what is beneath.
///
/// Each sees the completions of its own operations only. Dropping it forgets them: their buffers go back to
/// their pools as they complete.
pub struct Disk {
    shared: Rc<RefCell<Operations>>,
    owner: u32,
}

/// What the owners share.
pub(crate) struct Operations {
    pub(crate) means: Means,
    method: Method,
    depth: u32,
    /// Begun, and not yet given out by [`Disk::poll`].
    outstanding: u32,
    owners: Vec<Owner>,
    statistics: DiskStatistics,
}

/// What does the operations.
#[expect(clippy::large_enum_variant, reason = "there is one for each reactor")]
pub(crate) enum Means {
    Uring(Ring),
    Helped(Helped),
    Blocking,
    /// What waits for its step, and whose it is.
    Stepped(VecDeque<(u32, Work, Arc<DiskFile>)>),
}

/// An owner, and its completions that it has not asked for yet.
struct Owner {
    done: VecDeque<DiskCompletion>,
    /// Begun, and not yet given out.
    outstanding: u32,
    at_once: AtOnce,
    gone: bool,
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

impl Operations {
    /// Which operations of an owner are done as they are begun.
    fn at_once(&self, owner: u32) -> AtOnce {
        match self.means {
            Means::Uring(_) | Means::Helped(_) => self.owners[owner as usize].at_once,
            Means::Blocking => AtOnce::All,
            Means::Stepped(_) => AtOnce::None,
        }
    }

    fn left(&self, owner: u32) -> u32 {
        // It may begin one as long as more than it has are free, and each that it begins counts on both sides.
        (self.depth - self.outstanding).saturating_sub(self.owners[owner as usize].outstanding).div_ceil(2)
    }

    /// The next operation that is over, and whose it is.
    #[inline]
    fn harvest(&mut self) -> Option<(u32, DiskCompletion)> {
        match &mut self.means {
            Means::Uring(ring) => ring.harvest(),
            Means::Helped(helped) => helped.harvest(),
            Means::Blocking | Means::Stepped(_) => None,
        }
    }

    fn next_done(&mut self, owner: u32) -> Option<DiskCompletion> {
        let owner = &mut self.owners[owner as usize];
        let completion = owner.done.pop_front()?;
        owner.outstanding -= 1;
        self.outstanding -= 1;
        Some(completion)
    }

    pub(crate) fn complete(&mut self, owner: u32, completion: DiskCompletion) {
        self.statistics.failures += u64::from(completion.result.is_err());
        let owner = &mut self.owners[owner as usize];
        if owner.gone {
            owner.outstanding -= 1;
            self.outstanding -= 1;
        } else {
            owner.done.push_back(completion);
        }
    }
}

/// An operation to do.
pub(crate) struct Work {
    pub(crate) tag: u64,
    pub(crate) offset: u64,
    pub(crate) sync: Sync,
    pub(crate) data: Data,
}
