//! The system calls, each behind a small safe function.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::fs::{fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::page::PageSize;

/// The NUMA nodes that a mask has room for: more than Linux can be built with.
const NODES_MAX: usize = 1024;

/// A memfd that allows seals, on pages of that size.
pub(crate) fn memfd(name: &CStr, page: PageSize) -> io::Result<OwnedFd> {
    // `memfd_create(2)` takes log2 of the page size in the top bits.
    const HUGE_SHIFT: u32 = 26;
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if page.is_reserved() {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(page.bytes().ilog2() << HUGE_SHIFT);
    }
    // Kernels before 6.3 do not know MFD_NOEXEC_SEAL; some later ones are set up to insist on it.
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(memfd_create(name, flags)?),
        result => Ok(result?),
    }
}

pub(crate) fn set_len(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    Ok(ftruncate(fd, len as u64)?)
}

/// Size in bytes, and the size of a page of the file.
pub(crate) fn size(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let stat = fstat(fd)?;
    Ok((stat.st_size as u64, stat.st_blksize as u64))
}

pub(crate) fn add_seals(fd: BorrowedFd<'_>, seals: SealFlags) -> io::Result<()> {
    Ok(fcntl_add_seals(fd, seals)?)
}

pub(crate) fn seals(fd: BorrowedFd<'_>) -> io::Result<SealFlags> {
    Ok(fcntl_get_seals(fd)?)
}

/// Makes the file's pages exist. Unlike a first touch, this fails with an error where there are none.
fn allocate(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    Ok(fallocate(fd, FallocateFlags::empty(), 0, len as u64)?)
}

/// A shared mapping for reading and writing; unmapped when dropped.
pub(crate) struct Region {
    // Invariant: `base..base + len` lies in the live mapping that `owner` ends.
    base: NonNull<u8>,
    len: usize,
    _owner: Owner,
}

/// What unmaps a region.
enum Owner {
    /// At an address of the kernel's choice.
    Anywhere(#[expect(dead_code, reason = "held for its drop")] MmapRaw),
    /// At an aligned address.
    Aligned(#[expect(dead_code, reason = "held for its drop")] Range),
}

/// A range of addresses that was mapped by the system call itself, since memmap2 maps at no address of our choice, and
/// reserves none without access.
struct Range {
    // Invariant: `start..start + len` is mapped, by us, and only `drop` ends that.
    start: NonNull<u8>,
    len: usize,
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the fields' invariant; the users of addresses in it were told that they end here.
        unsafe { unmap(self.start.as_ptr(), self.len) };
    }
}

// SAFETY: an address range that is valid in every thread, and that `Region` itself neither reads nor writes
// but in `touch`, which changes no byte and has `&mut self`.
unsafe impl Send for Region {}
// SAFETY: as above; nothing happens through `&Region` but system calls.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `len` bytes of `fd` at an address that is a multiple of `align`, a power of two.
    pub(crate) fn map(fd: BorrowedFd<'_>, len: usize, align: usize) -> io::Result<Region> {
        let page = PageSize::Base.bytes();
        // Reserved pages are aligned to themselves by the kernel.
        let slack = align.saturating_sub(page);
        let room = len.checked_add(slack).ok_or(io::ErrorKind::InvalidInput)?;
        if slack == 0 {
            let map = MmapOptions::new().len(len).map_raw(&fd)?;
            let base = NonNull::new(map.as_mut_ptr()).ok_or_else(mapped_at_0)?;
            return Ok(Region { base, len, _owner: Owner::Anywhere(map) });
        }
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { map_at(ptr::null_mut(), room, libc::PROT_NONE, reserve, -1)? };
        let reserved = Range { start, len: room };
        let lead = start.addr().get().next_multiple_of(align) - start.addr().get();
        // SAFETY: `lead <= slack`, so all of this is within the range just reserved, which is ours alone. It
        // is replaced by the new mapping, of which `base` is the first byte.
        let base = unsafe {
            let target = start.as_ptr().add(lead).cast();
            map_at(target, len, READ_WRITE, libc::MAP_SHARED | libc::MAP_FIXED, fd.as_raw_fd())?
        };
        std::mem::forget(reserved);
        // SAFETY: the rest of the reserved range, before and after; it is ours alone.
        unsafe {
            unmap(start.as_ptr(), lead);
            unmap(base.as_ptr().add(len), slack - lead);
        }
        Ok(Region { base, len, _owner: Owner::Aligned(Range { start: base, len }) })
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    // By the system call itself, here and below: memmap2 has no name for MADV_COLLAPSE and no mbind, and knows only the
    // mappings that it made.
    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        self.advise_part(0, self.len, advice)
    }

