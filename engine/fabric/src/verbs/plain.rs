//! The memory in which messages without chunks are built.

use std::io;
use std::ptr::{self, NonNull};

use stag_rdma_core_sys as sys;
use stag_wire::rpcrdma::VERSION;

use super::domain::Domain;
use super::objects::MemoryRegion;
use super::work::WorkId;
use crate::plain::PLAIN_LEN;
use crate::{PLAIN_LEN_MAX, QueuePairCapacity, QueuePairId};

/// Octets of a message of ours, rounded up to whole cache lines.
const SLOT_LEN: usize = (PLAIN_LEN + PLAIN_LEN_MAX).next_multiple_of(64);
/// What the kernel maps at least.
const PAGE_LEN: usize = 4096;
/// Messages of ours that may be on their way at once, at most: those of a pass, and an interval that is done unnoticed.
const SLOTS_MAX: usize = 64;

/// A slot's work request, of which only id, flags and length change, and the piece of memory that it names.
#[repr(C)]
struct SlotRequest {
    request: sys::ibv_send_wr,
    piece: sys::ibv_sge,
}

/// The requests of all slots, a ring: each is followed by the next slot's. They are only reached through `base`, which the pointers in
/// them come from, too.
struct SlotRequests {
    base: NonNull<SlotRequest>,
    count: usize,
}

/// A queue pair's own memory, in which messages without chunks are built and from which the device sends them.
///
/// Slots are used in turns: a Send is done after all those before it.
pub(super) struct PlainBuffers {
    // Its end comes before the memory's.
    _region: MemoryRegion,
    pages: SharedPages,
    slots: u32,
    /// The slot to use next, and how many before it are in use: the device does not have them yet, or may still read them.
    next: u32,
    used: u32,
    /// The first slot that the device does not have yet.
    handed: u32,
    /// By slot.
    requests: SlotRequests,
}

impl PlainBuffers {
    /// Octets of memory that such a queue pair takes for it: none, if its peer takes only shorter messages.
    pub(super) fn footprint(capacity: &QueuePairCapacity) -> usize {
        let len = PlainBuffers::len(capacity);
        len + PlainBuffers::slots(len) * size_of::<SlotRequest>()
    }

    /// Octets of the slots, in whole pages.
    fn len(capacity: &QueuePairCapacity) -> usize {
        let is_wide = capacity.send_len_max as usize >= PLAIN_LEN + PLAIN_LEN_MAX;
        let slots = if is_wide { (capacity.sends as usize).min(SLOTS_MAX) } else { 0 };
        (slots * SLOT_LEN).next_multiple_of(PAGE_LEN)
    }

    /// Slots in `len` octets.
    fn slots(len: usize) -> usize {
        (len / SLOT_LEN).min(SLOTS_MAX)
    }

    /// The buffers of a queue pair with that name and capacity, registered in its domain; `None` if they have a footprint of 0.
    pub(super) fn new(
        domain: &Domain,
        id: QueuePairId,
        capacity: &QueuePairCapacity,
    ) -> io::Result<Option<PlainBuffers>> {
        let len = PlainBuffers::len(capacity);
        if len == 0 {
            return Ok(None);
        }
        let pages = SharedPages::new(len)?;
        // SAFETY: mapped for as long as `pages` lives, which is dropped behind the region. The device only reads it.
        let region = unsafe { MemoryRegion::new(&domain.domain, pages.base.as_ptr(), len, 0) }?;
        let slots = PlainBuffers::slots(len);
        let requests = SlotRequests::new(id, &region, pages.base.as_ptr(), slots);
        Ok(Some(PlainBuffers {
            _region: region,
            pages,
            slots: slots as u32,
            next: 0,
            used: 0,
            handed: 0,
            requests,
        }))
    }

    #[inline]
    pub(super) fn has_space(&self) -> bool {
        self.used < self.slots
    }

    /// Where the Payload stream of the next message is built, if a slot is free.
    #[inline]
    pub(super) fn space(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the slot lies in `pages`, which is mapped and initialized (new pages are zeros). It is free: the device
        // reads it no more, and who borrows `self` is the only one to look into it.
        self.has_space().then(|| unsafe {
            std::slice::from_raw_parts_mut(self.slot(self.next).add(PLAIN_LEN), PLAIN_LEN_MAX)
        })
    }

    /// Takes the slot of the space given last, with a header for the `len` octets that were built in it.
    #[inline]
    pub(super) fn take(&mut self, credits: u32, len: usize) {
        assert!(self.has_space() && (4..=PLAIN_LEN_MAX).contains(&len), "{len} octets without space");
        let number = self.next;
        // SAFETY: as in `space`: the slot has room for the header and the stream, both are aligned to 4 octets, and the
        // stream's first octets, the xid, are initialized.
        unsafe {
            let header = self.slot(number).cast::<[u32; PLAIN_LEN / 4]>();
            let xid = header.add(1).cast::<u32>().read();
            header.write([xid, VERSION.to_be(), credits.to_be(), 0, 0, 0, 0]);
        }
        // SAFETY: there is no other reference to the request.
        unsafe { (*self.requests.at(number)).piece.length = (PLAIN_LEN + len) as u32 };
        self.next = self.behind(number);
        self.used += 1;
    }

