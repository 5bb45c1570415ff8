//! What the two sides of a connection agreed on in the MPA exchange.

/// What two sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// CRCs are generated and checked (5044-7.1-c).
    pub(super) crc: bool,
    /// Read Requests of the peer at once.
    pub(super) ird: u32,
    /// Read Requests of ours at once.
    pub(super) ord: u32,
    /// Octets of a TCP segment; 0: not known.
    pub(super) segment_len: usize,
    /// Octets of a ULPDU that we send, at most.
    pub(super) ulpdu_len_max: usize,
    /// The peer's first message may be a Send of no octets for which no Receive is posted (6581-9-b).
    pub(super) swallows_send: bool,
    /// We are the accepting side, and may not send before the peer did (5044-7.1-f).
    pub(super) waits: bool,
}