    fn advise_part(&self, at: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        assert!(at <= self.len && len <= self.len - at, "the part lies within the region");
        // SAFETY: a part of our own mapping; none of the advices of this file changes or drops what is in it.
        check(unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), len, advice) }).map(drop)
    }

    /// Asks for transparent hugepages.
    pub(crate) fn advise_huge(&self) -> io::Result<()> {
        self.advise(libc::MADV_HUGEPAGE)
    }

    /// Collapses the mapped pages into transparent hugepages now.
    pub(crate) fn collapse(&self) -> io::Result<()> {
        self.advise(libc::MADV_COLLAPSE)
    }

    /// Makes every page exist and be mapped, writable. The cores that this thread may use share the work of a large region:
    /// nearly all of it is the kernel's, which takes and clears one page after the other.
    pub(crate) fn populate(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self.populate_by(workers(self.len)) {
            // Kernels before 5.14 do not know it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // First in the file, where a lack of pages is an error; in the mapping it would be a signal.
                allocate(fd, self.len)?;
                self.touch();
                Ok(())
            }
            result => result,
        }
    }

    /// Makes the pages exist that `len` bytes from `at` on lie in. On kernels before 5.14, which do not know how, they come with
    /// their first use.
    pub(crate) fn populate_part(&self, at: usize, len: usize) -> io::Result<()> {
        let start = at - at % PageSize::Base.bytes();
        match self.advise_part(start, len + (at - start), libc::MADV_POPULATE_WRITE) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            result => result,
        }
    }

    /// Populates slice after slice on this thread and on as many more as make `workers`; on fewer if threads are refused.
    fn populate_by(&self, workers: usize) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                // Relaxed: the number alone says which slice a thread takes.
                let at = next.fetch_add(SLICE, Ordering::Relaxed);
                if at >= self.len {
                    return Ok(());
                }
                self.advise_part(at, SLICE.min(self.len - at), libc::MADV_POPULATE_WRITE)?;
            }
        };
        thread::scope(|scope| {
            let spawn = |_| thread::Builder::new().name("populate".to_owned()).spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..workers).filter_map(spawn).collect();
            let own = work();
            others.into_iter().fold(own, |result, other| {
                result.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        })
    }

    /// Touches each page, leaving what is in it.
    fn touch(&mut self) {
        for at in (0..self.len).step_by(PageSize::Base.bytes()) {
            // SAFETY: within our mapping; `&mut self`, and the address was not handed out yet, so nothing is
            // lost between the read and the write. Volatile, or the compiler would drop both.
            unsafe {
                let byte = self.base.as_ptr().add(at);
                byte.write_volatile(byte.read_volatile());
            }
        }
    }

    /// Sets the NUMA policy of the memory that the mapping shows: `MPOL_BIND` to `node`, or only
    /// `MPOL_PREFERRED`.
    pub(crate) fn bind(&self, node: u32, strictly: bool) -> io::Result<()> {
        const BITS: usize = libc::c_ulong::BITS as usize;
        let node = node as usize;
        if node >= NODES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut mask: [libc::c_ulong; NODES_MAX / BITS] = [0; NODES_MAX / BITS];
        mask[node / BITS] = 1 << (node % BITS);
        let mode = if strictly { libc::MPOL_BIND } else { libc::MPOL_PREFERRED };
        // SAFETY: our own mapping, and a mask of as many bits as are claimed (the call counts one more).
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                libc::c_long::from(mode),
                mask.as_ptr(),
                NODES_MAX + 1,
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Keeps the pages from being swapped.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: our own mapping; locking changes nothing in it, and unmapping ends it.
        check(unsafe { libc::mlock(self.base.as_ptr().cast(), self.len) }).map(drop)
    }

    /// Keeps the pages from being swapped as they come.
    pub(crate) fn lock_on_fault(&self) -> io::Result<()> {
        // SAFETY: as in `lock`.
        check(unsafe {
            libc::mlock2(self.base.as_ptr().cast(), self.len, libc::MLOCK_ONFAULT as libc::c_uint)
        })
        .map(drop)
    }

    /// Bytes that stand on transparent hugepages, as the kernel reports them; 0 if it does not.
    pub(crate) fn huge_bytes(&self) -> u64 {
        let Ok(smaps) = fs::read_to_string("/proc/self/smaps") else { return 0 };
        let start = self.base.addr().get();
        huge_bytes_in(&smaps, start, start + self.len)
    }
}

