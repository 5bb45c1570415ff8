//! Operations by io_uring.
//!
//! Each operation has a slot, which keeps its buffers, its file and the list of addresses that the kernel reads
//! until its completion has been harvested. There are as many slots as entries in the submission queue, and the
//! completion queue is larger, so neither can overrun.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use stag_memory::{Arena, ArenaId, Buf, Location, Shared};

use crate::completion::{Data, DiskCompletion, PIECES_USUAL};
use crate::file::DiskFile;
use crate::work::{DROP_PATIENCE, Sync, Work};

/// The most bytes that one registered buffer may have.
const REGISTERED_LEN_MAX: u64 = 1 << 30;

pub(crate) struct Ring {
    uring: IoUring,
    // Invariant: what a slot in flight holds does not move, and is not accessed, until its completion is
    // harvested. A boxed slice of fixed length, because the kernel has the addresses of the lists in it.
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Entries in the submission queue that the kernel has not seen.
    queued: u32,
    registered: Vec<Registered>,
}

/// An operation in flight, or room for one.
struct Slot {
    tag: u64,
    owner: u32,
    data: Data,
    /// Kept open for as long as the operation takes.
    file: Option<Arc<DiskFile>>,
    /// Not touched while the operation is in flight.
    list: Vec<libc::iovec>,
}

/// An arena that is registered: its first buffer's number, of as many as [`REGISTERED_LEN_MAX`] makes.
struct Registered {
    arena: ArenaId,
    first: u32,
    /// Keeps the memory mapped for as long as the kernel knows it.
    _memory: Arena,
}

