//! The operations of one reactor: what does them, who owns them, what was counted.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

use crate::completion::DiskCompletion;
use crate::file::DiskFile;
use crate::helped::Helped;
use crate::ring::Ring;
use crate::work::Work;

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
    /// One by one, when [`Steps::step`](crate::Steps::step) says so.
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

/// Which operations of an owner are done as they are begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtOnce {
    /// None: io_uring does them, or helper threads. For files that another machine or process answers for.
    #[default]
    None,
    /// [`Disk::read_at_once`](crate::Disk::read_at_once) tries by a system call that does not wait, and reads what is in memory already. All else is done as
    /// with [`AtOnce::None`]. For files on local devices.
    CachedReads,
    /// All, by plain system calls. For files that are in memory ([`system::is_in_memory`](crate::system::is_in_memory)): no device
    /// holds such a call up, while the ring takes longer to read them, and hands each write to another thread.
    All,
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

/// What the owners share.
pub(crate) struct Operations {
    pub(crate) means: Means,
    pub(crate) method: Method,
    pub(crate) depth: u32,
    /// Begun, and not yet given out by [`Disk::poll`](crate::Disk::poll).
    pub(crate) outstanding: u32,
    pub(crate) owners: Vec<Owner>,
    pub(crate) statistics: DiskStatistics,
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
pub(crate) struct Owner {
    pub(crate) done: VecDeque<DiskCompletion>,
    /// Begun, and not yet given out.
    pub(crate) outstanding: u32,
    pub(crate) at_once: AtOnce,
    pub(crate) gone: bool,
}

impl Operations {
    /// Which operations of an owner are done as they are begun.
    pub(crate) fn at_once(&self, owner: u32) -> AtOnce {
        match self.means {
            Means::Uring(_) | Means::Helped(_) => self.owners[owner as usize].at_once,
            Means::Blocking => AtOnce::All,
            Means::Stepped(_) => AtOnce::None,
        }
    }

    pub(crate) fn left(&self, owner: u32) -> u32 {
        // It may begin one as long as more than it has are free, and each that it begins counts on both sides.
        (self.depth - self.outstanding).saturating_sub(self.owners[owner as usize].outstanding).div_ceil(2)
    }

    /// The next operation that is over, and whose it is.
    #[inline]
    pub(crate) fn harvest(&mut self) -> Option<(u32, DiskCompletion)> {
        match &mut self.means {
            Means::Uring(ring) => ring.harvest(),
            Means::Helped(helped) => helped.harvest(),
            Means::Blocking | Means::Stepped(_) => None,
        }
    }

    pub(crate) fn next_done(&mut self, owner: u32) -> Option<DiskCompletion> {
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
