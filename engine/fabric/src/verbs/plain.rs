//! Where messages without chunks are built.

use std::io;
use std::ptr::{self, NonNull};

use stag_wire::rpcrdma::VERSION;

use super::device::Domain;
use super::objects::MemoryRegion;
use crate::plain::PLAIN_LEN;
use crate::{PLAIN_LEN_MAX, QueuePairCapacity};

/// Octets of a message of ours, rounded up to whole cache lines.
const SLOT_LEN: usize = (PLAIN_LEN + PLAIN_LEN_MAX).next_multiple_of(64);
/// What the kernel maps at least.
const PAGE_LEN: usize = 4096;
/// Messages of ours that may be on their way at once, at most: those of a pass, and an interval that is done unnoticed.
const SLOTS_MAX: usize = 64;

/// A queue pair's own memory, in which messages without chunks are built and from which the device sends them.
///
/// Slots are used in turns: a Send is done after all those before it.
pub(super) struct PlainBuffers {
    // Its end comes before the memory's.
    region: MemoryRegion,
    pages: SharedPages,
    slots: u32,
    /// The slot to use next, and how many before it are in use: the device does not have them yet, or may still read them.
    next: u32,
    used: u32,
    /// The first slot that the device does not have yet.
    handed: u32,
    /// By slot: octets of its message.
    lens: [u16; SLOTS_MAX],
}

impl PlainBuffers {
    /// Octets of memory that such a queue pair takes for it: none, if its peer takes only shorter messages.
    pub(super) fn footprint(capacity: &QueuePairCapacity) -> usize {
        let is_wide = capacity.send_len_max as usize >= PLAIN_LEN + PLAIN_LEN_MAX;
        let slots = if is_wide { (capacity.sends as usize).min(SLOTS_MAX) } else { 0 };
        (slots * SLOT_LEN).next_multiple_of(PAGE_LEN)
    }

    /// The buffers of a queue pair with that capacity, registered in its domain; `None` if they have a footprint of 0.
    pub(super) fn new(domain: &Domain, capacity: &QueuePairCapacity) -> io::Result<Option<PlainBuffers>> {
        let len = PlainBuffers::footprint(capacity);
        if len == 0 {
            return Ok(None);
        }
        let pages = SharedPages::new(len)?;
        // SAFETY: mapped for as long as `pages` lives, which is dropped behind the region. The device only reads it.
        let region = unsafe { MemoryRegion::new(&domain.domain, pages.base.as_ptr(), len, 0) }?;
        let slots = (len / SLOT_LEN).min(SLOTS_MAX) as u32;
        let lens = [0; SLOTS_MAX];
        Ok(Some(PlainBuffers { region, pages, slots, next: 0, used: 0, handed: 0, lens }))
    }

    #[inline]
    pub(super) fn lkey(&self) -> u32 {
        self.region.lkey()
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
        self.lens[number as usize] = (PLAIN_LEN + len) as u16;
        self.next = self.behind(number);
        self.used += 1;
    }

    /// The oldest message that the device does not have yet, of which there is one: it gets it now.
    #[inline]
    pub(super) fn hand_over(&mut self) -> (*const u8, u32) {
        let number = self.handed;
        self.handed = self.behind(number);
        (self.slot(number), u32::from(self.lens[number as usize]))
    }

    /// So many of the oldest slots that were taken are free again: the device has done them.
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
        // SAFETY: our own mapping; whoever points into it borrows from, or is dropped before, us.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