/// Adds up `ShmemPmdMapped` of the mappings of `smaps` that lie within `start..end`.
fn huge_bytes_in(smaps: &str, start: usize, end: usize) -> u64 {
    let (mut inside, mut sum) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or("");
        if let Some((from, to)) = first.split_once('-') {
            let parse = |text| usize::from_str_radix(text, 16);
            inside = matches!((parse(from), parse(to)), (Ok(from), Ok(to)) if from >= start && to <= end);
        } else if inside && first == "ShmemPmdMapped:" {
            sum += words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024;
        }
    }
    sum
}

/// What one thread populates at a time. The first thread in a 1 GiB page populates all of it.
const SLICE: usize = 64 << 20;
/// Threads that populate one region, at most: beyond a few the kernel's own locks are the limit.
const WORKERS_MAX: usize = 8;

/// Threads that are worth starting for a region of `len` bytes.
fn workers(len: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    cores.min(WORKERS_MAX).min(len / (2 * SLICE)).max(1)
}

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// # Safety
///
/// With `MAP_FIXED`, the target range is the caller's to replace.
unsafe fn map_at(
    target: *mut libc::c_void,
    len: usize,
    access: libc::c_int,
    flags: libc::c_int,
    fd: libc::c_int,
) -> io::Result<NonNull<u8>> {
    // SAFETY: the caller's word.
    let base = unsafe { libc::mmap(target, len, access, flags, fd, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(mapped_at_0)
}

fn mapped_at_0() -> io::Error {
    io::Error::other("mapped at address 0")
}

/// # Safety
///
/// The range is the caller's, and is no longer used.
unsafe fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller's word. It fails only for a range that is not one of pages, which ours are.
        unsafe { libc::munmap(start.cast(), len) };
    }
}

/// The soft limit of locked memory, in bytes; `None`: unlimited.
pub(crate) fn memlock_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn smaps_are_added_up_within_the_range_only() {
        let smaps = "7f0000000000-7f0000200000 rw-s 0 00:01 1 /memfd:a (deleted)\nSize: 2048 kB\n\
                     ShmemPmdMapped:     2048 kB\nVmFlags: rd\n\
                     7f0000200000-7f0000400000 rw-s 0 00:01 1 /memfd:a (deleted)\nShmemPmdMapped: 1024 kB\n\
                     7f0000400000-7f0000600000 rw-s 0 00:01 1 /memfd:b (deleted)\nShmemPmdMapped: 2048 kB\n";
        assert_eq!(huge_bytes_in(smaps, 0x7f00_0000_0000, 0x7f00_0040_0000), 3 << 20);
        assert_eq!(huge_bytes_in("nonsense\n-\n", 0, usize::MAX), 0);
    }

    #[test]
    fn an_aligned_region_is_aligned_and_whole() {
        let fd = memfd(c"aligned", PageSize::Base).unwrap();
        set_len(fd.as_fd(), 3 << 20).unwrap();
        let mut region = Region::map(fd.as_fd(), 3 << 20, 2 << 20).unwrap();
        assert_eq!(region.base().addr().get() % (2 << 20), 0);
        allocate(fd.as_fd(), region.len()).unwrap();
        // The way of kernels that cannot populate.
        region.touch();
    }

    #[test]
    fn several_threads_populate_every_page_once_and_the_last_slice_may_be_short() {
        let len = 2 * SLICE + 4096;
        let fd = memfd(c"slices", PageSize::Base).unwrap();
        set_len(fd.as_fd(), len).unwrap();
        let region = Region::map(fd.as_fd(), len, 4096).unwrap();
        region.populate_by(3).unwrap();
        assert_eq!(fstat(fd.as_fd()).unwrap().st_blocks as usize * 512, len);
    }

    #[test]
    fn a_node_beyond_any_mask_is_refused() {
        let fd = memfd(c"node", PageSize::Base).unwrap();
        set_len(fd.as_fd(), 4096).unwrap();
        let region = Region::map(fd.as_fd(), 4096, 4096).unwrap();
        assert!(region.bind(1024, true).is_err());
    }
}
