//! Work requests as the device takes them, a batch at a time: one call of the driver, one doorbell.

use std::io;
use std::ptr;

use stag_rdma_core_sys as sys;

use crate::scatter::RECEIVE_TARGETS_MAX;

/// Work requests posted with one call.
pub(super) const BATCH: usize = 32;

/// Completions taken with one call.
pub(super) const HARVEST: usize = 32;

/// A work request that is written where it is posted from: a copy of it is as long as two cache lines. Of what the
/// opcode does not use it keeps what the request before it had there.
pub(super) struct Send<'a> {
    request: &'a mut sys::ibv_send_wr,
    piece: &'a mut sys::ibv_sge,
}

impl Send<'_> {
    /// With this id.
    #[inline]
    pub(super) fn id(self, id: WorkId) -> Self {
        self.request.wr_id = id.pack();
        self
    }

    /// With these flags, too.
    #[inline]
    pub(super) fn flags(self, flags: sys::ibv_send_flags) -> Self {
        self.request.send_flags |= flags;
        self
    }

    /// With this memory. None at all for no octets: to some devices a length of 0 is 2^31.
    #[inline]
    pub(super) fn memory(self, base: *const u8, len: u32, lkey: u32) -> Self {
        if len > 0 {
            *self.piece = sys::ibv_sge { addr: base as u64, length: len, lkey };
            self.request.num_sge = 1;
        }
        self
    }

    /// To, or from, this place at the peer.
    #[inline]
    pub(super) fn remote(self, offset: u64, rkey: u32) -> Self {
        self.request.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: offset, rkey };
        self
    }

    /// Invalidating this key.
    #[inline]
    pub(super) fn invalidate(self, rkey: u32) -> Self {
        self.request.__bindgen_anon_1.invalidate_rkey = rkey;
        self
    }

    /// Binding this window.
    #[inline]
    pub(super) fn bind(self, bind: sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1) -> Self {
        self.request.__bindgen_anon_2.bind_mw = bind;
        self
    }
}

/// Work requests on their way to the device: Sends, or Receives.
pub(super) struct Batch {
    sends: [sys::ibv_send_wr; BATCH],
    receives: [sys::ibv_recv_wr; BATCH],
    pieces: [sys::ibv_sge; BATCH],
    /// The pieces of one scattered Receive, which is alone in the batch.
    scattered: Vec<sys::ibv_sge>,
    len: usize,
    /// Exposures whose windows are bound by requests of the batch.
    binds: [u16; BATCH],
    bind_count: usize,
}

impl Batch {
    pub(super) fn new() -> Box<Batch> {
        // SAFETY: numbers, pointers and unions of them, for which all zeros is a value.
        let send: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        let receive =
            sys::ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        Box::new(Batch {
            sends: [send; BATCH],
            receives: [receive; BATCH],
            pieces: [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; BATCH],
            scattered: Vec::with_capacity(1 + RECEIVE_TARGETS_MAX),
            len: 0,
            binds: [0; BATCH],
            bind_count: 0,
        })
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets what is in it.
    pub(super) fn clear(&mut self) {
        (self.len, self.bind_count) = (0, 0);
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.len < BATCH
    }

    /// One more request, without memory, for which there is room.
    #[inline]
    pub(super) fn push_send(&mut self, opcode: sys::ibv_wr_opcode) -> Send<'_> {
        let (request, piece) = (&mut self.sends[self.len], &mut self.pieces[self.len]);
        self.len += 1;
        (request.opcode, request.send_flags, request.num_sge) = (opcode, 0, 0);
        Send { request, piece }
    }

    /// Notes that the request pushed next binds the window of an exposure.
    #[inline]
    pub(super) fn note_bind(&mut self, slot: u16) {
        self.binds[self.bind_count] = slot;
        self.bind_count += 1;
    }

    /// The exposures whose windows the requests just posted bind.
    #[inline]
    pub(super) fn take_binds(&mut self) -> impl Iterator<Item = u16> {
        let count = std::mem::take(&mut self.bind_count);
        self.binds[..count].iter().copied()
    }

    /// One more Receive, for which there is room.
    #[inline]
    pub(super) fn push_receive(&mut self, receive: &Receive) {
        self.pieces[self.len] = receive.piece;
        self.receives[self.len] = receive.request;
        self.len += 1;
    }

    /// A target of the Receive pushed before, which is alone in the batch.
    pub(super) fn push_target(&mut self, base: *mut u8, len: u32, lkey: u32) {
        if self.scattered.is_empty() {
            self.scattered.push(self.pieces[0]);
        }
        self.scattered.push(sys::ibv_sge { addr: base as u64, length: len, lkey });
    }

