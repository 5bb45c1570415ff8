//! The memory of a connection: two memfds, each written by one side only.
//!
//! Each side makes the memory that it writes, and passes it to the peer, which maps it **read-only**; seals
//! keep it so. So a peer can send us wrong values, but cannot change ours, and each side sizes its own part.
//!
//! ```text
//!   0     head      u64   how far this side has read the peer's ring
//!   64    epoch     u64   odd while this side touches the peer's exposed memory
//!   128   sleeping  u32   1 while this side sleeps
//!   132   closed    u32   why this side closed; 0 while it is open
//!   256   kills     u32 for each exposure of this side: how often it was killed
//!   page  ring      mapped twice, back to back
//! ```

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::ring;
use crate::QueuePairCapacity;

const HEAD: usize = 0;
const EPOCH: usize = 64;
const SLEEPING: usize = 128;
const CLOSED: usize = 132;
const KILLS: usize = 256;
const PAGE: usize = 4096;

/// Bytes of a ring, unless large messages need more.
const RING_LEN_DEFAULT: u32 = 16 * 1024;
/// Largest message.
pub(super) const MESSAGE_LEN_MAX: u32 = 1 << 20;

/// The sizes of one side's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of the ring: a power of two, at least a page.
    pub(super) ring_len: u32,
    /// Exposures of the side that owns the part.
    pub(super) exposures: u32,
}

impl Layout {
    /// Of our part of a connection.
    pub(super) fn of(capacity: &QueuePairCapacity) -> Layout {
        let ring_len = ring::ring_len(capacity.send_len_max, RING_LEN_DEFAULT);
        Layout { ring_len, exposures: capacity.exposures }
    }

    /// Largest ring: that of the largest message.
    pub(super) const RING_LEN_MAX: u32 = ring::ring_len(MESSAGE_LEN_MAX, 0);
    /// Most exposures of a queue pair.
    pub(super) const EXPOSURES_MAX: u32 = 4096;

    /// Whether the sizes make sense: they may come from the peer.
    pub(super) fn is_valid(self) -> bool {
        self.ring_len.is_power_of_two()
            && self.ring_len as usize >= PAGE
            && self.ring_len <= Self::RING_LEN_MAX
            && self.exposures <= Self::EXPOSURES_MAX
    }

    fn control_len(self) -> usize {
        (KILLS + 4 * self.exposures as usize).next_multiple_of(PAGE)
    }

    /// Bytes of the memfd.
    pub(super) fn file_len(self) -> usize {
        self.control_len() + self.ring_len as usize
    }

    /// Bytes of address space of a mapped part: the ring is mapped twice.
    pub(super) fn mapped_len(self) -> usize {
        self.file_len() + self.ring_len as usize
    }
}

/// A mapped part: ours, writable; or the peer's, read-only.
///
/// Invariants: `base` is the start of a mapping of `layout.control_len() + 2 * layout.ring_len` bytes,
/// unmapped by `drop` only. The control words are touched by atomic operations only, in both processes.
pub(super) struct Part {
    base: *mut u8,
    layout: Layout,
}

impl Part {
    /// Makes and maps our part, all zeroes, and the descriptor to pass to the peer.
    pub(super) fn create(layout: Layout) -> io::Result<(Part, OwnedFd)> {
        debug_assert!(layout.is_valid());
        let fd = memory(c"stag-shm-connection", layout.file_len())?;
        let part = Part::map(fd.as_fd(), layout, libc::PROT_READ | libc::PROT_WRITE)?;
        // From here on the file cannot be mapped writable again. Since Linux 5.1; without it the peer maps it
        // read-only all the same, as it trusts us with as much.
        // SAFETY: as above. A failure changes nothing.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
        Ok((part, fd))
    }

    /// Maps the peer's part. The caller checked `layout`, and that the file is sealed and this long.
    pub(super) fn open(fd: BorrowedFd<'_>, layout: Layout) -> io::Result<Part> {
        Part::map(fd, layout, libc::PROT_READ)
    }

