//! The flag that asks reactors to stop.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::event::Event;

/// Asks reactors to end, and wakes those that sleep. Clones are the same flag.
///
/// Once requested it stays so.
#[derive(Clone, Debug)]
pub struct StopFlag {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    requested: AtomicBool,
    /// Signalled once and never cleared, so that it wakes every reactor that sleeps on it.
    event: Event,
}

impl StopFlag {
    /// A flag that is not requested. Fails when the process has no descriptor left.
    pub fn new() -> io::Result<StopFlag> {
        Ok(StopFlag { shared: Arc::new(Shared { requested: AtomicBool::new(false), event: Event::new()? }) })
    }

    /// Asks for the stop.
    ///
    /// Async-signal-safe: a signal handler may call it. (But it must not drop the last clone: that
    /// frees memory.)
    pub fn request(&self) {
        // Release pairs with the acquire in `is_requested`.
        self.shared.requested.store(true, Ordering::Release);
        self.shared.event.signal();
    }

    /// Whether a stop was asked for.
    #[inline]
    #[must_use]
    pub fn is_requested(&self) -> bool {
        // Acquire pairs with the release in `request`: what was written before it is seen.
        self.shared.requested.load(Ordering::Acquire)
    }

    /// Readable from the request on.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.shared.event.descriptor()
    }
}