    /// Posts `count` of the oldest messages that the device does not have yet, all of them built, with one call. The first of
    /// them has the number `sequence`; `asks` tells of each whether it asks for a completion.
    ///
    /// # Safety
    ///
    /// `queue_pair` is that of the domain and the name that the buffers were made with, and it exists.
    #[inline]
    pub(super) unsafe fn post(
        &mut self,
        queue_pair: *mut sys::ibv_qp,
        count: u32,
        sequence: u32,
        inline_len: u32,
        mut asks: impl FnMut(u32) -> bool,
    ) -> io::Result<()> {
        let first = self.requests.at(self.handed);
        let mut last = first;
        for sequence in (0..count).map(|at| sequence.wrapping_add(at)) {
            last = self.requests.at(self.handed);
            self.handed = self.behind(self.handed);
            // SAFETY: there is no other reference to the request.
            let SlotRequest { request, piece } = unsafe { &mut *last };
            let mut flags = if piece.length <= inline_len { sys::IBV_SEND_INLINE } else { 0 };
            if asks(sequence) {
                flags |= sys::IBV_SEND_SIGNALED;
            }
            request.send_flags = flags;
            request.wr_id = WorkId::with_sequence(request.wr_id, sequence);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a list that ends with `last`. Its requests name slots, which stay as they are until the device has done them
        // (`give_back`) or its queue pair is destroyed. The rest is the caller's word.
        let returned = unsafe {
            let behind = std::mem::replace(&mut (*last).request.next, ptr::null_mut());
            let returned = sys::ibv_post_send(queue_pair, first.cast(), &mut bad);
            (*last).request.next = behind;
            returned
        };
        match returned {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }

    /// `count` of the oldest slots that were taken are free again: the device has done them.
    #[inline]
    pub(super) fn give_back(&mut self, count: u32) {
        self.used -= count;
    }

    #[inline]
    fn behind(&self, number: u32) -> u32 {
        if number + 1 == self.slots { 0 } else { number + 1 }
    }

    #[inline]
    fn slot(&self, number: u32) -> *mut u8 {
        assert!(number < self.slots, "slot {number}");
        // SAFETY: the mapping has `slots` slots.
        unsafe { self.pages.base.as_ptr().add(number as usize * SLOT_LEN) }
    }
}

impl SlotRequests {
    /// The requests of `slots` slots at `base`.
    fn new(id: QueuePairId, region: &MemoryRegion, base: *mut u8, slots: usize) -> SlotRequests {
        let id = WorkId { is_receive: false, slot: id.index, generation: id.generation as u16, sequence: 0 };
        let requests: Box<[SlotRequest]> = (0..slots)
            .map(|number| {
                // SAFETY: numbers, pointers and unions of them, for which all zeros is a value.
                let mut request: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
                (request.wr_id, request.opcode, request.num_sge) = (id.pack(), sys::IBV_WR_SEND, 1);
                let addr = base.wrapping_add(number * SLOT_LEN) as u64;
                SlotRequest { request, piece: sys::ibv_sge { addr, length: 0, lkey: region.lkey() } }
            })
            .collect();
        let requests = SlotRequests { base: NonNull::from(Box::leak(requests)).cast(), count: slots };
        for number in 0..slots {
            let next = if number + 1 == slots { 0 } else { number + 1 };
            let (own, next) = (requests.at(number as u32), requests.at(next as u32));
            // SAFETY: both are there, and there is no reference to them.
            unsafe {
                (*own).request.next = &raw mut (*next).request;
                (*own).request.sg_list = &raw mut (*own).piece;
            }
        }
        requests
    }

    /// That of a slot.
    #[inline]
    fn at(&self, number: u32) -> *mut SlotRequest {
        assert!((number as usize) < self.count, "slot {number}");
        // SAFETY: there are `count` of them.
        unsafe { self.base.as_ptr().add(number as usize) }
    }
}

impl Drop for SlotRequests {
    fn drop(&mut self) {
        let requests = ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.count);
        // SAFETY: `new` leaked this box; the device is done with them, which copies a request when it is posted.
        drop(unsafe { Box::from_raw(requests) });
    }
}

/// Anonymous memory that a fork shares instead of copying, as the device does not follow copies.
struct SharedPages {
    base: NonNull<u8>,
    len: usize,
}

impl SharedPages {
    fn new(len: usize) -> io::Result<SharedPages> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping at an address of the kernel's choice, which replaces nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(SharedPages { base, len })
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; everything that points into it borrows from, or is dropped before, us.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
