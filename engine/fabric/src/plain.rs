//! Messages without chunks, as providers find them: see [`PlainMessage`](crate::PlainMessage).

use stag_wire::rpcrdma::{HEADER_LEN_MIN, VERSION};

use crate::PLAIN_LEN_MAX;

/// Octets of their header.
pub(crate) const PLAIN_LEN: usize = HEADER_LEN_MIN;

/// What they are known by: that header, and the xid of the Payload stream behind it.
pub(crate) const PLAIN_LOOK_LEN: usize = PLAIN_LEN + 4;

/// The version of RPC-over-RDMA, in the order of the wire.
pub(crate) const PLAIN_VERSION: u32 = VERSION.to_be();

/// The credits of a message without chunks that is short enough to be shown in place. `None`: it is none.
#[inline(always)]
pub(crate) fn plain_credits(message: &[u8]) -> Option<u32> {
    let look = message.first_chunk().filter(|_| message.len() <= PLAIN_LEN + PLAIN_LEN_MAX)?;
    plain_wire_credits(look).map(u32::from_be)
}

/// The credits of a message without chunks of any length that starts so, in the order of the wire. `None`: it is none.
#[inline(always)]
pub(crate) fn plain_wire_credits(look: &[u8; PLAIN_LOOK_LEN]) -> Option<u32> {
    let word = |at: usize| u32::from_ne_bytes([look[at], look[at + 1], look[at + 2], look[at + 3]]);
    // xid, version, credits, procedure RDMA_MSG; no Read list, no Write list, no Reply chunk; xid. All but xid and credits is
    // constant.
    let differs = word(4) ^ PLAIN_VERSION | word(12) | word(16) | word(20) | word(24) | word(28) ^ word(0);
    (differs == 0).then(|| word(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_chunks_is_recognized() {
        let mut message = [0; PLAIN_LEN + PLAIN_LEN_MAX + 1];
        (message[3], message[7], message[11], message[31]) = (9, 1, 5, 9);
        assert_eq!(plain_credits(&message[..PLAIN_LEN + 3]), None);
        assert_eq!(plain_credits(&message[..PLAIN_LEN + 4]), Some(5));
        assert_eq!(plain_credits(&message[..PLAIN_LEN + PLAIN_LEN_MAX]), Some(5));
        assert_eq!(plain_credits(&message), None);
        for at in (0..8).chain(12..32) {
            message[at] ^= 0x10;
            assert_eq!(plain_credits(&message[..64]), None, "octet {at}");
            message[at] ^= 0x10;
        }
    }
}