    // By the system calls themselves: memmap2 maps at no address of our choice, which the second view of the ring needs.
    fn map(fd: BorrowedFd<'_>, layout: Layout, protection: libc::c_int) -> io::Result<Part> {
        let (control_len, ring_len) = (layout.control_len(), layout.ring_len as usize);
        // The address range first, so that the two views of the ring can be put side by side into it.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), layout.mapped_len(), libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // From here on `drop` unmaps it all.
        let part = Part { base: base.cast(), layout };
        for (at, len, offset) in
            [(0, control_len + ring_len, 0), (control_len + ring_len, ring_len, control_len)]
        {
            let is_populated = protection & libc::PROT_WRITE != 0 || layout.file_len() <= SHORT_LEN_MAX;
            let populate = if is_populated { libc::MAP_POPULATE } else { 0 };
            let flags = libc::MAP_SHARED | libc::MAP_FIXED | populate;
            // SAFETY: MAP_FIXED replaces `at..at + len` of the range that was just reserved: both add up
            // to its length, and nothing points into it yet.
            let mapped = unsafe {
                libc::mmap(
                    part.base.add(at).cast(),
                    len,
                    protection,
                    flags,
                    fd.as_raw_fd(),
                    offset as libc::off_t,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(part)
    }

    #[inline(always)]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is a multiple of 4 below `control_len`, so inside of the mapping, which lives as
        // long as `self`; all accesses are atomic. Words of a read-only part are only ever loaded, and
        // relaxed (see `Word::load_acquire`), which the language allows for read-only memory.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) }
    }

    #[inline(always)]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `word32`, with a multiple of 8.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// How far the owner has read.
    #[inline(always)]
    pub(super) fn head(&self) -> &AtomicU64 {
        self.word64(HEAD)
    }

    /// Odd while the owner accesses the other side's exposed memory.
    #[inline(always)]
    pub(super) fn epoch(&self) -> &AtomicU64 {
        self.word64(EPOCH)
    }

    /// 1 while the owner sleeps.
    #[inline(always)]
    pub(super) fn sleeping(&self) -> &AtomicU32 {
        self.word32(SLEEPING)
    }

    /// Why the owner closed; 0 while it has not.
    pub(super) fn closed(&self) -> &AtomicU32 {
        self.word32(CLOSED)
    }

    /// How often the owner's exposure `index` was killed. `index` is below the layout's `exposures`.
    #[inline(always)]
    pub(super) fn kills(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.layout.exposures as usize, "an exposure's index is below the table's length");
        self.word32(KILLS + 4 * index)
    }

    /// The ring's first byte; `2 * ring_len` bytes are mapped from there.
    pub(super) fn ring(&self) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.base.add(self.layout.control_len()) }
    }

    /// The sizes.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let len = self.layout.mapped_len();
        // SAFETY: the range that `map` reserved; the rings and words into it die with their connection,
        // which owns this part.
        unsafe { libc::munmap(self.base.cast(), len) };
    }
}

/// Makes `len` bytes of memory that peers can map: zeroes, of a length that stays.
pub(super) fn memory(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string, and flags that exist.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
    // SAFETY: just made, it has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an open descriptor.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) })?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: an open descriptor; the argument is an int.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(fd)
}

/// The pages that received memory may lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AllowedPages {
    /// Base pages only.
    Base,
    /// Reserved hugepages, too.
    Hugepages,
}

/// Checks that a received descriptor is a memfd of exactly `len` bytes, which are whole pages and cannot become fewer or
/// more. Then we can map it, and unmap it, and a file that shrinks cannot kill us by SIGBUS. None of the system calls here waits.
///
/// The exact length bounds how long a peer can make us wait: while it punches a hole, a page fault anywhere in the hole
/// waits. A peer may punch holes into memory that it may write. On base pages the hole reads as zeroes; on a reserved hugepage our
/// next access needs a free hugepage, or kills us.
pub(super) fn check_memory(fd: BorrowedFd<'_>, len: u64, allowed: AllowedPages) -> Result<(), &'static str> {
    const FIXED: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let seals = seals(fd).ok_or(NOT_A_MEMFD)?;
    if seals & FIXED != FIXED {
        return Err("a memfd is not sealed; add F_SEAL_SHRINK and F_SEAL_GROW");
    }
    let page = page_len(fd).ok_or(NOT_A_MEMFD)?;
    if page != PAGE as u64 && allowed == AllowedPages::Base {
        return Err(
            "a memfd lies on reserved hugepages, which are taken only for arenas, and only from processes of this \
                    side's own user; use pages of 4 KiB",
        );
    }
    if len == 0 || !len.is_multiple_of(page) {
        return Err("a memfd's length, as the message says it, is not a whole number of pages");
    }
    if file_status(fd).map_or(true, |status| status.st_size as u64 != len) {
        return Err("a memfd is longer or shorter than its message says");
    }
    Ok(())
}

/// The longest part of a connection into which a peer may punch holes, each of which takes some 40 µs; and the longest that is
/// populated when it is mapped. The pages of a longer one come as they are used, and count for the process that wrote to them first.
const SHORT_LEN_MAX: usize = 64 * 1024;

/// As [`check_memory`], for the peer's part of a connection, which each pass may look at.
pub(super) fn check_part(fd: BorrowedFd<'_>, layout: Layout) -> Result<(), &'static str> {
    let len = layout.file_len() as u64;
    check_memory(fd, len, AllowedPages::Base)?;
    if len > SHORT_LEN_MAX as u64 && seals(fd).is_none_or(|seals| seals & libc::F_SEAL_FUTURE_WRITE == 0) {
        return Err(
            "a connection's memfd of more than 64 KiB is not sealed against holes; add F_SEAL_FUTURE_WRITE",
        );
    }
    Ok(())
}

/// Why a descriptor is refused that is no memory at all.
pub(super) const NOT_A_MEMFD: &str = "a descriptor is not a memfd";

/// The seals of a file in memory. `None`: it is another kind of file.
pub(super) fn seals(fd: BorrowedFd<'_>) -> Option<libc::c_int> {
    // SAFETY: an open descriptor. On anything but a file in memory it fails.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    (seals >= 0).then_some(seals)
}

/// The length of a file's pages.
fn page_len(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut status = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: an open descriptor and room for the answer.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), status.as_mut_ptr()) }).ok()?;
    // SAFETY: filled in, as the call succeeded.
    u64::try_from(unsafe { status.assume_init() }.f_bsize).ok()
}

