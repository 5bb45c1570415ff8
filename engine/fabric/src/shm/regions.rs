//! Memory of arenas: our registered ones, and those of peers, mapped here.

use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use super::mapped::{MappedCharge, MappedMemory};
use super::pages::file_status;
use crate::FabricError;

/// The error of a connection for which the kernel has no memory, or no watch.
pub(super) fn no_memory(source: std::io::Error) -> FabricError {
    FabricError::System { doing: "map the memory of a connection, or watch its socket".to_owned(), source }
}

/// Most arenas of one provider: their descriptors travel in one message.
pub(super) const REGIONS_MAX: usize = 32;

/// An arena of a peer, mapped writable. Unmapped when the last connection to its owner is gone.
///
/// No reference is made into it, only pointers: the peer writes there, too.
pub(super) struct Region {
    map: MmapRaw,
    file: (u64, u64),
    _charge: MappedCharge,
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
pub(super) struct Regions {
    mapped: Vec<Weak<Region>>,
    account: Arc<MappedMemory>,
}

impl Regions {
    /// None yet. What is mapped counts in the account of this process.
    pub(super) fn new() -> Regions {
        Regions { mapped: Vec::new(), account: MappedMemory::of_process() }
    }

    /// How many are mapped.
    #[cfg(all(test, not(loom), not(miri)))]
    pub(super) fn mapped(&self) -> usize {
        self.mapped.iter().filter(|region| region.strong_count() > 0).count()
    }

    /// Counts other memory of a peer of `user` that is about to be mapped.
    ///
    /// # Errors
    ///
    /// As of [`MappedMemory::charge`].
    pub(super) fn charge(&self, user: u32, octets: u64) -> Result<MappedCharge, FabricError> {
        self.account.charge(user, octets)
    }

    /// Maps the arena behind `fd`, which a peer of `user` sent, or finds it mapped. The caller checked that it is sealed and this long.
    ///
    /// # Errors
    ///
    /// [`FabricError::Limit`]: too much is mapped already. [`FabricError::System`]: the kernel refused.
    pub(super) fn map(&mut self, fd: BorrowedFd<'_>, len: u64, user: u32) -> Result<Rc<Region>, FabricError> {
        let status = file_status(fd).map_err(no_memory)?;
        // A memfd's device and inode name it as long as it is open or mapped anywhere.
        #[allow(clippy::useless_conversion)] // their types differ between architectures
        let file = (u64::from(status.st_dev), u64::from(status.st_ino));
        self.mapped.retain(|region| region.strong_count() > 0);
        let is_it = |region: &Rc<Region>| region.file == file && region.map.len() as u64 >= len;
        if let Some(region) = self.mapped.iter().filter_map(Weak::upgrade).find(is_it) {
            return Ok(region);
        }
        let charge = self.account.charge(user, len)?;
        let map = usize::try_from(len).map_err(|_| std::io::ErrorKind::InvalidInput.into());
        let map = map.and_then(|len| MmapOptions::new().len(len).map_raw(&fd)).map_err(no_memory)?;
        let region = Rc::new(Region { map, file, _charge: charge });
        self.mapped.push(Rc::downgrade(&region));
        Ok(region)
    }
}
