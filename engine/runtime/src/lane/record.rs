//! Records: the values of a lane between reactors, written and read in place.

use std::slice;

use super::{LINE_LEN, LaneReader, LaneWriter};

const WORD_LEN: usize = 8;

/// A record: octets in a place of a lane of eight cache lines, of which it takes only as many as it fills.
///
/// One outside of a lane is a buffer: keep it and use it again, as 512 octets are too many to make anew for each record.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct LaneRecord {
    /// The length, then the octets of the record.
    words: [u64; LaneRecord::WORDS],
}

impl Default for LaneRecord {
    fn default() -> LaneRecord {
        LaneRecord { words: [0; LaneRecord::WORDS] }
    }
}

impl LaneRecord {
    /// Lines of a record at most.
    pub const LINES_MAX: usize = 8;
    /// Octets of a record at most: those of its lines but the word that says the length.
    pub const LEN_MAX: usize = LaneRecord::LINES_MAX * LINE_LEN - WORD_LEN;

    const WORDS: usize = LaneRecord::LINES_MAX * LINE_LEN / WORD_LEN;

    /// An empty record.
    #[must_use]
    pub fn new() -> LaneRecord {
        LaneRecord::default()
    }

    /// Lines that a record of `len` octets takes.
    #[inline]
    #[must_use]
    pub const fn lines_for(len: usize) -> usize {
        1 + (WORD_LEN - 1 + len) / LINE_LEN
    }

    /// Octets of the record.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a record without octets is as good as any")]
    pub fn len(&self) -> usize {
        self.words[0] as usize
    }

    /// Says how many octets the record has; those from the old length on are of any value.
    ///
    /// # Panics
    ///
    /// If `len` is more than [`LaneRecord::LEN_MAX`].
    #[inline(always)]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= LaneRecord::LEN_MAX, "a record of {len} octets (at most {})", LaneRecord::LEN_MAX);
        self.words[0] = len as u64;
    }

    /// The octets.
    #[inline(always)]
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        // SAFETY: words side by side have no padding, so that all of their octets are initialised, and are borrowed as long as the
        // slice lives. Any address is aligned for octets.
        let all =
            unsafe { slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), size_of_val(&self.words)) };
        &all[WORD_LEN..][..self.len()]
    }

    /// Its first `N` octets; those from its length on are of any value.
    #[inline(always)]
    #[must_use]
    pub fn head<const N: usize>(&self) -> &[u8; N] {
        const { assert!(N <= LaneRecord::LEN_MAX, "a record is not so long") };
        // SAFETY: as in `octets`; and there are as many octets behind the first word.
        unsafe { &*self.words.as_ptr().cast::<u8>().add(WORD_LEN).cast() }
    }

    /// All [`LaneRecord::LEN_MAX`] octets, to write a record into. [`LaneRecord::set_len`] says afterwards how many count.
    #[inline(always)]
    pub fn buffer(&mut self) -> &mut [u8; LaneRecord::LEN_MAX] {
        // SAFETY: the octets behind the first word, as many as there are. As in `octets`; and any octets make words.
        unsafe { &mut *self.words.as_mut_ptr().cast::<u8>().add(WORD_LEN).cast() }
    }

    /// Makes this record what the other is, moving only what counts of it.
    #[inline]
    pub fn copy_from(&mut self, other: &LaneRecord) {
        self.buffer()[..other.len()].copy_from_slice(other.octets());
        self.set_len(other.len());
    }
}

/// The place of the next record of a lane, to write a record there. Dropped, it leaves the lane as it was.
pub struct VacantRecord<'a> {
    record: &'a mut LaneRecord,
    position: &'a mut usize,
    unused_lines: &'a mut usize,
}

impl VacantRecord<'_> {
    /// All octets of the place, of any value.
    #[inline(always)]
    pub fn buffer(&mut self) -> &mut [u8; LaneRecord::LEN_MAX] {
        self.record.buffer()
    }

    /// Puts the first `len` octets behind the other records. The reader does not see them before `publish`.
    ///
    /// # Panics
    ///
    /// If `len` is more than [`LaneRecord::LEN_MAX`].
    #[inline(always)]
    pub fn commit(self, len: usize) {
        self.record.set_len(len);
        *self.position = self.position.wrapping_add(1);
        *self.unused_lines += LaneRecord::LINES_MAX - LaneRecord::lines_for(len);
    }
}

impl LaneWriter<LaneRecord> {
    /// The place behind the others. `None`: the lane is full.
    #[inline(always)]
    pub fn vacant(&mut self) -> Option<VacantRecord<'_>> {
        if !self.find_room(1) {
            return None;
        }
        // SAFETY: as in `push`: the place is the writer's alone until it is published, and `self` stays borrowed as long as the
        // record. It has a record: zeros are one, which it was made of, and nothing but records was ever written there. A
        // record that was put into it by `push` or taken out by `pop` left one there, as it needs no drop.
        let record = self.ring.place(self.position).with_mut(|place| unsafe { (*place).assume_init_mut() });
        Some(VacantRecord { record, position: &mut self.position, unused_lines: &mut self.unused_lines })
    }

    /// Puts a copy of a record behind the others. `false`: the lane is full.
    ///
    /// The reader does not see it before `publish`.
    #[inline]
    #[must_use]
    pub fn push_record(&mut self, record: &LaneRecord) -> bool {
        let Some(mut place) = self.vacant() else { return false };
        place.buffer()[..record.len()].copy_from_slice(record.octets());
        place.commit(record.len());
        true
    }
}