impl Ring {
    /// A ring, the bytes it has registered, and why it did not register the rest.
    pub(crate) fn new(depth: u32, arenas: &[&Arena]) -> Result<(Ring, u64, Option<Errno>), Errno> {
        let uring = IoUring::builder().dontfork().setup_clamp().build(depth).map_err(errno)?;
        // Clamped: as many slots as there really are entries.
        let depth = depth.min(uring.params().sq_entries());
        let slot = |_| Slot {
            tag: 0,
            owner: 0,
            data: Data::None,
            file: None,
            list: Vec::with_capacity(PIECES_USUAL),
        };
        let mut ring = Ring {
            uring,
            slots: (0..depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            queued: 0,
            registered: Vec::new(),
        };
        ring.try_out()?;
        let (registered, refused) = ring.register(arenas);
        Ok((ring, registered, refused))
    }

    /// Has the kernel do nothing, once. A container may allow a ring to be made, and not to be used.
    fn try_out(&mut self) -> Result<(), Errno> {
        // SAFETY: the entry names no memory.
        let pushed = unsafe { self.uring.submission().push(&opcode::Nop::new().build()) };
        assert!(pushed.is_ok(), "the submission queue is empty");
        loop {
            match self.uring.submit_and_wait(1).map_err(errno) {
                Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                Err(error) => return Err(error),
                Ok(_) if self.uring.completion().next().is_some() => return Ok(()),
                Ok(_) => {}
            }
        }
    }

    /// Makes the arenas known, so that not every operation has to look up their pages: all, or none of them.
    fn register(&mut self, arenas: &[&Arena]) -> (u64, Option<Errno>) {
        let mut buffers = Vec::new();
        let mut registered = Vec::new();
        for arena in arenas {
            registered.push(Registered {
                arena: arena.id(),
                first: buffers.len() as u32,
                _memory: (*arena).clone(),
            });
            let (base, len) = (arena.base().as_ptr(), arena.len() as u64);
            let mut at = 0;
            while at < len {
                let part = (len - at).min(REGISTERED_LEN_MAX);
                let start = base.wrapping_add(at as usize);
                buffers.push(libc::iovec { iov_base: start.cast(), iov_len: part as usize });
                at += part;
            }
        }
        if buffers.is_empty() {
            return (0, None);
        }
        // SAFETY: each buffer is part of an arena's mapping, which `registered` keeps mapped for as long as the
        // ring lives. The kernel reads and writes it only for operations, which name ranges that slots own.
        match unsafe { self.uring.submitter().register_buffers(&buffers) } {
            Ok(()) => {
                self.registered = registered;
                (buffers.iter().map(|buffer| buffer.iov_len as u64).sum(), None)
            }
            // Most likely the limit on locked memory.
            Err(error) => (0, Some(errno(error))),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// The number of the registered buffer that `len` bytes at `location` lie in, if there is one.
    fn registered_at(&self, location: Location, len: usize) -> Option<u16> {
        let found = self.registered.iter().find(|registered| registered.arena == location.arena)?;
        let (first, last) = (location.offset, location.offset + (len as u64).max(1) - 1);
        let part = first / REGISTERED_LEN_MAX;
        (part == last / REGISTERED_LEN_MAX).then(|| (u64::from(found.first) + part).try_into().ok())?
    }

    /// Puts an operation in the submission queue. The caller has seen that there is a slot. `may_block`: a file system that another
    /// machine or process answers for may hold up even a call that is not to wait, as FUSE does in Linux 6.18, so a thread of the
    /// kernel makes it from the start.
    pub(crate) fn begin(&mut self, owner: u32, work: Work, file: &Arc<DiskFile>, may_block: bool) {
        let Some(index) = self.free.pop() else { unreachable!("more operations than slots") };
        let slot = &mut self.slots[index as usize];
        (slot.tag, slot.owner, slot.data) = (work.tag, owner, work.data);
        slot.file = Some(file.clone());
        let entry = self.entry(index, Fd(file.as_raw_fd()), work.offset, work.sync);
        let flags = if may_block { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = entry.user_data(u64::from(index)).flags(flags);
        // SAFETY: the entry names memory of the slot's buffers and its list, and the slot's file, all of which stay
        // as they are until the completion is harvested (invariant of `slots`); dropping the ring waits for that.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "as many slots as entries in the submission queue");
        self.queued += 1;
    }

    /// The submission queue's entry of a slot.
    fn entry(&mut self, index: u32, file: Fd, offset: u64, sync: Sync) -> squeue::Entry {
        let slot = &mut self.slots[index as usize];
        let flags = sync.write_flags();
        slot.data.list_into(&mut slot.list);
        let single = match &slot.data {
            Data::None => {
                let flags = if sync == Sync::All { FsyncFlags::empty() } else { FsyncFlags::DATASYNC };
                return opcode::Fsync::new(file).flags(flags).build();
            }
            Data::Read(pieces) => pieces.first().filter(|_| pieces.len() == 1).map(Buf::location),
            Data::Write(pieces) => pieces.first().filter(|_| pieces.len() == 1).map(Shared::location),
        };
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (list, count) = (slot.list.as_ptr(), slot.list.len() as u32);
        let first = slot.list.first().copied().unwrap_or(nothing);
        let is_read = matches!(slot.data, Data::Read(_));
        let known = single.and_then(|location| self.registered_at(location, first.iov_len));
        let len = first.iov_len as u32;
        match (is_read, known) {
            (true, Some(buffer)) => {
                opcode::ReadFixed::new(file, first.iov_base.cast(), len, buffer).offset(offset).build()
            }
            (true, None) => opcode::Readv::new(file, list, count).offset(offset).build(),
            (false, Some(buffer)) => opcode::WriteFixed::new(file, first.iov_base.cast(), len, buffer)
                .offset(offset)
                .rw_flags(flags)
                .build(),
            (false, None) => {
                opcode::Writev::new(file, list, count).offset(offset).rw_flags(flags as _).build()
            }
        }
    }

    /// Hands what was begun to the kernel. Returns the number of system calls that it took.
    #[inline]
    pub(crate) fn submit(&mut self) -> u32 {
        if self.queued == 0 {
            return 0;
        }
        // Interrupted, or out of memory for a moment: what was not taken is tried again in the next pass.
        if let Ok(count) = self.uring.submit() {
            self.queued = self.queued.saturating_sub(count as u32);
        }
        1
    }

    /// The next operation that is over, and whose it is.
    #[inline]
    pub(crate) fn harvest(&mut self) -> Option<(u32, DiskCompletion)> {
        let entry = self.uring.completion().next()?;
        let index = entry.user_data() as u32;
        let slot = &mut self.slots[index as usize];
        slot.file = None;
        let mut data = mem::take(&mut slot.data);
        let result = u32::try_from(entry.result()).map_err(|_| Errno::from_raw_os_error(-entry.result()));
        data.cut(result.unwrap_or(0) as usize);
        self.free.push(index);
        Some((slot.owner, DiskCompletion { tag: slot.tag, result, data }))
    }
}

impl Drop for Ring {
    /// Waits for what is in flight: the kernel may access the buffers until then. If a disk stands still, that may be for ever. So
    /// operations that have not ended after [`DROP_PATIENCE`] keep their memory for good.
    fn drop(&mut self) {
        loop {
            while self.harvest().is_some() {}
            if self.free.len() == self.slots.len() {
                return;
            }
            self.submit();
            // SAFETY: `uring` owns the descriptor and outlives this borrow.
            let ring = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
            match poll(&mut [PollFd::from_borrowed_fd(ring, PollFlags::IN)], Some(&DROP_PATIENCE)) {
                Ok(1..) | Err(Errno::INTR | Errno::AGAIN) => {}
                Ok(0) | Err(_) => break,
            }
        }
        self.slots.iter_mut().for_each(|slot| mem::take(&mut slot.data).strand());
        // The kernel has the addresses of the lists in them.
        mem::forget(mem::take(&mut self.slots));
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
