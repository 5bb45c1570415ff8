//! Predicts where TCP cuts the stream into segments, because siw misreads a CRC that spans two (siw-23).
//!
//! Octets of one system call are not joined with those of the next (`MSG_EOR`), so TCP cuts them at multiples of the
//! segment size from the first octet. An FPDU whose padding and CRC would lie across a cut is made shorter; its message
//! goes on in one more. The prediction can be wrong: the segment size changes, and octets that the socket took later may
//! be cut elsewhere. Then siw ends a connection, once in a long while.

use stag_wire::mpa;

/// By how much an FPDU is made shorter: more than padding and CRC, and payloads stay aligned.
const STEP: u32 = 8;
/// Segments that are shorter than this are no segments.
const SEGMENT_LEN_MIN: usize = 64;

/// The cuts of one connection's outgoing stream.
#[derive(Clone, Copy, Default)]
pub(super) struct Cuts {
    /// Octets from one to the next; 0: they do not matter.
    every: usize,
    /// Octets laid since one.
    at: usize,
}

impl Cuts {
    /// They matter if CRCs are used; `segment_len` is TCP's, 0 if it is not known.
    pub(super) fn new(crc: bool, segment_len: usize) -> Cuts {
        Cuts { every: if crc && segment_len >= SEGMENT_LEN_MIN { segment_len } else { 0 }, at: 0 }
    }

    pub(super) fn matter(&self) -> bool {
        self.every > 0
    }

    /// How many of `len` octets the next FPDU should have behind a DDP header of `header_len` octets, `len` or a little less.
    #[inline]
    pub(super) fn fit(&self, header_len: usize, len: u32) -> u32 {
        if self.every == 0 || len <= STEP {
            return len;
        }
        let ulpdu_len = header_len + len as usize;
        let trailer = self.at + mpa::LENGTH_LEN + ulpdu_len;
        let end = trailer + mpa::pad_len(ulpdu_len) + mpa::CRC_LEN;
        let next_cut = (trailer / self.every + 1) * self.every;
        if next_cut < end { len - STEP } else { len }
    }

    /// Whether `len` octets can be laid without a cut among them.
    #[inline(always)]
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.every == 0 || self.at + len <= self.every
    }

    /// An FPDU of `len` octets was made.
    #[inline]
    pub(super) fn laid(&mut self, len: usize) {
        if self.every > 0 {
            self.at = (self.at + len) % self.every;
        }
    }

    /// The socket took all that was made: the next octet begins a segment.
    #[inline]
    pub(super) fn restart(&mut self) {
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_LEN: usize = stag_wire::ddp::TAGGED_LEN;

    /// Where padding and CRC of an FPDU with `len` octets of payload begin and end.
    fn trailer(at: usize, len: u32) -> (usize, usize) {
        let ulpdu_len = HEADER_LEN + len as usize;
        let begin = at + mpa::LENGTH_LEN + ulpdu_len;
        (begin, begin + mpa::pad_len(ulpdu_len) + mpa::CRC_LEN)
    }

    fn is_cut((begin, end): (usize, usize), every: usize) -> bool {
        (begin + 1..end).any(|octet| octet % every == 0)
    }

    /// siw-23: wherever in a segment an FPDU begins, and however long it is.
    #[test]
    fn no_crc_lies_across_a_cut() {
        let mut shortened = 0;
        for every in [64, 1448, 1460] {
            for at in (0..every).step_by(4) {
                for len in STEP + 1..3 * every as u32 {
                    let mut cuts = Cuts::new(true, every);
                    cuts.laid(at);
                    let fit = cuts.fit(HEADER_LEN, len);
                    assert!(!is_cut(trailer(at, fit), every), "every {every}, at {at}, len {len}");
                    let was_cut = is_cut(trailer(at, len), every);
                    let expected = if was_cut { len - STEP } else { len };
                    assert_eq!(fit, expected, "every {every}, at {at}, len {len}");
                    shortened += u32::from(was_cut);
                }
            }
        }
        assert!(shortened > 0);
    }

    #[test]
    fn a_call_that_took_all_begins_a_segment() {
        let mut cuts = Cuts::new(true, 1448);
        cuts.laid(1000);
        cuts.restart();
        // The CRC at 1446 to 1450 from there.
        let len = (1446 - mpa::LENGTH_LEN - HEADER_LEN) as u32;
        assert_eq!(cuts.fit(HEADER_LEN, len), len - STEP);
    }

    #[test]
    fn without_crcs_nothing_changes() {
        for (crc, segment_len) in [(false, 1448), (true, 0)] {
            let cuts = Cuts::new(crc, segment_len);
            assert!(!cuts.matter());
            assert!((0..5000).all(|len| cuts.fit(HEADER_LEN, len) == len));
        }
    }
}
