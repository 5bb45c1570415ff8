//! The name of a Call, and whether the peer may still touch its memory.

use crate::plain;

/// Names one Call of one Requester. A stale one is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequesterCallId {
    pub(super) xid: u32,
    pub(super) index: u32,
}

impl RequesterCallId {
    /// The Call's xid, to put first in its Payload stream too (8166-4.2.1-a).
    #[inline]
    #[must_use]
    pub fn xid(self) -> u32 {
        self.xid
    }

    /// Its slot: small and dense, so that the driver can index an array with it.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Whether `payload`, a Payload stream pulled out of a Reply chunk, is this Call's Reply: it starts
    /// with the xid and msg_type REPLY. For inline Replies this was checked already.
    #[inline]
    #[must_use]
    pub fn is_reply(self, payload: &[u8]) -> bool {
        plain::start(payload) == Some((self.xid, plain::REPLY))
    }
}

/// Whether the peer may still touch memory that a Call exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ExposedMemory {
    /// It may: drain [`Requester::poll_fence`](super::Requester::poll_fence), and wait for the fences.
    Exposed,
    /// It cannot: the Call's memory may be handed back.
    Safe,
}
