//! CRC32C, in pieces: an FPDU's header, payload and padding lie in different places.

/// Octets from which on the wide algorithm wins over one instruction for each 8 octets (measured; it has to be set up).
#[cfg(target_arch = "x86_64")]
const WIDE_FROM: usize = 1024;

/// A CRC on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crc(u32);

impl Crc {
    /// Of nothing yet.
    pub(super) const START: Crc = Crc(!0);

    /// With more octets.
    #[inline]
    pub(super) fn update(self, octets: &[u8]) -> Crc {
        #[cfg(target_arch = "x86_64")]
        if octets.len() < WIDE_FROM && std::arch::is_x86_feature_detected!("sse4.2") {
            // SAFETY: the processor has SSE4.2, as just asked (the answer is cached by std).
            return Crc(unsafe { narrow(self.0, octets) });
        }
        Crc(wide(self.0, octets))
    }

    /// The CRC. It is stored least significant octet first (5044-4.4-a).
    #[inline]
    pub(super) fn finish(self) -> u32 {
        !self.0
    }
}

/// The CRC of all that there is.
#[inline]
pub(super) fn crc32c(octets: &[u8]) -> u32 {
    Crc::START.update(octets).finish()
}

fn wide(state: u32, octets: &[u8]) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    let mut digest = crc_fast::Digest::new_with_init_state(algorithm, u64::from(state));
    digest.update(octets);
    !(digest.finalize() as u32)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn narrow(state: u32, octets: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let (words, rest) = octets.as_chunks::<8>();
    let mut crc = u64::from(state);
    for word in words {
        crc = _mm_crc32_u64(crc, u64::from_le_bytes(*word));
    }
    rest.iter().fold(crc as u32, |crc, &octet| _mm_crc32_u8(crc, octet))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 5044-4.4-a: against the plain one of `wire`, which is tested against the published vectors.
    #[test]
    fn any_length_in_any_pieces() {
        let octets: Vec<u8> = (0..2000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for len in (0..300).chain([511, 512, 1000, 2000]) {
            let octets = &octets[..len];
            let expected = stag_wire::mpa::crc32c(octets);
            assert_eq!(crc32c(octets), expected, "{len} octets");
            for cut in [0, 1, 7, 8, len / 2, len.saturating_sub(3)] {
                let (one, two) = octets.split_at(cut.min(len));
                assert_eq!(
                    Crc::START.update(one).update(two).finish(),
                    expected,
                    "{len} octets cut at {cut}"
                );
            }
        }
    }
}
