//! RDMA_DONE: tells a Responder that its Read chunk was pulled.
//!
//! RFC 8166 does not use it ([`Header::parse`](super::Header::parse) refuses it). Peers that agreed on reliable replies
//! ([`crate::reliable_reply`]) send one for each Reply whose Payload stream the Responder exposed (RR-4.1.3-a).

use super::header::Fixed;
use super::{DONE_LEN, VERSION, procedure};
use crate::xdr::Overflow;

/// An RDMA_DONE of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The xid of the Reply whose Read chunk is no longer needed.
    pub xid: u32,
    /// Credits that the Requester asks for. The receiver ignores them (RR-P-10).
    pub credits: u32,
}

impl Done {
    /// Reads `message` if it is an RDMA_DONE of version 1. Octets behind its 16 are ignored (8166-X-5).
    #[inline]
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Done> {
        let (fixed, _) = Fixed::parse(message).ok()?;
        let is_done = fixed.version == VERSION && fixed.procedure == procedure::DONE;
        is_done.then_some(Done { xid: fixed.xid, credits: fixed.credits })
    }

    /// Writes the 16 octets of the message at the start of `buf`, and returns their number.
    ///
    /// # Errors
    ///
    /// [`Overflow`] when `buf` is shorter.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, Overflow> {
        let place = buf.first_chunk_mut().ok_or(Overflow)?;
        let Done { xid, credits } = *self;
        *place = Fixed { xid, version: VERSION, credits, procedure: procedure::DONE }.to_wire();
        Ok(DONE_LEN)
    }
}
