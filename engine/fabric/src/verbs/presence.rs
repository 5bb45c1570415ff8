//! The providers that share a device of this process: they pass its events on to each other, and let go of it when it is
//! taken away.
//!
//! The connection manager tells every provider with a connection, and a listener at an address of that device; not a
//! listener at all addresses. So it is also looked for in sysfs, twice a second.
//!
//! A driver that cannot part from its users (in the kernel's words, that has no `disassociate_ucontext`: rxe, siw)
//! waits until the device is open in no process, and `rdma link delete` with it. librdmacm closes a device that is gone
//! only when it finds another. So the last provider that gives it up takes the kernel's files from under librdmacm.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::objects::{AsyncEvent, Device};

/// The contexts that providers of this process use, each with its provider's inbox: librdmacm opens a device once for all of
/// them.
static CLAIMS: Mutex<Vec<(usize, Arc<Inbox>)>> = Mutex::new(Vec::new());

/// Events that wait for a provider at most. A provider that does not poll for that long has worse to fear.
const PASSED_ON_MAX: usize = 1024;

/// The device's events that other providers got.
type Inbox = Mutex<Vec<AsyncEvent>>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An opened device that a provider uses, or did until it was taken away.
pub(super) struct Claim {
    device: Device,
    inbox: Arc<Inbox>,
    /// Where sysfs has it while it is there; empty for a device that is not in sysfs.
    path: PathBuf,
}

impl Claim {
    pub(super) fn new(device: Device) -> Claim {
        // In a container there may be no sysfs, and libibverbs names a place in it all the same.
        let path = device.path().filter(|path| path.exists()).unwrap_or_default();
        let claim = Claim { device, inbox: Arc::default(), path };
        locked(&CLAIMS).push((claim.context(), Arc::clone(&claim.inbox)));
        claim
    }

    fn context(&self) -> usize {
        self.device.as_ptr() as usize
    }

    /// Gives an event to the other providers on the device.
    pub(super) fn pass_on(&self, event: AsyncEvent) {
        let claims = locked(&CLAIMS);
        let is_other = |inbox: &Arc<Inbox>| !Arc::ptr_eq(inbox, &self.inbox);
        for (_, inbox) in claims.iter().filter(|(at, inbox)| *at == self.context() && is_other(inbox)) {
            let mut events = locked(inbox);
            if events.len() < PASSED_ON_MAX {
                events.push(event);
            }
        }
    }

    /// The events that others got. While one of them is putting some in, this does not wait: the next pass finds
    /// them.
    #[inline]
    pub(super) fn take_passed_on(&self) -> Vec<AsyncEvent> {
        match self.inbox.try_lock() {
            Ok(mut events) => std::mem::take(&mut *events),
            Err(TryLockError::Poisoned(events)) => std::mem::take(&mut *events.into_inner()),
            Err(TryLockError::WouldBlock) => Vec::new(),
        }
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
        let users = locked(&CLAIMS).iter().filter(|(context, _)| *context == self.context()).count();
        if users > 1 {
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
        locked(&CLAIMS).retain(|(_, inbox)| !Arc::ptr_eq(inbox, &self.inbox));
    }
}