impl LaneReader<LaneRecord> {
    /// The oldest published record, where it lies; [`LaneReader::advance`] goes on to the next. `None`: there is none.
    #[inline(always)]
    pub fn first(&mut self) -> Option<&LaneRecord> {
        if self.position == self.tail && !self.refresh() {
            return None;
        }
        // SAFETY: as in `pop`, but the record stays where it is. The writer does not touch it before it is given back, which takes
        // `&mut self`: so not as long as it is borrowed.
        Some(self.ring.place(self.position).with(|place| unsafe { (*place).assume_init_ref() }))
    }

    /// Leaves the oldest published record behind. Its place is given back as that of a value of `pop`.
    ///
    /// # Panics
    ///
    /// If [`LaneReader::first`] has found none.
    #[inline(always)]
    pub fn advance(&mut self) {
        assert!(self.position != self.tail, "no record was found");
        self.leave();
    }

    /// Copies the oldest published record to `record`. `false`: there is none, and `record` is as it was.
    #[inline]
    #[must_use]
    pub fn pop_record(&mut self, record: &mut LaneRecord) -> bool {
        let Some(first) = self.first() else { return false };
        record.copy_from(first);
        self.advance();
        true
    }
}

// Not under loom: its atomics work only inside a model.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lane::lane;

    #[test]
    fn a_record_takes_the_lines_that_it_fills() {
        assert_eq!((size_of::<LaneRecord>(), align_of::<LaneRecord>()), (512, 64));
        assert_eq!(LaneRecord::LEN_MAX, 504);
        let lines = [0, 56, 57, 120, 121, LaneRecord::LEN_MAX].map(LaneRecord::lines_for);
        assert_eq!(lines, [1, 1, 2, 2, 3, LaneRecord::LINES_MAX]);
        let (mut writer, mut reader) = lane(4);
        let mut record = LaneRecord::new();
        for len in [120, 57, 300] {
            record.set_len(len);
            assert!(writer.push_record(&record));
        }
        assert!(writer.publish());
        assert_eq!(writer.statistics().lines, 2 + 2 + 5, "those that they do not fill stay where they are");
        record.set_len(0);
        assert!(writer.push_record(&record) && writer.publish());
        assert_eq!(writer.statistics().lines, 2 + 2 + 5 + 1);
        assert!(reader.pop_record(&mut record) && record.len() == 120);
    }

    /// Records of each length, through a lane that they go round in.
    #[test]
    fn records_of_all_lengths_come_out_as_they_went_in() {
        let (mut writer, mut reader) = lane(4);
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
            assert_eq!(reader.first().unwrap().octets(), sent.octets());
            assert!(reader.pop_record(&mut received));
            assert_eq!(received.octets(), sent.octets());
            assert!(!reader.pop_record(&mut received) && reader.first().is_none(), "there is no other");
        }
    }

    #[test]
    fn a_record_is_written_and_read_in_its_place() {
        let (mut writer, mut reader) = lane(2);
        for round in 0..5_u8 {
            let places: Vec<_> = (0..2)
                .map(|number| {
                    let mut place = writer.vacant().unwrap();
                    place.buffer()[0] = 10 * round + number;
                    let address = std::ptr::from_ref(place.record);
                    place.commit(1);
                    address
                })
                .collect();
            assert!(writer.vacant().is_none() && reader.first().is_none());
            writer.publish();
            for (number, place) in (0..2).zip(places) {
                let found = reader.first().unwrap();
                assert_eq!((found.octets(), std::ptr::from_ref(found)), (&[10 * round + number][..], place));
                reader.advance();
            }
        }
    }

    /// A place that is prepared and not committed is prepared again.
    #[test]
    fn what_is_not_committed_is_not_there() {
        let (mut writer, mut reader) = lane(2);
        writer.vacant().unwrap().buffer()[0] = 7;
        assert!(!writer.publish() && reader.first().is_none());
        let mut place = writer.vacant().unwrap();
        place.buffer()[0] = 9;
        place.commit(1);
        assert!(writer.publish());
        assert_eq!(reader.first().unwrap().octets(), [9]);
    }

    #[test]
    #[should_panic(expected = "at most 504")]
    fn a_record_longer_than_its_buffer_is_refused() {
        LaneRecord::new().set_len(505);
    }

    #[test]
    #[should_panic(expected = "no record was found")]
    fn a_record_that_was_not_found_is_not_left_behind() {
        let (_writer, mut reader) = lane::<LaneRecord>(1);
        reader.advance();
    }
}
