//! One direction of a TCP connection: segments in any order become the stream of octets.
//!
//! Duplicates of earlier octets are dropped; early segments wait. Octets that the capture lacks are a *gap*: the
//! stream goes on behind it as soon as it is certain that they will not come any more.

use std::collections::BTreeMap;
use std::time::Duration;

/// Octets that wait for earlier ones at most.
const WAITING_LEN_MAX: usize = 4 << 20;
/// Segments that wait at most.
const WAITING_MAX: usize = 4096;
/// Segments that wait, once the peer has acknowledged what is missing: it had it, so only the capture has not.
const WAITING_ACKNOWLEDGED_MAX: usize = 16;

/// Where a segment goes, seen from the octet that comes next.
fn distance(sequence: u32, next: u32) -> i64 {
    i64::from(sequence.wrapping_sub(next).cast_signed())
}

/// Where something was captured: the frame's number, and its time.
pub(crate) type Place = (u64, Duration);

/// Takes the stream's octets, in order.
pub(crate) trait Octets {
    /// The next octets or gap were captured there.
    fn at(&mut self, place: Place);
    /// The next octets.
    fn octets(&mut self, octets: &[u8]);
    /// `len` octets of the stream were not captured.
    fn gap(&mut self, len: u64);
}

/// A piece that came early.
#[derive(Debug)]
struct Piece {
    octets: Vec<u8>,
    /// Octets behind it that were not captured.
    missing: usize,
    /// Where it was captured.
    frame: Place,
}

/// The state of one direction.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Sequence number of the octet that comes next, once any was seen.
    next: Option<u32>,
    /// Octets passed on so far, gaps included: the place of `next` in the stream.
    position: u64,
    /// What came early, by its place in the stream.
    waiting: BTreeMap<u64, Piece>,
    waiting_len: usize,
    /// Up to where the peer has said that it has the stream.
    acknowledged: u64,
    /// Where the stream ends, if its FIN was seen.
    end: Option<u64>,
}

impl Stream {
    /// Starts the stream at a SYN.
    pub(crate) fn start(&mut self, sequence: u32) {
        *self = Stream { next: Some(sequence.wrapping_add(1)), ..Stream::default() };
    }

    /// Tells whether a SYN is the one that started this stream, retransmitted.
    pub(crate) fn is_started_by(&self, sequence: u32) -> bool {
        let start = self.next.map(|next| next.wrapping_sub(self.position as u32));
        start == Some(sequence.wrapping_add(1))
    }

    /// Returns the octets that are held.
    pub(crate) fn held(&self) -> usize {
        self.waiting_len + self.waiting.len() * 64
    }

    /// Tells whether the stream was begun: by a SYN, or by any octets.
    pub(crate) fn is_started(&self) -> bool {
        self.next.is_some()
    }

    /// Takes the acknowledgement of the other direction. Returns the place up to which the peer has the stream.
    pub(crate) fn acknowledge(&mut self, acknowledged: u32) -> u64 {
        let Some(next) = self.next else { return 0 };
        let place = self.position.saturating_add_signed(distance(acknowledged, next));
        self.acknowledged = self.acknowledged.max(place);
        place
    }

    /// Notes that the stream ends with a segment.
    pub(crate) fn ends(&mut self, sequence: u32, len: usize) {
        let Some(next) = self.next else { return };
        let place = self.position.saturating_add_signed(distance(sequence, next)) + len as u64;
        self.end = Some(place);
    }

    /// Tells whether all octets up to an acknowledged place were passed on. The last number may be that of a FIN.
    pub(crate) fn has_reached(&self, place: u64) -> bool {
        let fin = u64::from(self.end.is_none_or(|end| end == self.position) && self.waiting.is_empty());
        self.position + fin >= place
    }

    /// Tells whether the peer has octets that the capture does not have, or not yet.
    pub(crate) fn is_behind(&self) -> bool {
        !self.has_reached(self.acknowledged)
    }

    /// Takes a segment's octets, of which `missing` more were sent but not captured.
    pub(crate) fn push(
        &mut self,
        sequence: u32,
        payload: &[u8],
        missing: usize,
        frame: Place,
        to: &mut dyn Octets,
    ) {
        if payload.is_empty() && missing == 0 {
            return;
        }
        let next = *self.next.get_or_insert(sequence);
        let distance = distance(sequence, next);
        if distance <= 0 {
            to.at(frame);
            self.pass(distance.unsigned_abs() as usize, payload, missing, to);
        } else {
            self.keep(self.position + distance.unsigned_abs(), payload, missing, frame);
        }
        self.drain(to);
        while self.gap_is_certain() {
            self.skip_gap(to);
        }
    }

    /// Passes on all octets that wait, over all gaps: nothing more will come.
    pub(crate) fn finish(&mut self, to: &mut dyn Octets) {
        while !self.waiting.is_empty() {
            self.skip_gap(to);
        }
        self.skip_to(self.acknowledged, to);
    }

    /// Passes on the octets up to a place that the peer has, over all gaps: what is missing will not come.
    pub(crate) fn skip_to(&mut self, place: u64, to: &mut dyn Octets) {
        while !self.has_reached(place) {
            if self.waiting.first_key_value().is_some_and(|(first, _)| *first <= place) {
                self.skip_gap(to);
            } else {
                // Nothing behind it was captured yet. The last number may be that of a FIN.
                let end = self.end.unwrap_or(place).min(place);
                self.skip(end.saturating_sub(self.position), to);
                return;
            }
        }
    }

