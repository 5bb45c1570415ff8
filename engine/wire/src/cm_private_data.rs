//! Private data of a connection request and its accept (RFC 8797): inline thresholds and remote
//! invalidation.
//!
//! Eight octets, not XDR:
//!
//! ```text
//!  0                    4         5       6           7              8
//!  | Format Identifier  | Version | Flags | Send Size | Receive Size |
//! ```

use crate::rpcrdma::INLINE_THRESHOLD_DEFAULT;

mod field {
    use core::ops::Range;
    pub(super) const IDENTIFIER: Range<usize> = 0..4;
    pub(super) const VERSION: usize = 4;
    pub(super) const FLAGS: usize = 5;
    pub(super) const SEND_SIZE: usize = 6;
    pub(super) const RECEIVE_SIZE: usize = 7;
}

/// Octets of the block (8797-4-d).
pub const LEN: usize = 8;

/// The Format Identifier, as it stands on the wire.
pub const IDENTIFIER: [u8; 4] = [0xf6, 0xab, 0x0e, 0x18];

/// The version of the block.
pub const VERSION: u8 = 1;

/// R: remote invalidation supported. The other flags are sent as 0 and ignored.
const FLAG_REMOTE_INVALIDATION: u8 = 0x01;

/// Octets of one step of a size (8797-4.2-a).
const SIZE_UNIT: u32 = 1024;

/// The largest message that a side sends or receives inline: a multiple of 1024, from 1024 to 262144.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InlineSize(u8);

impl InlineSize {
    /// 1024 octets: what is assumed of a side that says nothing (8797-5.1-a).
    pub const MIN: InlineSize = InlineSize(0);
    /// 262144 octets.
    pub const MAX: InlineSize = InlineSize(u8::MAX);

    /// Takes a number of octets, rounded down to what can be told to the peer (8797-4.2-d): use
    /// [`InlineSize::octets`] of the result from here on. Less than 1024 becomes 1024, which every side
    /// has to support (8166-3.3.3-b); more than 262144 becomes 262144.
    #[inline]
    #[must_use]
    pub const fn round_down(octets: u32) -> InlineSize {
        match octets / SIZE_UNIT {
            0 => InlineSize::MIN,
            steps if steps > u8::MAX as u32 => InlineSize::MAX,
            steps => InlineSize((steps - 1) as u8),
        }
    }

    /// Returns the number of octets.
    #[inline]
    #[must_use]
    pub const fn octets(self) -> u32 {
        (self.0 as u32 + 1) * SIZE_UNIT
    }
}

/// What one side tells the other. Holds for the life of the connection (8797-4-b).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// As Requester: every handle it ever exposes may be invalidated by the peer (8797-3.2-a). As Responder:
    /// it can send with invalidate.
    pub remote_invalidation: bool,
    /// The largest message it sends inline.
    pub send_size: InlineSize,
    /// The largest message it can receive: its posted Receives have this size.
    pub receive_size: InlineSize,
}

impl PrivateData {
    /// What is assumed of a side that sent no such block (8797-5.1-a).
    pub const ABSENT: PrivateData =
        PrivateData { remote_invalidation: false, send_size: InlineSize::MIN, receive_size: InlineSize::MIN };

    /// Finds the block in received private data: the first place, at any offset, that has the identifier, a
    /// known version, and all its octets (8797-5.2-a, 8797-5.2-b, 8797-X-1).
    ///
    /// `None` is no error: [`PrivateData::ABSENT`] holds then.
    #[must_use]
    pub fn find(private_data: &[u8]) -> Option<PrivateData> {
        private_data.windows(LEN).find_map(|window| PrivateData::from_wire(window.first_chunk()?))
    }

    fn from_wire(wire: &[u8; LEN]) -> Option<PrivateData> {
        if wire[field::IDENTIFIER] != IDENTIFIER || wire[field::VERSION] != VERSION {
            return None;
        }
        Some(PrivateData {
            remote_invalidation: wire[field::FLAGS] & FLAG_REMOTE_INVALIDATION != 0,
            send_size: InlineSize(wire[field::SEND_SIZE]),
            receive_size: InlineSize(wire[field::RECEIVE_SIZE]),
        })
    }

    /// Returns the block to send. It goes first in the private data, where Linux looks for it (8797-L-1); a
    /// transport without room for it sends none (8797-4-c).
    #[must_use]
    pub const fn to_wire(&self) -> [u8; LEN] {
        let [i0, i1, i2, i3] = IDENTIFIER;
        let flags = if self.remote_invalidation { FLAG_REMOTE_INVALIDATION } else { 0 };
        [i0, i1, i2, i3, VERSION, flags, self.send_size.0, self.receive_size.0]
    }
}

/// What two sides agreed on by what each told the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineThresholds {
    /// Largest message, in octets, from this side to the peer.
    pub send: u32,
    /// Largest message, in octets, from the peer to this side.
    pub receive: u32,
    /// Whether a Responder may use Send with Invalidate (8797-4.1-a, 8797-4.1-c).
    pub remote_invalidation: bool,
}

/// Returns the inline thresholds of a connection: `own` is what this side told, `peer` what it was told, or
/// `None` (8797-4.2-b, 8797-4.2-c, 8797-5.1-a).
///
/// The peer computes the same with the roles exchanged, so both ends agree. A side that told nothing itself
/// passes [`PrivateData::ABSENT`] as `own`.
#[must_use]
pub fn inline_thresholds(own: &PrivateData, peer: Option<&PrivateData>) -> InlineThresholds {
    let peer = peer.unwrap_or(&PrivateData::ABSENT);
    InlineThresholds {
        send: own.send_size.min(peer.receive_size).octets(),
        receive: peer.send_size.min(own.receive_size).octets(),
        remote_invalidation: own.remote_invalidation && peer.remote_invalidation,
    }
}

const _: () = assert!(InlineSize::MIN.octets() == INLINE_THRESHOLD_DEFAULT);
const _: () = assert!(InlineSize::MAX.octets() == 262_144);
