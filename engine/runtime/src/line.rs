//! Lines: what a lane carries between reactors, and records of up to eight of them.

use std::slice;

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
pub struct LaneRecord {
    /// As they go through the lane: the length, then the octets of the record.
    lines: [Line; LaneRecord::LINES_MAX],
}

impl Default for LaneRecord {
    fn default() -> LaneRecord {
        LaneRecord { lines: [Line([0; 8]); LaneRecord::LINES_MAX] }
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
        self.lines[0].0[0] as usize
    }

    /// Says how many octets the record has; those from the old length on are of any value.
    ///
    /// # Panics
    ///
    /// If `len` is more than [`LaneRecord::LEN_MAX`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= LaneRecord::LEN_MAX, "a record of {len} octets (at most {})", LaneRecord::LEN_MAX);
        self.lines[0].0[0] = len as u64;
    }

    /// The octets.
    #[inline]
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        // SAFETY: the lines are words side by side without padding, so that all of their octets are initialised, and are borrowed as
        // long as the slice lives. Any address is aligned for octets.
        let all =
            unsafe { slice::from_raw_parts(self.lines.as_ptr().cast::<u8>(), size_of_val(&self.lines)) };
        &all[WORD_LEN..][..self.len()]
    }

    /// All [`LaneRecord::LEN_MAX`] octets, to write a record into. [`LaneRecord::set_len`] says afterwards how many count.
    #[inline]
    pub fn buffer(&mut self) -> &mut [u8] {
        // SAFETY: as in `octets`; and any octets make words.
        let all = unsafe {
            slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast::<u8>(), size_of_val(&self.lines))
        };
        &mut all[WORD_LEN..]
    }
}

impl LaneWriter<Line> {
    /// Puts a record behind the others, all of it or nothing. `false`: there is too little room.
    ///
    /// The reader does not see it before `publish`.
    #[inline]
    #[must_use]
    pub fn push_record(&mut self, record: &LaneRecord) -> bool {
        self.push_all(&record.lines[..LaneRecord::lines_for(record.len())])
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
        let Some(len) = self.peek(|first| first.0[0] as usize) else { return false };
        assert!(len <= LaneRecord::LEN_MAX, "a lane of records has a line that is none (length {len})");
        // The lines of a record are published together, so that the first is seen with the others.
        let is_whole = self.pop_all(&mut record.lines[..LaneRecord::lines_for(len)]);
        assert!(is_whole, "a lane of records has a line that is none (length {len})");
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
