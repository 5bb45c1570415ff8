//! Lines: what a lane carries between reactors, and records of up to eight of them.

use crate::lane::{LaneReader, LaneWriter};

const LINE_LEN: usize = 64;
const WORD_LEN: usize = 8;

/// One cache line of eight words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [u64; 8]);

/// A buffer for one record: octets that go through a lane as 1 to 8 lines, the first word of which is their length.
///
/// Keep one for each direction and use it again: 512 octets are too many to make anew for each record.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct LaneRecord {
    /// The lines' octets in this machine's order: those of the length, then those of the record.
    octets: [u8; LaneRecord::LINES_MAX * LINE_LEN],
}

impl Default for LaneRecord {
    fn default() -> LaneRecord {
        LaneRecord { octets: [0; LaneRecord::LINES_MAX * LINE_LEN] }
    }
}

impl LaneRecord {
    /// Lines of a record at most.
    pub const LINES_MAX: usize = 8;
    /// Octets of a record at most: those of its lines but the word that says the length.
    pub const LEN_MAX: usize = LaneRecord::LINES_MAX * LINE_LEN - WORD_LEN;

    /// An empty record.
    #[must_use]
    pub fn new() -> LaneRecord {
        LaneRecord::default()
    }

    /// Lines that a record of `len` octets takes.
    #[inline]
    #[must_use]
    pub const fn lines_for(len: usize) -> usize {
        (WORD_LEN + len).div_ceil(LINE_LEN)
    }

    /// Octets of the record.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a record without octets is as good as any")]
    pub fn len(&self) -> usize {
        let (word, _) = self.octets.split_first_chunk::<WORD_LEN>().unwrap_or_else(|| unreachable!());
        u64::from_ne_bytes(*word) as usize
    }

    /// Says how many octets the record has; those from the old length on are of any value.
    ///
    /// # Panics
    ///
    /// If `len` is more than [`LaneRecord::LEN_MAX`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= LaneRecord::LEN_MAX, "a record of {len} octets (at most {})", LaneRecord::LEN_MAX);
        self.octets[..WORD_LEN].copy_from_slice(&(len as u64).to_ne_bytes());
    }

    /// The octets.
    #[inline]
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        &self.octets[WORD_LEN..][..self.len()]
    }

    /// All [`LaneRecord::LEN_MAX`] octets, to write a record into. [`LaneRecord::set_len`] says afterwards how many count.
    #[inline]
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.octets[WORD_LEN..]
    }

    /// Lines of the record.
    #[inline]
    fn lines(&self) -> usize {
        LaneRecord::lines_for(self.len())
    }
}

impl Line {
    #[inline(always)]
    fn from_octets(octets: &[u8; LINE_LEN]) -> Line {
        let (words, _) = octets.as_chunks::<WORD_LEN>();
        let mut line = Line([0; 8]);
        for (to, from) in line.0.iter_mut().zip(words) {
            *to = u64::from_ne_bytes(*from);
        }
        line
    }

    #[inline(always)]
    fn write_to(&self, octets: &mut [u8; LINE_LEN]) {
        let (words, _) = octets.as_chunks_mut::<WORD_LEN>();
        for (to, from) in words.iter_mut().zip(&self.0) {
            *to = from.to_ne_bytes();
        }
    }
}

impl LaneWriter<Line> {
    /// Puts a record behind the others, all of it or nothing. `false`: there is too little room.
    ///
    /// The reader does not see it before `publish`.
    #[inline]
    #[must_use]
    pub fn push_record(&mut self, record: &LaneRecord) -> bool {
        let count = record.lines();
        if !self.has_room(count) {
            return false;
        }
        let (lines, _) = record.octets.as_chunks::<LINE_LEN>();
        for line in &lines[..count] {
            let pushed = self.push(Line::from_octets(line));
            debug_assert!(pushed.is_ok(), "there was room for the whole record");
        }
        true
    }
}

impl LaneReader<Line> {
    /// Takes the oldest published record into `record`. `false`: there is none, and `record` is as it was.
    ///
    /// For lanes that carry records only: [`LaneWriter::push_record`] is what makes the first word a length.
    ///
    /// # Panics
    ///
    /// If the lane has a line that was pushed by itself and is no record.
    #[inline]
    #[must_use]
    pub fn pop_record(&mut self, record: &mut LaneRecord) -> bool {
        let Some(first) = self.pop() else { return false };
        let (lines, _) = record.octets.as_chunks_mut::<LINE_LEN>();
        first.write_to(&mut lines[0]);
        let len = first.0[0] as usize;
        assert!(len <= LaneRecord::LEN_MAX, "a lane of records has a line that is none (length {len})");
        for octets in &mut lines[1..LaneRecord::lines_for(len)] {
            // The lines of a record are published together.
            let line = self.pop().expect("a record in a lane has all of its lines");
            line.write_to(octets);
        }
        true
    }
}

// Not under loom: its atomics work only inside a model.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lane::lane;

    #[test]
    fn a_line_is_a_cache_line() {
        assert_eq!((size_of::<Line>(), align_of::<Line>()), (64, 64));
        assert_eq!((LaneRecord::LEN_MAX, size_of::<LaneRecord>()), (504, 512));
        let lines = [0, 56, 57, 120, 121, LaneRecord::LEN_MAX].map(LaneRecord::lines_for);
        assert_eq!(lines, [1, 1, 2, 2, 3, LaneRecord::LINES_MAX]);
    }

    /// Records of each length, through a lane that they wrap in at each place.
    #[test]
    fn records_of_all_lengths_come_out_as_they_went_in() {
        let (mut writer, mut reader) = lane(16);
        let (mut sent, mut received) = (LaneRecord::new(), LaneRecord::new());
        let step = if cfg!(miri) { 31 } else { 1 };
        for len in (0..=LaneRecord::LEN_MAX).step_by(step) {
            for (at, octet) in sent.buffer()[..len].iter_mut().enumerate() {
                *octet = (at * 7 + len) as u8;
            }
            sent.set_len(len);
            assert!(writer.push_record(&sent));
            assert!(!reader.pop_record(&mut received), "not published");
            assert!(writer.publish());
            assert!(reader.pop_record(&mut received));
            assert_eq!(received.octets(), sent.octets());
            assert!(!reader.pop_record(&mut received), "there is no other");
        }
    }

    #[test]
    fn a_record_goes_in_whole_or_not_at_all() {
        let (mut writer, mut reader) = lane(4);
        let (mut three, mut found) = (LaneRecord::new(), LaneRecord::new());
        three.set_len(150);
        three.buffer()[149] = 9;
        assert!(writer.push_record(&three));
        assert!(!writer.push_record(&three), "one place is left");
        writer.publish();
        assert!(reader.pop_record(&mut found) && found.octets()[149] == 9);
        assert!(!reader.pop_record(&mut found), "nothing of the second is there");
        assert!(writer.push_record(&three));
        assert_eq!(writer.statistics().full, 1);
    }

    #[test]
    #[should_panic(expected = "at most 504")]
    fn a_record_longer_than_its_buffer_is_refused() {
        LaneRecord::new().set_len(505);
    }

    #[test]
    #[should_panic(expected = "has a line that is none")]
    fn a_line_that_is_no_record_is_not_read_as_one() {
        let (mut writer, mut reader) = lane(4);
        assert_eq!(writer.push(Line([505; 8])), Ok(()));
        writer.publish();
        let _ = reader.pop_record(&mut LaneRecord::new());
    }
}
