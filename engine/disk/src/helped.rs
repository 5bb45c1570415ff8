//! Operations by helper threads, where io_uring is refused.
//!
//! Each owner has threads of its own: files that stand still hold up their owner only. As with io_uring, a slot keeps what an
//! operation needs until its completion is harvested.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{fdatasync, fsync};
use rustix::io::Errno;

use crate::completion::{Data, DiskCompletion, PIECES_USUAL};
use crate::file::DiskFile;
use crate::helpers::{HelperLimits, Helpers};
use crate::system;
use crate::work::{DROP_PATIENCE, Sync, Work};

/// Threads of one owner: as many operations of it wait for a disk at once.
const THREADS_MAX: usize = 32;

pub(crate) struct Helped {
    // Invariant: what a slot in flight holds is not accessed until its completion is harvested: a thread has the address of its list.
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Of each owner that has begun something.
    helpers: Vec<Option<Helpers<Result<u32, Errno>>>>,
    /// Readable while an owner's helpers have a result.
    event: OwnedFd,
}

/// An operation in flight, or room for one.
struct Slot {
    tag: u64,
    data: Data,
    list: Vec<libc::iovec>,
}

/// A system call that a thread makes.
struct Job {
    what: Kind,
    list: *const libc::iovec,
    count: libc::c_int,
    offset: libc::off64_t,
    sync: Sync,
    file: Arc<DiskFile>,
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
    Sync,
}

// SAFETY: the pointer is to a list of addresses in a slot, and these are of the slot's buffers. Neither is accessed elsewhere until
// the job is over (invariant of `Helped::slots`). All else can be sent.
unsafe impl Send for Job {}

impl Helped {
    pub(crate) fn new(depth: u32) -> Result<Helped, Errno> {
        let slot = |_| Slot { tag: 0, data: Data::None, list: Vec::with_capacity(PIECES_USUAL) };
        Ok(Helped {
            slots: (0..depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            helpers: Vec::new(),
            event: system::any_of(&[])?,
        })
    }

    /// What is readable while an operation is over.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Starts the helpers of an owner, if it has none. Fails if there can be none.
    pub(crate) fn start_threads(&mut self, owner: u32) -> Result<(), Errno> {
        let place = owner as usize;
        if self.helpers.len() <= place {
            self.helpers.resize_with(place + 1, || None);
        }
        if self.helpers[place].is_none() {
            let started = Helpers::new(HelperLimits { threads: THREADS_MAX, jobs: self.slots.len() })?;
            // SAFETY: it is open for as long as the helpers live, which is longer than this call.
            let descriptor = unsafe { BorrowedFd::borrow_raw(started.descriptor()) };
            epoll::add(&self.event, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            self.helpers[place] = Some(started);
        }
        Ok(())
    }

    /// Gives an operation to a thread of its owner, which has some. The caller has seen that there is a slot.
    pub(crate) fn begin(&mut self, owner: u32, work: Work, file: &Arc<DiskFile>) {
        let Some(index) = self.free.pop() else { unreachable!("more operations than slots") };
        let slot = &mut self.slots[index as usize];
        (slot.tag, slot.data) = (work.tag, work.data);
        slot.data.list_into(&mut slot.list);
        let what = match &slot.data {
            Data::None => Kind::Sync,
            Data::Read(_) => Kind::Read,
            Data::Write(_) => Kind::Write,
        };
        let job = Job {
            what,
            list: slot.list.as_ptr(),
            // Not more than a system call takes, so it fits.
            count: slot.list.len() as libc::c_int,
            offset: work.offset as libc::off64_t,
            sync: work.sync,
            file: file.clone(),
        };
        let Some(Some(helpers)) = self.helpers.get_mut(owner as usize) else {
            unreachable!("the owner's helpers were started")
        };
        helpers.start(index, move || job.run());
    }

    /// The next operation that is over, and whose it is.
    pub(crate) fn harvest(&mut self) -> Option<(u32, DiskCompletion)> {
        let mut all = (0..).zip(&mut self.helpers);
        let (owner, index, ended) = all.find_map(|(owner, helpers)| {
            let (index, ended) = helpers.as_mut()?.poll()?;
            Some((owner, index, ended))
        })?;
        let slot = &mut self.slots[index as usize];
        let mut data = mem::take(&mut slot.data);
        self.free.push(index);
        // A job does not panic.
        let result = ended.unwrap_or(Err(Errno::IO));
        data.cut(result.unwrap_or(0) as usize);
        Some((owner, DiskCompletion { tag: slot.tag, result, data }))
    }
}

impl Drop for Helped {
    /// Waits for what is in flight, as long as a ring does: threads may access the buffers until then.
    fn drop(&mut self) {
        while self.free.len() < self.slots.len() {
            if self.harvest().is_some() {
                continue;
            }
            match poll(&mut [PollFd::new(&self.event, PollFlags::IN)], Some(&DROP_PATIENCE)) {
                Ok(1..) | Err(Errno::INTR | Errno::AGAIN) => {}
                Ok(0) | Err(_) => {
                    self.slots.iter_mut().for_each(|slot| mem::take(&mut slot.data).strand());
                    // The threads have the addresses of the lists in them.
                    mem::forget(mem::take(&mut self.slots));
                    return;
                }
            }
        }
    }
}

impl Job {
    /// Waits for as long as the system call takes.
    fn run(&self) -> Result<u32, Errno> {
        loop {
            let done = match self.what {
                Kind::Sync if self.sync == Sync::All => fsync(&*self.file).map(|()| 0),
                Kind::Sync => fdatasync(&*self.file).map(|()| 0),
                Kind::Read | Kind::Write => self.transfer(),
            };
            if done != Err(Errno::INTR) {
                return done;
            }
        }
    }

    fn transfer(&self) -> Result<u32, Errno> {
        let file = self.file.as_raw_fd();
        // SAFETY: the list has `count` addresses of buffers, which are not accessed elsewhere until this job is over (invariant of
        // `Helped::slots`). Those of a read may be written. The file is open as long as the job has it.
        let moved = unsafe {
            match self.what {
                Kind::Read => libc::preadv2(file, self.list, self.count, self.offset, 0),
                _ => libc::pwritev2(file, self.list, self.count, self.offset, self.sync.write_flags()),
            }
        };
        u32::try_from(moved).map_err(|_| system::last())
    }
}
