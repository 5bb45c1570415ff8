//! Memory of arenas: our registered ones, and those of peers, mapped here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::rc::{Rc, Weak};

use super::pages::file_status;

/// Most arenas of one provider: their descriptors travel in one message.
pub(super) const REGIONS_MAX: usize = 32;

/// An arena of a peer, mapped writable. Unmapped when the last connection to its owner is gone.
///
/// Invariants: `base` is the start of a mapping of `len` bytes that only `drop` unmaps.
pub(super) struct Region {
    base: *mut u8,
    len: u64,
    file: (u64, u64),
}

impl Region {
    /// Where `len` bytes at `offset` are; `None` if they are not all inside.
    #[inline]
    pub(super) fn range(&self, offset: u64, len: u32) -> Option<*mut u8> {
        let end = offset.checked_add(u64::from(len))?;
        // SAFETY: inside of the mapping, as just checked.
        (end <= self.len).then(|| unsafe { self.base.add(offset as usize) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping that `Regions::map` made. Pointers into it live in the binds of connections,
        // which hold an `Rc` of it.
        unsafe { libc::munmap(self.base.cast(), self.len as usize) };
    }
}

/// The arenas of peers that are mapped now, each once, however many connections lead to its owner.
pub(super) struct Regions(Vec<Weak<Region>>);

impl Regions {
    /// None yet.
    pub(super) fn new() -> Regions {
        Regions(Vec::new())
    }

    /// How many are mapped.
    #[cfg(all(test, not(loom), not(miri)))]
    pub(super) fn mapped(&self) -> usize {
        self.0.iter().filter(|region| region.strong_count() > 0).count()
    }

    /// Maps the arena behind `fd`, or finds it mapped. The caller checked that it is sealed and this long.
    pub(super) fn map(&mut self, fd: BorrowedFd<'_>, len: u64) -> io::Result<Rc<Region>> {
        let status = file_status(fd)?;
        // A memfd's device and inode name it as long as it is open or mapped anywhere.
        #[allow(clippy::useless_conversion)] // their types differ between architectures
        let file = (u64::from(status.st_dev), u64::from(status.st_ino));
        self.0.retain(|region| region.strong_count() > 0);
        let mapped = self.0.iter().filter_map(Weak::upgrade).find(|r| r.file == file && r.len >= len);
        if let Some(region) = mapped {
            return Ok(region);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), len as usize, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let region = Rc::new(Region { base: base.cast(), len, file });
        self.0.push(Rc::downgrade(&region));
        Ok(region)
    }
}
