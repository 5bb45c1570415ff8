//! A device that is taken away: noticing it, and letting go of it.
//!
//! The connection manager tells it to whoever has a connection, and to a listener at an address of that device; not to
//! one that listens everywhere. So it is also looked for in sysfs, twice a second.
//!
//! A driver that cannot part from its users (in the kernel's words, that has no `disassociate_ucontext`: rxe, siw) waits
//! until nobody has the device open, and `rdma link delete` with it. librdmacm closes a device that is gone only when it
//! finds another. So the last provider that gives it up takes the kernel's files from under librdmacm.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::objects::Device;

/// The contexts that providers of this process use: librdmacm opens a device once for all of them.
static CLAIMS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// An opened device that a provider uses, or did until it was taken away.
pub(super) struct Claim {
    device: Device,
    /// Where sysfs has it while it is there; empty for a device that is not in sysfs.
    path: PathBuf,
}

impl Claim {
    pub(super) fn new(device: Device) -> Claim {
        // In a container there may be no sysfs, and libibverbs names a place in it all the same.
        let path = device.path().filter(|path| path.exists()).unwrap_or_default();
        let claim = Claim { device, path };
        claim.with(|claims, context| claims.push(context));
        claim
    }

    fn with<T>(&self, f: impl FnOnce(&mut Vec<usize>, usize) -> T) -> T {
        f(&mut CLAIMS.lock().unwrap_or_else(PoisonError::into_inner), self.device.as_ptr() as usize)
    }

    /// Whether the device can be looked for.
    pub(super) fn is_visible(&self) -> bool {
        !self.path.as_os_str().is_empty()
    }

    /// Whether the device was taken away.
    pub(super) fn is_gone(&self) -> bool {
        self.is_visible() && !self.path.exists()
    }

    /// Gives up a device that is gone, of which nothing is left here.
    pub(super) fn let_go(self) {
        let is_last =
            self.with(|claims, context| claims.iter().filter(|&&claim| claim == context).count() == 1);
        if !is_last {
            return;
        }
        match std::fs::File::open("/dev/null") {
            Ok(nothing) => self.device.replace_descriptors(nothing.as_raw_fd()),
            Err(error) => tracing::warn!("the RDMA device stays open, though it is gone: {error}"),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.with(|claims, context| {
            if let Some(at) = claims.iter().position(|&claim| claim == context) {
                claims.swap_remove(at);
            }
        });
    }
}