/// `fstat`.
pub(super) fn file_status(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: an open descriptor and room for the answer.
    check(unsafe { libc::fstat(fd.as_raw_fd(), status.as_mut_ptr()) })?;
    // SAFETY: filled in, as the call succeeded.
    Ok(unsafe { status.assume_init() })
}

/// The error of a system call that returned -1.
pub(super) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { ring_len: 16384, exposures: 64 };

    #[test]
    fn the_ring_is_its_own_mirror_and_the_peer_sees_it() {
        let (ours, fd) = Part::create(LAYOUT).unwrap();
        assert_eq!(check_part(fd.as_fd(), LAYOUT), Ok(()));
        let theirs = Part::open(fd.as_fd(), LAYOUT).unwrap();
        // SAFETY: `2 * ring_len` bytes are mapped; one thread.
        unsafe {
            ours.ring().add(5).write_volatile(42);
            assert_eq!(ours.ring().add(16384 + 5).read_volatile(), 42);
            assert_eq!(theirs.ring().add(16384 + 5).read_volatile(), 42);
        }
    }

    #[test]
    fn the_peer_cannot_make_it_writable_nor_shorter() {
        let (_ours, fd) = Part::create(LAYOUT).unwrap();
        assert!(Part::map(fd.as_fd(), LAYOUT, libc::PROT_READ | libc::PROT_WRITE).is_err());
        // SAFETY: an open descriptor.
        assert!(check(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }).is_err());
    }

    fn memfd(name: &CStr, len: u64, flags: libc::c_uint, seals: libc::c_int) -> Option<OwnedFd> {
        // SAFETY: a C string, and flags that exist.
        let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING | flags) }).ok()?;
        // SAFETY: just made.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an open descriptor.
        unsafe {
            check(libc::ftruncate(fd.as_raw_fd(), len as libc::off_t)).unwrap();
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals)).unwrap();
        }
        Some(fd)
    }

    const FIXED: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

    #[test]
    fn only_the_exact_length_is_taken() {
        let fd = memfd(c"exact", 8192, 0, FIXED).unwrap();
        for (len, is_taken) in
            [(0, false), (1, false), (4096, false), (8191, false), (8192, true), (12288, false)]
        {
            for allowed in [AllowedPages::Base, AllowedPages::Hugepages] {
                assert_eq!(check_memory(fd.as_fd(), len, allowed).is_ok(), is_taken, "{len}");
            }
        }
        let longer = memfd(c"longer", LAYOUT.file_len() as u64 + 4096, 0, FIXED).unwrap();
        assert!(check_part(longer.as_fd(), LAYOUT).unwrap_err().contains("longer"));
    }

    /// A part on hugepages would be longer than what is reserved for it: the kernel rounds the length of its mappings up.
    #[test]
    fn hugepages_are_taken_for_arenas_alone() {
        // A file of reserved pages takes none before it is mapped.
        let Some(fd) = memfd(c"huge", 2 << 20, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, FIXED) else {
            return stag_testing::skipped("this kernel has no hugepages of 2 MiB");
        };
        assert_eq!(check_memory(fd.as_fd(), 2 << 20, AllowedPages::Hugepages), Ok(()));
        assert!(check_memory(fd.as_fd(), 2 << 20, AllowedPages::Base).unwrap_err().contains("hugepages"));
        assert!(check_memory(fd.as_fd(), 4096, AllowedPages::Hugepages).is_err(), "not a whole page");
    }

    #[test]
    fn a_long_part_is_sealed_against_holes() {
        let long = Layout { ring_len: 1 << 20, exposures: 0 };
        let (_part, fd) = Part::create(long).unwrap();
        assert_eq!(check_part(fd.as_fd(), long), Ok(()));
        let fd = memfd(c"long", long.file_len() as u64, 0, FIXED).unwrap();
        assert!(check_part(fd.as_fd(), long).unwrap_err().contains("holes"));
    }

    #[test]
    fn thirty_two_credits_of_1_kib_fit_64_kib() {
        let ring_len = crate::shm::ring::ring_len(1024, super::RING_LEN_DEFAULT);
        let part = Layout { ring_len, exposures: 32 * 4 };
        assert!(2 * part.file_len() <= 64 * 1024, "{}", 2 * part.file_len());
    }

    #[test]
    fn a_file_that_is_not_sealed_is_refused() {
        for seals in [0, libc::F_SEAL_SHRINK, libc::F_SEAL_GROW] {
            let fd = memfd(c"unsealed", 4096, 0, seals).unwrap();
            assert!(check_memory(fd.as_fd(), 4096, AllowedPages::Base).unwrap_err().contains("not sealed"));
        }
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(check_memory(file.as_fd(), 4096, AllowedPages::Base), Err(NOT_A_MEMFD));
    }
}