    /// Passes on a piece of which the first `known` octets came before.
    fn pass(&mut self, known: usize, octets: &[u8], missing: usize, to: &mut dyn Octets) {
        let fresh = octets.get(known..).unwrap_or_default();
        if !fresh.is_empty() {
            to.octets(fresh);
        }
        let missing = missing.saturating_sub(known.saturating_sub(octets.len()));
        if missing > 0 {
            to.gap(missing as u64);
        }
        let len = fresh.len() + missing;
        self.position += len as u64;
        self.next = self.next.map(|next| next.wrapping_add(len as u32));
    }

    fn keep(&mut self, place: u64, octets: &[u8], missing: usize, frame: Place) {
        let len = octets.len() + missing;
        if self.waiting.get(&place).is_some_and(|piece| piece.octets.len() + piece.missing >= len) {
            return;
        }
        let piece = Piece { octets: octets.to_vec(), missing, frame };
        self.waiting_len += octets.len();
        if let Some(old) = self.waiting.insert(place, piece) {
            self.waiting_len -= old.octets.len();
        }
    }

    /// Passes on what waited for the octets that came.
    fn drain(&mut self, to: &mut dyn Octets) {
        while let Some(entry) = self.waiting.first_entry() {
            let Some(known) = self.position.checked_sub(*entry.key()) else { break };
            let piece = entry.remove();
            self.waiting_len -= piece.octets.len();
            to.at(piece.frame);
            self.pass(known as usize, &piece.octets, piece.missing, to);
        }
    }

    fn gap_is_certain(&self) -> bool {
        let Some((first, _)) = self.waiting.first_key_value() else { return false };
        self.waiting_len > WAITING_LEN_MAX
            || self.waiting.len() > WAITING_MAX
            || (self.waiting.len() > WAITING_ACKNOWLEDGED_MAX && self.acknowledged >= *first)
    }

    fn skip_gap(&mut self, to: &mut dyn Octets) {
        let Some((first, piece)) = self.waiting.first_key_value() else { return };
        to.at(piece.frame);
        self.skip(first - self.position, to);
        self.drain(to);
    }

    fn skip(&mut self, gap: u64, to: &mut dyn Octets) {
        if gap > 0 {
            to.gap(gap);
        }
        self.position += gap;
        self.next = self.next.map(|next| next.wrapping_add(gap as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = (1, Duration::ZERO);

    /// Gaps are written as `_`.
    #[derive(Default)]
    struct Seen(Vec<u8>);

    impl Octets for Seen {
        fn at(&mut self, _: Place) {}
        fn octets(&mut self, octets: &[u8]) {
            self.0.extend(octets);
        }
        fn gap(&mut self, len: u64) {
            self.0.extend(std::iter::repeat_n(b'_', len as usize));
        }
    }

    /// Pushes the pieces, given by their places, of a stream that starts shortly before its numbers wrap.
    fn stream(pieces: &[(u32, &str)]) -> String {
        let start = u32::MAX - 3;
        let mut stream = Stream::default();
        let mut seen = Seen::default();
        stream.start(start.wrapping_sub(1));
        for (place, octets) in pieces {
            stream.push(start.wrapping_add(*place), octets.as_bytes(), 0, PLACE, &mut seen);
        }
        stream.finish(&mut seen);
        assert_eq!(stream.held(), 0);
        String::from_utf8(seen.0).unwrap()
    }

    #[test]
    fn segments_in_order_across_the_wrap() {
        assert_eq!(stream(&[(0, "abc"), (3, "defg"), (7, "hi")]), "abcdefghi");
    }

    #[test]
    fn reordered_retransmitted_and_overlapping_segments() {
        assert_eq!(stream(&[(3, "def"), (6, "gh"), (0, "abc")]), "abcdefgh");
        assert_eq!(stream(&[(0, "abc"), (0, "abc"), (1, "bcd"), (2, "cd"), (4, "e")]), "abcde");
        assert_eq!(stream(&[(4, "ef"), (2, "cdefg"), (5, "f"), (0, "ab")]), "abcdefg");
    }

    #[test]
    fn of_two_copies_the_first_counts() {
        assert_eq!(stream(&[(0, "abc"), (0, "XYZd")]), "abcd");
    }

    #[test]
    fn a_gap_is_passed_on_at_the_end() {
        assert_eq!(stream(&[(0, "ab"), (4, "ef"), (9, "j")]), "ab__ef___j");
    }

    #[test]
    fn a_gap_that_was_acknowledged_is_passed_on_soon() {
        let mut stream = Stream::default();
        let mut seen = Seen::default();
        stream.start(99);
        stream.push(100, b"ab", 0, PLACE, &mut seen);
        for n in 0..=WAITING_ACKNOWLEDGED_MAX as u32 {
            stream.push(104 + n, b"x", 0, PLACE, &mut seen);
        }
        assert_eq!(seen.0, b"ab");
        stream.acknowledge(110);
        stream.push(200, b"z", 0, PLACE, &mut seen);
        assert!(seen.0.starts_with(b"ab__xxx"));
    }

    #[test]
    fn a_stream_that_was_joined_midway_starts_where_it_is() {
        let mut stream = Stream::default();
        let mut seen = Seen::default();
        stream.push(5000, b"ab", 3, PLACE, &mut seen);
        stream.push(5005, b"f", 0, PLACE, &mut seen);
        assert_eq!(seen.0, b"ab___f");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut stream = Stream::default();
        let mut seen = Seen::default();
        stream.start(0);
        let piece = [0; 1000];
        for n in 0..10_000u32 {
            stream.push(10_000 + 2000 * n, &piece, 0, PLACE, &mut seen);
            assert!(stream.held() < WAITING_LEN_MAX + 64 * (WAITING_MAX + 2) + 2000);
        }
    }
}
