//! A protection domain, in which the provider's arenas are registered.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use stag_memory::Arena;
use stag_rdma_core_sys as sys;

use super::objects::{Device, MemoryRegion, ProtectionDomain};

/// What a standing exposure lets peers do.
pub(super) const STANDING: sys::ibv_access_flags =
    sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_WRITE;

/// A protection domain and the arenas in it.
pub(super) struct Domain {
    /// For each of the provider's arenas: its region, and more of the same where exposures are standing, because
    /// exposures of one queue pair at one time have handles of their own.
    regions: RefCell<Vec<Vec<MemoryRegion>>>,
    pub(super) domain: Rc<ProtectionDomain>,
}

impl Domain {
    pub(super) fn new(
        device: &Device,
        arenas: &[Arena],
        access: sys::ibv_access_flags,
    ) -> io::Result<Domain> {
        let domain = Rc::new(ProtectionDomain::new(device)?);
        let domain = Domain { regions: RefCell::new(Vec::new()), domain };
        for arena in arenas {
            domain.register(arena, access)?;
        }
        Ok(domain)
    }

    /// Registers one more arena. The provider keeps it for as long as its domains.
    pub(super) fn register(&self, arena: &Arena, access: sys::ibv_access_flags) -> io::Result<()> {
        // SAFETY: mapped while the arena lives, which the provider holds, and drops after its domains. The
        // device writes only what a work request or an exposure names, and these own what they name.
        let region = unsafe { MemoryRegion::new(&self.domain, arena.base().as_ptr(), arena.len(), access) }?;
        self.regions.borrow_mut().push(vec![region]);
        Ok(())
    }

    /// The key under which all of an arena is open to peers, for the exposure in `slot`; at its first use that takes
    /// a registration. `at` is the place of `arena` among the provider's.
    pub(super) fn standing_rkey(&self, at: usize, arena: &Arena, slot: u16) -> io::Result<u32> {
        let regions = &mut self.regions.borrow_mut()[at];
        while regions.len() <= usize::from(slot) {
            // SAFETY: as in `register`. Peers could write what was not exposed, and while it is read here; the user
            // of `ExposureKind::Standing` vouches that they do not.
            let region =
                unsafe { MemoryRegion::new(&self.domain, arena.base().as_ptr(), arena.len(), STANDING) };
            regions.push(region?);
        }
        Ok(regions[usize::from(slot)].rkey())
    }

    /// The local key of an arena.
    #[inline]
    pub(super) fn lkey(&self, arena: usize) -> u32 {
        self.regions.borrow()[arena][0].lkey()
    }

    /// The region of an arena, for a window to be bound in it.
    #[inline]
    pub(super) fn region(&self, arena: usize) -> *mut sys::ibv_mr {
        self.regions.borrow()[arena][0].as_ptr()
    }
}
