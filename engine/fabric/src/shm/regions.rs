//! Memory of arenas: our registered ones, and those of peers, mapped here.

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};

use memmap2::{MmapOptions, MmapRaw};

use super::pages::file_status;

/// Most arenas of one provider: their descriptors travel in one message.
pub(super) const REGIONS_MAX: usize = 32;

/// An arena of a peer, mapped writable. Unmapped when the last connection to its owner is gone.
///
/// No reference is made into it, only pointers: the peer writes there, too.
pub(super) struct Region {
    map: MmapRaw,
    file: (u64, u64),
}

impl Region {
    /// Where `len` bytes at `offset` are; `None` if they are not all inside.
    #[inline]
    pub(super) fn range(&self, offset: u64, len: u32) -> Option<*mut u8> {
        let end = offset.checked_add(u64::from(len))?;
        // SAFETY: inside of the mapping, as just checked. Pointers into it live in the binds of connections, which hold
        // an `Rc` of it.
        (end <= self.map.len() as u64).then(|| unsafe { self.map.as_mut_ptr().add(offset as usize) })
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
        let mapped =
            self.0.iter().filter_map(Weak::upgrade).find(|r| r.file == file && r.map.len() as u64 >= len);
        if let Some(region) = mapped {
            return Ok(region);
        }
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let region = Rc::new(Region { map: MmapOptions::new().len(len).map_raw(&fd)?, file });
        self.0.push(Rc::downgrade(&region));
        Ok(region)
    }
}
