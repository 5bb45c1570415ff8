//! DDP, Direct Data Placement (RFC 5041): the segment header at the start of each ULPDU.
//!
//! ```text
//!  tagged    0         1       2       6           14
//!            | control | ULP   | STag  | TO        | payload
//!  untagged  0         1       2       6    10    14    18
//!            | control | ULP   | ULP   | QN | MSN | MO  | payload
//! ```
//!
//! The octets marked ULP belong to the protocol above, [`rdmap`](crate::rdmap).

/// T: tagged.
const FLAG_TAGGED: u8 = 0x80;
/// L: last segment of its message.
const FLAG_LAST: u8 = 0x40;
/// The version in the control octet.
const VERSION_MASK: u8 = 0x03;

/// The version of this module (5041-a).
pub const VERSION: u8 = 1;

/// Octets of a tagged segment's header.
pub const TAGGED_LEN: usize = 14;

/// Octets of an untagged segment's header.
pub const UNTAGGED_LEN: usize = 18;

/// Why a segment was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DdpError {
    /// The ULPDU ends before its header does. There is no code for it: the lengths of the layer below lie.
    Truncated,
    /// Another version, in a tagged segment.
    TaggedVersion,
    /// Another version, in an untagged segment.
    UntaggedVersion,
}

impl core::fmt::Display for DdpError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            DdpError::Truncated => "the segment ends before its header does",
            DdpError::TaggedVersion | DdpError::UntaggedVersion => "a DDP version other than 1",
        })
    }
}

/// Header of a segment that says itself where its payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// L: last segment of its message.
    pub last: bool,
    /// The control octet of the protocol above.
    pub control: u8,
    /// Steering tag.
    pub stag: u32,
    /// Tagged offset.
    pub offset: u64,
}

/// Header of a segment that goes to the buffer at the head of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// L: last segment of its message.
    pub last: bool,
    /// The control octet of the protocol above.
    pub control: u8,
    /// Four more octets of the protocol above.
    pub ulp: u32,
    /// Queue number.
    pub queue: u32,
    /// Message sequence number: from 1 on, for each queue (5041-c).
    pub msn: u32,
    /// Message offset: octets of the message in earlier segments (5041-d).
    pub offset: u32,
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DdpHeader {
    /// T=1.
    Tagged(Tagged),
    /// T=0.
    Untagged(Untagged),
}

/// Octets of the header whose control octet this is.
#[inline]
#[must_use]
pub const fn header_len(control: u8) -> usize {
    if control & FLAG_TAGGED != 0 { TAGGED_LEN } else { UNTAGGED_LEN }
}

impl DdpHeader {
    /// Splits a ULPDU into its header and payload.
    #[inline]
    pub fn parse(ulpdu: &[u8]) -> Result<(DdpHeader, &[u8]), DdpError> {
        let Some(&control) = ulpdu.first() else { return Err(DdpError::Truncated) };
        let last = control & FLAG_LAST != 0;
        if control & FLAG_TAGGED != 0 {
            let (header, payload) = ulpdu.split_first_chunk::<TAGGED_LEN>().ok_or(DdpError::Truncated)?;
            if control & VERSION_MASK != VERSION {
                return Err(DdpError::TaggedVersion);
            }
            let [_, control, s0, s1, s2, s3, o0, o1, o2, o3, o4, o5, o6, o7] = *header;
            let stag = u32::from_be_bytes([s0, s1, s2, s3]);
            let offset = u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
            Ok((DdpHeader::Tagged(Tagged { last, control, stag, offset }), payload))
        } else {
            let (header, payload) = ulpdu.split_first_chunk::<UNTAGGED_LEN>().ok_or(DdpError::Truncated)?;
            if control & VERSION_MASK != VERSION {
                return Err(DdpError::UntaggedVersion);
            }
            let [_, control, u0, u1, u2, u3, q0, q1, q2, q3, m0, m1, m2, m3, o0, o1, o2, o3] = *header;
            let header = Untagged {
                last,
                control,
                ulp: u32::from_be_bytes([u0, u1, u2, u3]),
                queue: u32::from_be_bytes([q0, q1, q2, q3]),
                msn: u32::from_be_bytes([m0, m1, m2, m3]),
                offset: u32::from_be_bytes([o0, o1, o2, o3]),
            };
            Ok((DdpHeader::Untagged(header), payload))
        }
    }

    /// Octets of the header.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            DdpHeader::Tagged(_) => TAGGED_LEN,
            DdpHeader::Untagged(_) => UNTAGGED_LEN,
        }
    }

    /// A header is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

#[inline]
const fn control(tagged: bool, last: bool) -> u8 {
    VERSION | if tagged { FLAG_TAGGED } else { 0 } | if last { FLAG_LAST } else { 0 }
}

impl Tagged {
    /// Returns the header as octets.
    #[inline]
    #[must_use]
    pub const fn to_wire(&self) -> [u8; TAGGED_LEN] {
        let [s0, s1, s2, s3] = self.stag.to_be_bytes();
        let [o0, o1, o2, o3, o4, o5, o6, o7] = self.offset.to_be_bytes();
        [control(true, self.last), self.control, s0, s1, s2, s3, o0, o1, o2, o3, o4, o5, o6, o7]
    }
}

impl Untagged {
    /// Returns the header as octets.
    #[inline]
    #[must_use]
    pub const fn to_wire(&self) -> [u8; UNTAGGED_LEN] {
        let [u0, u1, u2, u3] = self.ulp.to_be_bytes();
        let [q0, q1, q2, q3] = self.queue.to_be_bytes();
        let [m0, m1, m2, m3] = self.msn.to_be_bytes();
        let [o0, o1, o2, o3] = self.offset.to_be_bytes();
        let first = control(false, self.last);
        [first, self.control, u0, u1, u2, u3, q0, q1, q2, q3, m0, m1, m2, m3, o0, o1, o2, o3]
    }
}

/// DDP's error types, and their codes, in a Terminate of layer 1 (RFC 5041 section 7).
pub mod code {
    /// Error type: tagged buffer.
    pub const TAGGED: u8 = 1;
    /// Tagged: invalid STag.
    pub const TAGGED_STAG: u8 = 0;
    /// Tagged: base or bounds.
    pub const TAGGED_BOUNDS: u8 = 1;
    /// Tagged: the STag is not associated with this stream.
    pub const TAGGED_STREAM: u8 = 2;
    /// Tagged: the tagged offset wraps.
    pub const TAGGED_WRAP: u8 = 3;
    /// Tagged: version.
    pub const TAGGED_VERSION: u8 = 4;
    /// Error type: untagged buffer.
    pub const UNTAGGED: u8 = 2;
    /// Untagged: invalid queue number.
    pub const UNTAGGED_QUEUE: u8 = 1;
    /// Untagged: no buffer for this message.
    pub const UNTAGGED_NO_BUFFER: u8 = 2;
    /// Untagged: the message sequence number is not in range.
    pub const UNTAGGED_MSN: u8 = 3;
    /// Untagged: the message offset is invalid.
    pub const UNTAGGED_OFFSET: u8 = 4;
    /// Untagged: the message is longer than the buffer.
    pub const UNTAGGED_TOO_LONG: u8 = 5;
    /// Untagged: version.
    pub const UNTAGGED_VERSION: u8 = 6;
}
