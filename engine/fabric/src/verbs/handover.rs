//! Connection requests that go from one provider to another of this process, before they have a queue pair.
//!
//! The one that lets a request go moves its identifier to the other's event channel (`rdma_migrate_id`). It does so in its own
//! pass, and is the only one that takes events from the old channel, so no event is under way there meanwhile. Events of the
//! identifier may reach the other provider before the request does, when the client gave up. That provider remembers the
//! number until the request comes.
//!
//! The device needs no care: librdmacm opens each once in a process, so the identifier leads to the other's device if both
//! are on the same. If they are not, making the queue pair fails, and the client is refused.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::identifiers::EventChannel;
use super::setup::reason_octets;
use super::{INCOMING_MAX, Incoming, Verbs};
use crate::setup::check_limit;
use crate::{ConnectRequestId, FabricError};

/// Numbers of requests, each used once in the process as long as it matters: those of one provider mean nothing at another.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// A number for a request.
pub(super) fn next_number() -> u32 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Where the connection manager tells a [`Verbs`] what happens: what others need to release requests to it.
#[derive(Clone)]
pub struct VerbsDestination(pub(super) Arc<EventChannel>);

impl fmt::Debug for VerbsDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerbsDestination")
    }
}

/// A connection request that goes from one [`Verbs`] to another. Dropping it refuses the client.
pub struct VerbsHandover(Incoming);

// SAFETY: its identifier has no queue pair (checked in `release_request`), so nothing in it is counted without atomics. librdmacm
// may be called from several threads, and the identifier has no other user.
unsafe impl Send for VerbsHandover {}

impl fmt::Debug for VerbsHandover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerbsHandover({})", self.0.number)
    }
}

impl Verbs {
    pub(super) fn release_request(
        &mut self,
        request: ConnectRequestId,
        to: &VerbsDestination,
    ) -> Option<VerbsHandover> {
        let at = self.incoming.iter().position(|incoming| u64::from(incoming.number) == request.0)?;
        let mut incoming = self.incoming.swap_remove(at);
        assert!(!incoming.cm.has_queue_pair(), "`prepare` takes a request out before it makes one");
        if let Err(error) = incoming.cm.migrate(&to.0) {
            tracing::warn!("a connection request cannot be handed over: rdma_migrate_id: {error}");
            incoming.cm.reject(reason_octets("the server could not hand the request over"));
            return None;
        }
        Some(VerbsHandover(incoming))
    }

    pub(super) fn adopt_request(&mut self, handover: VerbsHandover) -> Result<ConnectRequestId, FabricError> {
        let VerbsHandover(incoming) = handover;
        let number = incoming.number;
        if let Some(at) = self.ended_early.iter().position(|&ended| ended == number) {
            self.ended_early.remove(at);
            return Err(FabricError::Gone("the connection request"));
        }
        let (wanted, limit) = (self.incoming.len() as u64 + 1, INCOMING_MAX as u64);
        if let Err(error) = check_limit("connection requests that wait", wanted, limit, "answer them sooner")
        {
            incoming.cm.reject(reason_octets(&error.to_string()));
            return Err(error);
        }
        self.incoming.push(incoming);
        Ok(ConnectRequestId(number.into()))
    }

    /// A request that is not here ended: it may be on its way.
    pub(super) fn note_early_end(&mut self, number: u32) {
        if self.ended_early.len() == INCOMING_MAX {
            self.ended_early.pop_front();
        }
        self.ended_early.push_back(number);
    }
}