    /// Posts a Receive with all of its targets; the batch is empty then.
    ///
    /// # Safety
    ///
    /// As for `post_sends`.
    pub(super) unsafe fn post_scattered(&mut self, queue_pair: *mut sys::ibv_qp) -> io::Result<()> {
        // One that was posted with no targets is a plain one.
        if !self.scattered.is_empty() {
            self.receives[0].num_sge = self.scattered.len() as libc::c_int;
        }
        let list = if self.scattered.is_empty() { &mut self.pieces[..] } else { &mut self.scattered[..] };
        let request = &mut self.receives[0];
        (request.next, request.sg_list) = (ptr::null_mut(), list.as_mut_ptr());
        let mut bad = ptr::null_mut();
        // SAFETY: one request, whose list lives through the call; the rest is the caller's word.
        let returned = unsafe { sys::ibv_post_recv(queue_pair, request, &mut bad) };
        self.len = 0;
        self.scattered.clear();
        match returned {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }

    /// Posts the Sends of the batch, which is empty then.
    ///
    /// # Safety
    ///
    /// `queue_pair` is one that exists. The memory that the requests name stays, and is accessed only as their
    /// kind allows, until they complete or the queue pair is destroyed.
    pub(super) unsafe fn post_sends(&mut self, queue_pair: *mut sys::ibv_qp) -> io::Result<()> {
        let count = std::mem::take(&mut self.len);
        let (first, pieces) = (self.sends.as_mut_ptr(), self.pieces.as_mut_ptr());
        for at in 0..count {
            // SAFETY: `at < count`, which the arrays hold.
            unsafe {
                (*first.add(at)).next = if at + 1 < count { first.add(at + 1) } else { ptr::null_mut() };
                (*first.add(at)).sg_list = pieces.add(at);
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a list of `count` requests that live through the call; the rest is the caller's word.
        match unsafe { sys::ibv_post_send(queue_pair, first, &mut bad) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }

    /// Posts the Receives of the batch, which is empty then.
    ///
    /// # Safety
    ///
    /// As for `post_sends`.
    pub(super) unsafe fn post_receives(&mut self, queue_pair: *mut sys::ibv_qp) -> io::Result<()> {
        let count = std::mem::take(&mut self.len);
        let (first, pieces) = (self.receives.as_mut_ptr(), self.pieces.as_mut_ptr());
        for at in 0..count {
            // SAFETY: as in `post_sends`.
            unsafe {
                (*first.add(at)).next = if at + 1 < count { first.add(at + 1) } else { ptr::null_mut() };
                (*first.add(at)).sg_list = pieces.add(at);
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: as in `post_sends`.
        match unsafe { sys::ibv_post_recv(queue_pair, first, &mut bad) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }
}

/// The work request of a Receive into one piece of memory.
pub(super) struct Receive {
    /// Alone, and without its list, which is made when it is posted.
    request: sys::ibv_recv_wr,
    piece: sys::ibv_sge,
}

impl Default for Receive {
    /// One without memory.
    fn default() -> Receive {
        Receive {
            request: sys::ibv_recv_wr {
                wr_id: 0,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            },
            piece: sys::ibv_sge { addr: 0, length: 0, lkey: 0 },
        }
    }
}

impl Receive {
    /// One into `len` octets at `base`.
    #[inline]
    pub(super) fn new(id: WorkId, base: *mut u8, len: u32, lkey: u32) -> Receive {
        let mut receive = Receive::default();
        (receive.request.wr_id, receive.request.num_sge) = (id.pack(), libc::c_int::from(len > 0));
        receive.piece = sys::ibv_sge { addr: base as u64, length: len, lkey };
        receive
    }

    /// Posts it to a shared queue, alone.
    ///
    /// # Safety
    ///
    /// `queue` is one that exists. The memory that the request names stays, and is accessed only as its kind
    /// allows, until it completes or the queue is destroyed.
    #[inline]
    pub(super) unsafe fn post_shared(&mut self, queue: *mut sys::ibv_srq) -> io::Result<()> {
        let mut bad = ptr::null_mut();
        self.request.sg_list = &raw mut self.piece;
        // SAFETY: a request that lives through the call; the rest is the caller's word.
        match unsafe { sys::ibv_post_srq_recv(queue, &mut self.request, &mut bad) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }

    /// Posts it to a queue pair, alone.
    ///
    /// # Safety
    ///
    /// As for `post_shared`, with the queue pair for the queue.
    #[inline]
    pub(super) unsafe fn post(&mut self, queue_pair: *mut sys::ibv_qp) -> io::Result<()> {
        let mut bad = ptr::null_mut();
        self.request.sg_list = &raw mut self.piece;
        // SAFETY: a request that lives through the call; the rest is the caller's word.
        match unsafe { sys::ibv_post_recv(queue_pair, &mut self.request, &mut bad) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }
}

/// The id of a work request at the device: whose it is, and which of its queue.
///
/// ```text
/// 63        62..48           47..32              31..0
/// receive   queue pair slot  its generation      count of the queue's requests
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId {
    pub(super) is_receive: bool,
    pub(super) slot: u32,
    pub(super) generation: u16,
    pub(super) sequence: u32,
}

/// The slot that stands for the shared Receives.
pub(super) const SHARED_SLOT: u32 = (1 << 15) - 1;
/// Queue pairs that ids can tell apart.
pub(super) const SLOTS_MAX: u32 = SHARED_SLOT;

impl WorkId {
    #[inline]
    pub(super) fn pack(self) -> u64 {
        u64::from(self.is_receive) << 63
            | u64::from(self.slot & SHARED_SLOT) << 48
            | u64::from(self.generation) << 32
            | u64::from(self.sequence)
    }

    /// That id with this count in place of its own.
    #[inline]
    pub(super) fn with_sequence(id: u64, sequence: u32) -> u64 {
        id & !u64::from(u32::MAX) | u64::from(sequence)
    }

    #[inline]
    pub(super) fn unpack(id: u64) -> WorkId {
        WorkId {
            is_receive: id >> 63 != 0,
            slot: (id >> 48) as u32 & SHARED_SLOT,
            generation: (id >> 32) as u16,
            sequence: id as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_as_they_were() {
        for is_receive in [false, true] {
            for (slot, generation, sequence) in
                [(0, 0, 0), (SHARED_SLOT, u16::MAX, u32::MAX), (5, 7, 1 << 31)]
            {
                let id = WorkId { is_receive, slot, generation, sequence };
                assert_eq!(WorkId::unpack(id.pack()), id);
                let other = WorkId::with_sequence(id.pack(), 77);
                assert_eq!(WorkId::unpack(other), WorkId { sequence: 77, ..id });
            }
        }
    }
}
